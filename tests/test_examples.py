"""The example of a runner outside of the packages conforms, and a broken one does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import conformance
from conformance.target import WrongUse

_EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(_EXAMPLES / "counting_runner"), str(Path(__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))


def test_the_example_conforms() -> None:
    report = conformance.check_runner(
        "counting_runner:CountingRunner", select="greedy or contract", workers=2
    )
    assert report.conforms, [(row.check, cell.detail) for row, _, cell in report.findings][:3]
    assert {"counting_runner:CountingRunner"} <= set(report.subjects)


def test_a_runner_that_keeps_its_patches_does_not_conform() -> None:
    report = conformance.check_runner(
        "tests.faulty_workers:RunnerThatKeepsItsPatches",
        select="greedy and every_patched_name",
        workers=0,
    )
    assert not report.conforms
    ((row, subject, _),) = report.findings
    assert row.check == "shutdown::shutdown_puts_every_patched_name_back[greedy]"
    assert subject == "tests.faulty_workers:RunnerThatKeepsItsPatches"


def test_a_class_that_is_no_runner_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match="neither a vLLM worker nor a subclass"):
        conformance.check_runner("json:JSONDecoder", select="greedy")
