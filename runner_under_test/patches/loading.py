"""Loaders of weights that read straight into a CUDA device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from runner_under_test.patches.patch import Patch

LOADERS = ("fastsafetensors_weights_iterator", "instanttensor_weights_iterator")
"""Functions of vLLM's ``weight_utils`` that write the device ``cuda:...`` out."""


def _reads_to_the_host(_: Any) -> Any:
    def stand_in_weights_iterator(
        hf_weights_files: list[str],
        use_tqdm_on_load: bool,
        local_expert_ids: set[int] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the name and the tensor of each weight, read with safetensors' own reader."""
        from vllm.model_executor.model_loader import weight_utils

        options = {} if local_expert_ids is None else {"local_expert_ids": local_expert_ids}
        yield from weight_utils.safetensors_weights_iterator(
            hf_weights_files, use_tqdm_on_load, **options
        )

    return stand_in_weights_iterator


PATCHES = tuple(
    Patch(
        target=f"vllm.model_executor.model_loader.weight_utils.{name}",
        build=_reads_to_the_host,
        why="the load format that bears its name reads into a device called cuda, written out; "
        "a host has its weights in its own memory, and the ordinary reader puts them there",
        link="https://github.com/vllm-project/vllm/issues/42924",
        remove_when="vLLM's loaders ask the platform for the device",
    )
    for name in LOADERS
)
