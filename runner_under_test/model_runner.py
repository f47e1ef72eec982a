"""The CPU model runner, V1: vLLM's GPU runner on the host's CPU."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from runner_under_test.patches import REGISTER, left_out


class CPUModelRunner(GPUModelRunner):
    """vLLM's GPU runner with its device calls patched; it changes nothing else but `_to_list`.

    Buffers that vLLM keeps twice, for the host and for the device, stay two tensors here as well,
    so that a value changes at the copy and not before it.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        REGISTER.apply(left_out())
        super().__init__(vllm_config, device)

    def _to_list(self, sampled_token_ids: torch.Tensor) -> list[list[int]]:
        """Return the sampled tokens, shape [requests, tokens], as lists.

        The base copies them to pinned memory and waits for an event so that other streams can go
        on meanwhile. They are in the host's memory already, and there is nothing to wait for.
        """
        return sampled_token_ids.tolist()
