"""What importing a runner reads of the device. Runs in a child process, and starts another.

The child itself is a fork of a process that has imported vLLM already.
"""

from __future__ import annotations

import json
import subprocess
import sys

from conformance.scenarios import triton_backend
from conformance.scenarios.child import Journal
from conformance.scenarios.observation import tail

_PREPARE = "from conformance.scenarios import triton_backend; triton_backend.register(); "
_IMPORT = (
    "import sys; from conformance.surface.import_run import main; sys.exit(main(sys.argv[1:]))"
)


def run(journal: Journal, generation: str) -> None:
    """Import a runner generation, ``v1`` or ``v2``, in a new process; report its touches.

    With Triton's kernels, if this child's own process has them.
    """
    code = _PREPARE + _IMPORT if triton_backend.is_wanted() else _IMPORT
    with journal.phase_of("import"):
        done = subprocess.run(
            [sys.executable, "-c", code, generation],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}\n{tail(done.stderr)}")
        for name, value in json.loads(done.stdout).items():
            journal.result(name, value)
