"""Looks at checks of the suite, run on the vLLM that is installed for its own CPU runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from conformance.replay.model import Answer
from conformance.report.model import Report, State
from conformance.target import WrongUse

SUBJECT = "upstream"

Suite = Callable[[Iterable[str]], Mapping[str, Answer]]
"""Runs checks by id, and answers for each."""


def elsewhere(version: str) -> Answer:
    """The answer for a version that is not the installed one: what to run instead."""
    return Answer(
        "not checked",
        f"needs vLLM {version}: `tox exec -e {environment(version)} -- vllm-conformance replay "
        "--installed-only`",
    )


def environment(version: str) -> str:
    """The tox environment of a version: v0300 is 0.30.0."""
    return f"v{version.replace('.', '')}" if version.count(".") == 2 else f"v{version}"


def run(checks: Iterable[str]) -> dict[str, Answer]:
    """Run checks of the suite for vLLM's own CPU runner, all in one session.

    Raises:
        WrongUse: the suite cannot be run here.
    """
    wanted = list(dict.fromkeys(checks))
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        arguments = [sys.executable, "-m", "pytest", "-q", "-p", "conformance.replay.select"]
        arguments += [str(Path(__file__).resolve().parents[1] / "suite")]
        arguments += [f"--subject={SUBJECT}", f"--conformance-report={directory}"]
        arguments += [f"--replay-check={name}" for name in wanted]
        environ = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
        try:
            text = (Path(directory) / "results.json").read_text(encoding="utf-8")
            report = Report.from_json(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError) as error:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"]
            raise WrongUse(
                f"The suite gave no result here ({lines[-1]}): vllm-conformance doctor says what "
                "is missing."
            ) from error
    return {name: answer(report, name) for name in wanted}


def answer(report: Report, check: str) -> Answer:
    """What a check came to. A failure that is known is red as well: it is what is asked for."""
    row = report.rows.get(check)
    cell = None if row is None else row.cells.get(SUBJECT)
    if cell is None:
        return Answer("absent", f"the suite has no check {check}")
    if cell.state is State.RED:
        return Answer("red", _first(cell.detail), (cell.detail,))
    if cell.state is State.EXPECTED_RED:
        # Its first line is why it is expected, which is no word of the check's.
        told = cell.detail.partition("\n")[2]
        return Answer("red", _first(told), (told,))
    if cell.state is State.OK:
        return Answer("green", f"{check} holds")
    return Answer("not checked", _first(cell.detail))


def _first(text: str) -> str:
    """Its first line, which says what is wrong."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
