"""What vLLM's platform answers on a CPU: the predicates that keep GPU code off it.

Their source is ``vllm/platforms/interface.py``, which says what each of them means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.contract.clause import Clause, require

_OTHERS = (
    "is_cuda",
    "is_cuda_alike",
    "is_rocm",
    "is_tpu",
    "is_unspecified",
    "is_xpu",
    "is_fp8_fnuz",
    "is_arch_support_pdl",
    "support_deep_gemm",
    "support_static_graph_mode",
    "supports_mx",
    "is_out_of_tree",
)
"""What speaks of other hardware, and is False on a CPU."""

_QUESTIONS = (
    "can_update_inplace",
    "is_pin_memory_available",
    "is_zen_cpu",
    "support_hybrid_kv_cache",
    "supports_fp8",
    "use_all_gather",
    "use_sync_weight_loader",
    "uses_host_device_handling",
)
"""What may be True or False on a CPU."""

_CAPABILITIES = {
    "has_device_capability": 70,
    "is_device_capability": 90,
    "is_device_capability_family": 100,
    "is_integrated_gpu": 0,
}
"""Questions about a CUDA device, and a value to ask with: a CPU has none of it."""


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


def _answers(name: str, check: Callable[[Any], None], gpu: str) -> Clause:
    return Clause(
        name=f"platforms/{name.replace('_', '-')}",
        attributes=(f"platform.{name}",),
        gpu=gpu,
        check=lambda: check(getattr(_platform(), name)),
        bare_holds=True,
    )


def _is(expected: bool) -> Callable[[Any], None]:
    def check(method: Any) -> None:
        answer = method()
        require(answer is expected, f"on a CPU it is {answer!r}")

    return check


def _is_bool(method: Any) -> None:
    answer = method()
    require(type(answer) is bool, f"it is {answer!r}, and a bool is asked for")


def _denies(argument: int) -> Callable[[Any], None]:
    def check(method: Any) -> None:
        answer = method(argument)
        require(answer is False, f"of {argument} it says {answer!r}, and there is no such device")

    return check


def _has_float32(dtypes: Any) -> None:
    import torch

    require(torch.float32 in dtypes, f"float32 is not among {dtypes!r}")


CLAUSES = (
    _answers("is_cpu", _is(True), "is_cpu() is False on a GPU, and True on a CPU"),
    *(_answers(name, _is(False), f"{name}() tells of hardware") for name in _OTHERS),
    *(_answers(name, _is_bool, f"{name}() is a bool") for name in _QUESTIONS),
    *(
        _answers(name, _denies(argument), f"{name}({argument}) is True for such a device only")
        for name, argument in _CAPABILITIES.items()
    ),
    _answers("supported_dtypes", _has_float32, "the dtypes that models may have"),
)

SAMPLES: dict[str, int] = _CAPABILITIES
"""An argument for each method that takes one."""
