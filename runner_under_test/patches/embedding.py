"""The launch of the kernel for quantized embeddings, which cannot be prepared without Triton."""

from __future__ import annotations

from typing import Any

import torch

from runner_under_test.patches.kernels import triton_is_disabled
from runner_under_test.patches.patch import Patch

_MODULE = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_embedding"


def _launches_without_triton(_: Any) -> Any:
    def stand_in_dequant_gather_triton(
        ids: torch.Tensor,
        weight_packed: torch.Tensor,
        weight_scale: torch.Tensor,
        hidden: int,
        num_bits: int,
    ) -> torch.Tensor:
        """Return the embeddings of tokens, shape [tokens, hidden], in the dtype of the scales."""
        from vllm.model_executor.layers.quantization.compressed_tensors import (
            compressed_tensors_embedding as vllms,
        )

        out = weight_scale.new_empty(ids.numel(), hidden)
        groups = weight_scale.shape[1]
        block = min(1 << (hidden - 1).bit_length(), 1024)
        vllms._dequant_gather_kernel[ids.numel(), -(-hidden // block)](
            ids,
            weight_packed,
            weight_scale,
            out,
            hidden,
            weight_packed.shape[1],
            groups,
            NUM_BITS=num_bits,
            PACK_FACTOR=32 // num_bits,
            GROUP_SIZE=0 if groups == 1 else hidden // groups,
            BLOCK=block,
        )
        return out

    return stand_in_dequant_gather_triton


PATCHES = (
    Patch(
        target=f"{_MODULE}._dequant_gather_triton",
        build=_launches_without_triton,
        why="it asks Triton for the size of its blocks before it launches its kernel; "
        "what vLLM has in Triton's place knows no next_power_of_2, and raises AttributeError",
        remove_when="vLLM's placeholder for Triton has next_power_of_2",
        condition=triton_is_disabled,
    ),
)
