"""A loader of weights that reads straight into a CUDA device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from runner_under_test.patches.patch import Patch


def _reads_to_the_host(_: Any) -> Any:
    def stand_in_weights_iterator(
        hf_weights_files: list[str], use_tqdm_on_load: bool
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the name and the tensor of each weight, read with safetensors' own reader."""
        from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

        yield from safetensors_weights_iterator(hf_weights_files, use_tqdm_on_load)

    return stand_in_weights_iterator


PATCHES = (
    Patch(
        target="vllm.model_executor.model_loader.weight_utils.fastsafetensors_weights_iterator",
        build=_reads_to_the_host,
        why="the load format fastsafetensors reads into a device called cuda, written out; "
        "a host has its weights in its own memory, and the ordinary reader puts them there",
        link="https://github.com/vllm-project/vllm/issues/42924",
        remove_when="the loader asks vLLM's platform for the device",
    ),
)
