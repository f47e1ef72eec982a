"""The CPU model runner, V2: vLLM's second GPU runner on the host's CPU.

Its kernels are Triton's, so it needs a Triton that compiles, or interprets, for the CPU; where
there is none, vLLM chooses the V1 runner.
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from runner_under_test.patches import REGISTER, left_out


class CPUModelRunner(GPUModelRunner):
    """vLLM's V2 GPU runner with its device calls patched; it changes nothing else."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        REGISTER.apply(left_out())
        super().__init__(vllm_config, device)
