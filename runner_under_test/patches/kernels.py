"""The runner's Triton kernels, where Triton cannot compile them."""

from __future__ import annotations

from typing import Any

from runner_under_test.kernels import KERNELS, Kernel
from runner_under_test.kernels.launch import KernelStandIn
from runner_under_test.patches.patch import Patch


def triton_is_disabled() -> bool:
    """Whether vLLM has no Triton that compiles for the CPU, in this process."""
    from vllm.triton_utils import HAS_TRITON

    return not HAS_TRITON


def _patch(kernel: Kernel) -> Patch:
    def build(original: Any) -> KernelStandIn:
        return KernelStandIn(original, kernel.implementation, kernel.target)

    return Patch(
        target=kernel.target,
        build=build,
        why=kernel.why,
        versions=kernel.versions,
        condition=triton_is_disabled,
        # vLLM launches most kernels through objects at module level that hold them so.
        owners=("kernel",),
        remove_when="vLLM brings a Triton that compiles this kernel for the CPU",
        link="https://github.com/vllm-project/vllm/issues/37546",
    )


PATCHES = tuple(_patch(kernel) for kernel in KERNELS)
