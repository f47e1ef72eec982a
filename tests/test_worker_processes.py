"""Faults in a worker process, which the command's own exit status does not show, are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_suite import run_pytest


def _red(module: str, worker: str, scenario: str, directory: Path) -> dict[str, str]:
    """The red checks of a scenario for a faulty worker, and what they say."""
    subject = f"tests.faulty_workers:{worker}"
    run_pytest(
        f"conformance/suite/{module}.py",
        f"--subject={subject}",
        f"-k={scenario}",
        f"--conformance-report={directory}",
    )
    data: dict[str, Any] = json.loads((directory / "results.json").read_text())
    cells = {row["check"]: row["cells"][subject] for row in data["rows"]}
    return {check: cell["detail"] for check, cell in cells.items() if cell["state"] == "red"}


@pytest.mark.xdist_group("worker-processes")
def test_a_worker_that_dies_at_shutdown_is_found_though_the_command_succeeds(
    tmp_path: Path,
) -> None:
    red = _red("test_shutdown", "CrashesAtShutdown", "bench", tmp_path)
    (check,) = red
    assert check == "shutdown::the_command_ends_with_status_0_and_clean_stderr[bench]"
    assert "exit status 0" in red[check]
    assert "Cannot access accelerator device" in red[check]


@pytest.mark.xdist_group("worker-processes")
def test_a_process_that_outlives_the_worker_is_found(tmp_path: Path) -> None:
    red = _red("test_shutdown", "LeavesAProcess", "greedy", tmp_path)
    assert "time.sleep(600)" in red["shutdown::nothing_is_left_behind[greedy]"]


@pytest.mark.xdist_group("worker-processes")
def test_wrong_tokens_are_found_and_the_first_wrong_step_is_named(tmp_path: Path) -> None:
    red = _red("test_engine", "SwapsTokens", "greedy", tmp_path)
    detail = red["engine::tokens_agree_with_transformers[greedy-single]"]
    assert "tokens: diverges at step 0: token 3 instead of" in detail
