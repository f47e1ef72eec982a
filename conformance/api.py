"""The harness as a function, for people who have a runner and a test suite of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.report.model import Report
from conformance.target import WrongUse, parse_subject


def check_runner(
    runner: str,
    *,
    select: str | None = None,
    workers: int | str = "auto",
    expectations: Path | str | None = None,
) -> Report:
    """Run the suite on a runner, in processes of its own, and return what every check came to.

    Args:
        runner: ``package.module:Class``, a subclass of vLLM's ``GPUModelRunner`` or of its worker;
            or ``ours``, ``upstream``, ``bare``.
        select: only the checks whose names match, as pytest's ``-k`` has it.
        workers: how many processes check at once.
        expectations: a directory with ``<package.module__Class>.toml``, which names the failures
            that are known; see ``fixtures/expectations``.

    Returns:
        The report; ``report.findings`` has every failure that nothing had announced, and
        ``report.conforms`` says that there is none.

    Raises:
        WrongUse: there is no such class, no check matches, or this environment cannot answer; the
            message says what to do.
    """
    parse_subject(runner)
    with tempfile.TemporaryDirectory(prefix="vllm-conformance-") as directory:
        command = [sys.executable, "-m", "conformance.cli", "run", "--subject", runner]
        command += ["--report", directory, "--format", "json", "-n", str(workers)]
        command += ["-k", select] if select else []
        command += ["--expectations", str(expectations)] if expectations else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        results = Path(directory) / "results.json"
        if done.returncode == 2 or not results.exists():
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise WrongUse(said[-1] if said else "the suite ended without a result.")
        return Report.from_json(json.loads(results.read_text()))
