"""LoRA's operators for hosts without Triton, which take a request without an adapter for the last.

The index of a row that uses no adapter is -1. The GPU's kernels leave such a row alone; indexed
with -1, a tensor gives its last element: here the adapter in the last place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.patches.patch import Patch

_OPERATORS = "vllm.lora.ops.torch_ops.lora_ops"
_REMOVE_WHEN = "vLLM's PyTorch operators for LoRA leave rows with the index -1 alone"


def _leaving_rows_alone(original: Callable[..., None]) -> Any:
    """Call an operator with those rows only that have an adapter."""

    @functools.wraps(original)
    def stand_in(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output_tensor: torch.Tensor,
        lora_indices_tensor: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Write ``output_tensor``, a row for each of ``inputs``; one without an adapter stays."""
        rows = (lora_indices_tensor >= 0).nonzero().flatten()
        if len(rows) == len(lora_indices_tensor):
            original(inputs, weights, output_tensor, lora_indices_tensor, *args, **kwargs)
        elif len(rows):
            output = output_tensor[rows]
            original(inputs[rows], weights, output, lora_indices_tensor[rows], *args, **kwargs)
            output_tensor[rows] = output

    return stand_in


PATCHES = (
    Patch(
        target=f"{_OPERATORS}.bgmv_shrink",
        build=_leaving_rows_alone,
        why="in a batch in which others use adapters, it applies the last one's first matrix to "
        "requests that use none",
        remove_when=_REMOVE_WHEN,
    ),
    Patch(
        target=f"{_OPERATORS}.bgmv_expand",
        build=_leaving_rows_alone,
        why="likewise with the second matrix of an adapter of embeddings, whose first is looked up",
        remove_when=_REMOVE_WHEN,
    ),
)
