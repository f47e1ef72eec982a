"""What the tests of the host run in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any


def fine(journal: Any, value: int) -> None:
    """Report a value in a phase."""
    with journal.phase_of("work"):
        journal.result("value", value)


def fails(journal: Any) -> None:
    """Raise in a phase."""
    with journal.phase_of("work"):
        raise ValueError("planted")


def exits(journal: Any) -> None:
    """End the process, with status 0, in the middle."""
    with journal.phase_of("work"):
        os._exit(0)


def dies(journal: Any, name: str) -> None:
    """End by a signal in an inner phase."""
    with journal.phase_of("outer"), journal.phase_of("inner"):
        os.kill(os.getpid(), signal.Signals[name])


def hangs(journal: Any) -> None:
    """Never end."""
    with journal.phase_of("work"):
        threading.Event().wait()


def leaves_things_behind(journal: Any) -> None:
    """Leave a process, a temporary file and a file in shared memory."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    tempfile.NamedTemporaryFile(prefix="forgotten-", delete=False).close()
    with open(f"/dev/shm/forgotten-{os.getpid()}", "w") as file:
        file.write("x")
        time.sleep(0.2)  # long enough to be seen with it
    journal.result("shared", f"/dev/shm/forgotten-{os.getpid()}")


def patch_register(journal: Any) -> None:
    """Try what a register promises, and report each promise's outcome."""
    from tests import register_promises

    register_promises.report(journal)


def patch_names(journal: Any) -> None:
    """Report the names of the shipped patches, and of those that this vLLM needs."""
    from runner_under_test.patches import REGISTER
    from runner_under_test.patches.register import is_needed

    journal.result("names", [patch.name for patch in REGISTER.patches])
    journal.result("needed", [patch.name for patch in REGISTER.patches if is_needed(patch)])


def unsupported_version(journal: Any) -> None:
    """Report what the worker says to a vLLM that it does not support."""
    from runner_under_test.worker import refuse_unsupported_version

    try:
        refuse_unsupported_version("0.26.0")
    except RuntimeError as error:
        journal.result("message", str(error))


def overrides(journal: Any) -> None:
    """Report the functions that the runner defines itself."""
    from runner_under_test.model_runner import CPUModelRunner

    own = [name for name, value in vars(CPUModelRunner).items() if callable(value)]
    journal.result("overrides", own)


def triton_mode(journal: Any) -> None:
    """Report what decides about Triton in this process, and whether vLLM has it."""
    from vllm.triton_utils import HAS_TRITON

    names = ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER")
    journal.result("mode", [*map(os.environ.get, names), HAS_TRITON])


def ask_clauses(journal: Any) -> None:
    """Ask the clauses of torch's own families with nothing patched."""
    from conformance.references.recording import asked

    journal.result("asked", asked())
