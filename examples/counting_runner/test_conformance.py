"""How a project with a runner of its own holds it against vLLM's GPU runner, in a test."""

from __future__ import annotations

import conformance


def test_the_counting_runner_conforms() -> None:
    report = conformance.check_runner(
        "counting_runner:CountingRunner", select="greedy or contract or spec-draft", workers=1
    )
    found = [f"{row.check}: {cell.detail}" for row, _, cell in report.findings]
    assert report.conforms, "\n".join(found)
