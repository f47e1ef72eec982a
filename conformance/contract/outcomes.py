"""Outcomes of the contract's rows: a subject's runs are made once, and remembered.

Two children per subject: one that imports its runner, one with an engine; where speculation fails
there, another one without it. `bare`, on which no engine starts, has one in which nothing is in
force. A row that ends its process is red, and the run is made again without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.contract import CLAUSES
from conformance.contract.installed import contract_of_installed
from conformance.contract.probe import AT, key
from conformance.contract.rows import ContractRow
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs
from conformance.target import Subject

_CLAUSES_ENTRY = "conformance.contract.batch:run"
_CRASHES = 5
"""So many rows may end a subject's process before the rest is given up."""

_MODULES = {
    "bare": ["vllm.v1.worker.gpu_worker"],
    "upstream": ["vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner"],
    "ours": ["runner_under_test.worker"],
}


@dataclass(frozen=True)
class Outcome:
    """What a row came to: ``holds``, ``refused`` (allowed), ``red``, ``open`` (not checked)."""

    state: str
    text: str = ""


class ContractOutcomes:
    """Every row's outcome by subject."""

    def __init__(
        self, runs: Runs, generation: str = "v1", environment: dict[str, str] | None = None
    ) -> None:
        self._runs = runs
        self._generation = generation
        self._environment = environment
        self._results: dict[tuple[str, str], dict[str, Any]] = {}

    def of(self, subject: Subject, row: ContractRow) -> Outcome:
        """Check a row for a subject, along with all others of its run."""
        results = self._run(subject, row.context)
        cut = frozenset(results.get("cut", ()))
        if key(row) not in results:
            failure = (results["failure"] or "").partition("\n")[0]
            reason = failure or "no run of this suite comes through that context"
            return Outcome("open", f"not checked: {reason}")
        wrong = results[key(row)]
        if wrong is None:
            return Outcome("holds")
        if not is_red(row, wrong, cut):
            return Outcome("refused", f"{wrong['type']}: {wrong['message']}")
        return Outcome("red", told(row, wrong, certain=row.is_certain(cut)))

    def _run(self, subject: Subject, context: str) -> dict[str, Any]:
        place = "bare" if subject.name == "bare" else "import" if context == "import" else "engine"
        if (subject.name, place) not in self._results:
            run = {"bare": self._bare, "import": self._import, "engine": self._engine}[place]
            results = to_its_end(lambda skip: run(subject, skip))
            if place == "engine" and results["failure"]:
                # Speculation may be all that fails: what has nothing to do with it is checked
                # without, and what no run came to stays open, for the reason of the first.
                rest = to_its_end(lambda skip: self._engine(subject, skip, speculating=False))
                results = {**rest, **results}
            self._results[subject.name, place] = results
        return self._results[subject.name, place]

    def _bare(self, subject: Subject, skip: list[str]) -> ChildRun:
        return self._child("plain", {}, skip, f"{subject.name}, contract")

    def _import(self, subject: Subject, skip: list[str]) -> ChildRun:
        modules = _MODULES.get(subject.name) or [subject.name.partition(":")[0]]
        return self._child("imported", {"modules": modules}, skip, f"{subject.name}, import")

    def _engine(self, subject: Subject, skip: list[str], *, speculating: bool = True) -> ChildRun:
        arguments = {
            "worker_cls": subject.worker_cls,
            "model": str(self._runs.model("tiny-llama")),
            "draft": str(self._runs.model("tiny-llama-draft")) if speculating else None,
        }
        return self._child("engine", arguments, skip, f"{subject.name}, contract in an engine")

    def _child(self, entry: str, arguments: Any, skip: list[str], label: str) -> ChildRun:
        return self._runs.host.run(
            f"conformance.contract.probe:{entry}",
            {**arguments, "skip": skip, "generation": self._generation},
            label=label,
            environment=self._environment,
        )


def to_its_end(run: Callable[[list[str]], ChildRun]) -> dict[str, Any]:
    """Run, and again without each row that ended the process; those rows are red.

    ``run`` takes the keys of rows to leave out. A process that ends between rows, in vLLM's own
    code, is not run again: the rows that it did not come to have no result.
    """
    skip: list[str] = []
    crashed: dict[str, Any] = {}
    while True:
        done = run(skip)
        at = done.results.get(AT)
        ended = done.exit.signal is not None or done.exit.timed_out
        if at is None or at in done.results or not ended or len(skip) == _CRASHES:
            return {**done.results, **crashed, "failure": done.failure}
        skip.append(at)
        message = done.failure or "the process ended"
        crashed[at] = {"kind": "wrong", "type": "crash", "message": message, "traceback": ""}


def is_red(
    row: ContractRow, wrong: dict[str, str] | None, cut: frozenset[str] = frozenset()
) -> bool:
    """Whether what a child reported of a row is a fault; see `Use.is_certain` for ``cut``."""
    return wrong is not None and (row.is_certain(cut) or not _refuses(row, wrong))


def _refuses(row: ContractRow, wrong: dict[str, str]) -> bool:
    """Whether it said that it cannot, rather than answer, or break on what a stand-in lacks.

    Where no Triton compiles, any launch of a kernel is a TypeError; it is loud all the same.
    """
    clear = wrong["type"] not in ("AttributeError", "TypeError", "UnboundLocalError", "NameError")
    is_kernel = any(name.startswith("triton:") for name in row.attributes)
    return wrong["kind"] == "raises" and (clear or is_kernel)


def told(row: ContractRow, wrong: dict[str, str], *, certain: bool) -> str:
    """What a red row says to a person."""
    lines = [f"{row.tier} of {row.id}"]
    if row.clause is not None:
        lines.append(f"attributes: {', '.join(row.attributes or row.clause.attributes)}")
        lines.append(f"on a GPU: {row.clause.gpu}")
    lines.append(f"here: {wrong['type']}: {wrong['message']}")
    if row.uses:
        use = min(row.uses, key=lambda use: (not use.is_certain(), use.attribute))
        lines.append(f"used at: {use.where}")
        lines.append("reached: " + " -> ".join(use.chain))
        if not certain:
            lines.append("no proof that a CPU gets there: a clear error would do, an answer not")
    return "\n  ".join([*lines, wrong["traceback"]]).rstrip()


def check(
    host: Host, subject: Subject, names: list[str], environment: dict[str, str] | None = None
) -> dict[str, str | None]:
    """Check clauses by name, without an engine; one that ends the process is wrong."""
    outcomes: dict[str, str | None] = {}
    while len(outcomes) < len(names):
        rest = [name for name in names if name not in outcomes]
        run = host.run(
            _CLAUSES_ENTRY,
            {"subject": subject.name, "names": rest},
            label=f"{subject.name}, clauses",
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


def all_clauses() -> list[str]:
    """The names of every clause."""
    return [clause.name for clause in CLAUSES]


def uncovered(generation: str) -> list[str]:
    """Attributes that are reached and have no contract, each with where."""
    found: dict[str, str] = {}
    for use in contract_of_installed(generation).uncovered:
        found.setdefault(use.attribute, use.where)
    return [f"{attribute} ({where})" for attribute, where in found.items()]


def _text(wrong: dict[str, str]) -> str:
    return f"{wrong['message']}\n{wrong['traceback']}"
