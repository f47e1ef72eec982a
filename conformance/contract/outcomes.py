"""Outcomes of clauses: one child per subject checks them all, and one more after each crash."""

from __future__ import annotations

from conformance.contract import CLAUSES
from conformance.scenarios.host import Host
from conformance.target import Subject

_ENTRY = "conformance.contract.batch:run"


class Outcomes:
    """What is wrong with each clause, by subject; asked once, remembered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_subject: dict[str, dict[str, str | None]] = {}

    def of(self, subject: Subject, name: str) -> str | None:
        """Return what is wrong with a clause for a subject, or None."""
        if subject.name not in self._by_subject:
            names = [clause.name for clause in CLAUSES]
            self._by_subject[subject.name] = check(self._host, subject, names)
        return self._by_subject[subject.name][name]


def check(
    host: Host, subject: Subject, names: list[str], environment: dict[str, str] | None = None
) -> dict[str, str | None]:
    """Check the named clauses; one whose check ends the process is wrong, and the rest go on."""
    outcomes: dict[str, str | None] = {}
    while len(outcomes) < len(names):
        rest = [name for name in names if name not in outcomes]
        run = host.run(
            _ENTRY,
            {"subject": subject.name, "names": rest},
            label=f"{subject.name}, contract",
            environment=environment,
        )
        for name, wrong in run.results.items():
            if name in rest:
                outcomes[name] = None if wrong is None else _text(wrong)
        if run.failure is not None:
            culprit = run.last_phase if run.last_phase in rest else None
            lost = [culprit] if culprit else [name for name in rest if name not in outcomes]
            outcomes.update((name, run.failure) for name in lost)
        elif not outcomes.keys() >= set(rest):
            missing = [name for name in rest if name not in outcomes]
            outcomes.update((name, "the child reported nothing") for name in missing)
    return outcomes


def _text(wrong: dict[str, str]) -> str:
    return f"{wrong['message']}\n{wrong['traceback']}"
