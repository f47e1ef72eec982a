"""What is wrong with a subject's rebindings, claim by claim; each has a child of its own."""

from __future__ import annotations

from typing import Any

from conformance.contract.overrides.outcomes import Outcome
from conformance.contract.rebinding.claims import (
    CLAIM,
    CLAIMS,
    IN_FORCE,
    OTHER_PROCESSES,
    together_with,
)
from conformance.scenarios.host import Host, HostError
from conformance.scenarios.observation import ChildRun
from conformance.target import Subject

_MODULE = "conformance.contract.rebinding.run"


class Rebindings:
    """What is wrong with each claim, by subject; asked once, remembered."""

    def __init__(self, host: Host, model: str, vllm: str) -> None:
        self._host, self._model, self._vllm = host, model, vllm
        self._known: dict[tuple[str, str], Outcome] = {}

    def of(self, subject: Subject, claim: str) -> Outcome:
        """Return what a claim's check showed for a subject."""
        if (subject.name, claim) not in self._known:
            outcomes = check(self._host, subject, claim, self._model, self._vllm)
            self._known.update(((subject.name, name), o) for name, o in outcomes.items())
        return self._known[subject.name, claim]


def check(
    host: Host, subject: Subject, claim: str, model: str, vllm: str, fault: str | None = None
) -> dict[str, Outcome]:
    """Check a claim, and those that share a process with it.

    ``fault`` names a function, ``module:function``, that the process calls before it looks.
    """
    arguments: dict[str, Any] = {
        "subject": subject.name,
        "worker_cls": subject.worker_cls,
        "model": model,
        "vllm": vllm,
    }
    label = f"{subject.name}, rebinding"
    if claim == OTHER_PROCESSES or CLAIM[claim].group == IN_FORCE:
        before = host.run(f"{_MODULE}:look", {}, label=label)
        outcomes = _check(host, together_with(_SOME_IN_FORCE), arguments, label, fault)
        planted = fault if claim == OTHER_PROCESSES else None
        after = host.run(f"{_MODULE}:look", {"fault": planted}, label=label)
        return {**outcomes, OTHER_PROCESSES: _compared(before, after)}
    only = CLAIM[claim].only
    if only not in ("", subject.name):
        return {claim: Outcome(not_applicable=CLAIM[claim].why_only)}
    return _check(host, together_with(claim), arguments, label, fault)


_SOME_IN_FORCE = next(claim.name for claim in CLAIMS if claim.group == IN_FORCE)


def _check(
    host: Host, claims: tuple[str, ...], arguments: dict[str, Any], label: str, fault: str | None
) -> dict[str, Outcome]:
    """Check claims in one process, and in one more after each that ends it."""
    outcomes: dict[str, Outcome] = {}
    rest = list(claims)
    while rest:
        job = {"claims": rest, "fault": fault, **arguments}
        run = host.run(f"{_MODULE}:run", job, label=label)
        outcomes.update(
            (name, Outcome(**(run.results[name] or {}))) for name in rest if name in run.results
        )
        if run.failure is not None:
            # A check that ended the process is wrong; without one, all are.
            ended = [run.last_phase] if run.last_phase in rest else rest
            outcomes.update((name, Outcome(run.failure)) for name in ended if name not in outcomes)
        left = [name for name in rest if name not in outcomes]
        if left == rest:
            raise HostError(f"{label}: the child reported nothing")
        rest = left
    return outcomes


def _compared(before: ChildRun, after: ChildRun) -> Outcome:
    """Torch in a process before the one that rebinds was forked, and in one after it."""
    for run in (before, after):
        if run.failure is not None:
            return Outcome(run.failure)
    was, now = before.results["bound"], after.results["bound"]
    other = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    if other:
        return Outcome(f"a process that was forked later has other objects at {', '.join(other)}")
    return Outcome()
