"""A row of the contract that ends its process is red, and costs the other rows nothing."""

from __future__ import annotations

from typing import Any

from conformance.contract.outcomes import to_its_end
from conformance.contract.probe import AT
from conformance.scenarios.observation import ChildRun, Exit

_ROWS = ("presence|a", "behaviour|b", "behaviour|c")


def _run(results: dict[str, Any], *, signal: str | None) -> ChildRun:
    end = Exit(None if signal else 0, signal, False, 1.0)
    return ChildRun("a run", end, (), results, signal is None, "", "")


class _Child:
    """Checks the rows in order, and dies at some of them."""

    def __init__(self, *deadly: str) -> None:
        self.deadly = deadly
        self.runs = 0

    def __call__(self, skip: list[str]) -> ChildRun:
        self.runs += 1
        results: dict[str, Any] = {}
        for row in _ROWS:
            if row not in skip:
                results[AT] = row
                if row in self.deadly:
                    return _run(results, signal="SIGSEGV")
                results[row] = None
        return _run(results, signal=None)


def test_rows_that_end_the_process_are_red_and_the_others_are_checked() -> None:
    child = _Child("behaviour|b", "presence|a")
    results = to_its_end(child)
    assert child.runs == 3
    assert {row for row in _ROWS if results[row] is not None} == {"behaviour|b", "presence|a"}
    assert "SIGSEGV" in results["behaviour|b"]["message"]


def test_a_process_that_ends_between_rows_accuses_none_and_is_not_run_again() -> None:
    runs = []

    def child(skip: list[str]) -> ChildRun:
        runs.append(list(skip))
        return _run({AT: "presence|a", "presence|a": None}, signal="SIGABRT")

    results = to_its_end(child)
    assert runs == [[]]
    assert results["presence|a"] is None
    assert "behaviour|b" not in results
    assert "SIGABRT" in results["failure"]
