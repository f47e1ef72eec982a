"""What importing a runner reads of the device. Runs in a child process, and starts another.

The child itself is a fork of a process that has imported vLLM already.
"""

from __future__ import annotations

import json
import subprocess
import sys

from conformance.scenarios.child import Journal
from conformance.scenarios.observation import tail


def run(journal: Journal, generation: str) -> None:
    """Import a runner generation, ``v1`` or ``v2``, in a new process; report its touches."""
    with journal.phase_of("import"):
        done = subprocess.run(
            [sys.executable, "-m", "conformance.surface.import_run", generation],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}\n{tail(done.stderr)}")
        for name, value in json.loads(done.stdout).items():
            journal.result(name, value)
