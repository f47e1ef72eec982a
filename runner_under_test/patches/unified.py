"""Unified addressing: a device's view of host memory, which on a host is that memory itself."""

from __future__ import annotations

from typing import Any

import torch

from runner_under_test.patches.patch import Patch


def _view(_: Any) -> Any:
    def stand_in_accelerator_view(cpu_tensor: torch.Tensor) -> torch.Tensor:
        """Return another tensor of the same memory, of any shape and dtype: no value is copied."""
        return cpu_tensor.detach()

    return stand_in_accelerator_view


PATCHES = (
    Patch(
        target="vllm.utils.torch_utils.get_accelerator_view_from_cpu_tensor",
        build=_view,
        why="the V2 runner keeps its request states in host memory that the device reads, and "
        "offloaded weights are read so; without an accelerator it raises ValueError",
        remove_when="vLLM gives a view of host memory where the platform is the CPU",
    ),
)
