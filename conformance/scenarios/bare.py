"""Workers for subjects that bring no worker of their own. Imported in child processes only."""

from __future__ import annotations

import importlib
import os

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from runner_under_test.worker import CPUWorker

RUNNER_VARIABLE = "VLLM_CONFORMANCE_RUNNER"


class BareWorker(CPUWorker):
    """The GPU runner itself on the CPU, with nothing patched: what every check can fail on."""

    model_runner_class = GPUModelRunner

    def _hold_patches(self) -> None:
        """Leave torch as it is."""


class RunnerWorker(BareWorker):
    """Serves any subclass of the GPU runner, which brings what patches it needs."""

    @property
    def model_runner_class(self) -> type[GPUModelRunner]:  # type: ignore[override]
        """The class that the environment names as ``package.module.Class``."""
        module, _, name = os.environ[RUNNER_VARIABLE].rpartition(".")
        runner: type[GPUModelRunner] = getattr(importlib.import_module(module), name)
        return runner
