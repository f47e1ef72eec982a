"""Faults that show in a run of the V2 runner; those of `engines` serve for it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from runner_under_test.worker import CPUWorker


class _RewritesLogits(CPUWorker):
    """Changes the logits, shape [rows, vocabulary], on their way to the sampler."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, and change what the model computes."""
        super().load_model(*args, **kwargs)
        model: Any = self.model_runner.model
        compute: Callable[..., torch.Tensor] = model.compute_logits
        model.compute_logits = lambda *args, **kwargs: self.rewritten(compute(*args, **kwargs))

    def rewritten(self, logits: torch.Tensor) -> torch.Tensor:
        """Return other logits."""
        raise NotImplementedError


class RollsLogits(_RewritesLogits):
    """Gives each token its neighbour's logit."""

    def rewritten(self, logits: torch.Tensor) -> torch.Tensor:
        """Move them on by one."""
        return logits.roll(1, dims=-1)


class RollsLogitsOfABatch(_RewritesLogits):
    """Does so only where there are several requests."""

    def rewritten(self, logits: torch.Tensor) -> torch.Tensor:
        """Move them on by one, in a batch."""
        return logits.roll(1, dims=-1) if logits.shape[0] > 1 else logits


class BuildsTheGPUs(CPUWorker):
    """Builds the GPU's runner and not its own."""

    def _v2_runner_class(self) -> type[Any]:
        """That of the base."""
        return GPUModelRunner
