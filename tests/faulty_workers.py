"""Workers with one fault each, for checks that must see it in a worker process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from runner_under_test.model_runner import CPUModelRunner
from runner_under_test.worker import CPUWorker


class CrashesAtShutdown(CPUWorker):
    """Dies as vLLM 0.20's did, when nothing stood in for an accelerator call in its shutdown."""

    def shutdown(self) -> None:
        """Shut down, and raise what torch raises without an accelerator."""
        super().shutdown()
        raise RuntimeError("Cannot access accelerator device when none is available.")


class LeavesAProcess(CPUWorker):
    """Starts a process that outlives it."""

    def init_device(self) -> None:
        """Start it, out of reach of the worker's own end."""
        sleep = "import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
        super().init_device()


class SwapsTokens(CPUWorker):
    """Answers with the wrong tokens, and no error."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and put token 3 in the place of every token."""
        output = super().sample_tokens(grammar_output)
        output.sampled_token_ids = [[3 for _ in row] for row in output.sampled_token_ids]
        return output


class RunnerThatKeepsItsPatches(CPUModelRunner):
    """Applies the patches when it is made, and nobody takes them back."""
