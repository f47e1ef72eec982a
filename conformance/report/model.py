"""The result of a session: a table of checks and subjects. JSON in, JSON out; never torch."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SCHEMA = "vllm-conformance/results/1"


class State(StrEnum):
    """What a check came to for one subject."""

    OK = "ok"
    RED = "red"
    EXPECTED_RED = "expected red"
    """It fails, and an expectation, or the nature of `bare`, says so."""
    NOT_CHECKED = "not checked"
    """What it looks at did not come about: the run it belongs to did not complete."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Cell:
    """One check for one subject."""

    state: State
    detail: str = ""
    seconds: float = 0.0


@dataclass
class Row:
    """One check: its claim, what it was held against, and a cell per subject.

    Checks of one ``group`` are told together where there is no room for each of them; ``context``
    is the phase of the runner's life that a row of the contract is about.
    """

    check: str
    area: str
    claim: str
    reference: str
    group: str = ""
    context: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)


@dataclass
class Report:
    """All rows of a session, and what they depend on."""

    versions: dict[str, str | None]
    environment: dict[str, str]
    subjects: tuple[str, ...]
    rows: dict[str, Row] = field(default_factory=dict)
    observations: list[dict[str, Any]] = field(default_factory=list)
    """One per run: subject, scenario, exit, phases with seconds and bytes, attributes touched."""
    seconds: float = 0.0

    def add(self, row: Row, subject: str, cell: Cell) -> None:
        """Enter a cell; a row is known by its check, and a new subject gets the next column."""
        if subject not in self.subjects:
            self.subjects = (*self.subjects, subject)
        self.rows.setdefault(row.check, row).cells[subject] = cell

    def count(self, subject: str, state: State) -> int:
        """How many checks of a subject came to a state."""
        return sum(
            1 for row in self.rows.values() if (c := row.cells.get(subject)) and c.state is state
        )

    @property
    def findings(self) -> list[tuple[Row, str, Cell]]:
        """Every red cell that nothing had announced."""
        return [
            (row, subject, cell)
            for row in self.rows.values()
            for subject, cell in row.cells.items()
            if cell.state is State.RED
        ]

    @property
    def conforms(self) -> bool:
        """Whether checks were made, and nothing was found."""
        return bool(self.rows) and not self.findings

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with its schema's name."""
        data = asdict(self)
        data["rows"] = list(data["rows"].values())
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """Read what `to_json` gave; ValueError for anything else."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"no result of this version: its schema is {data.get('schema')!r}")
        rows = {}
        for item in data["rows"]:
            cells = {
                subject: Cell(State(cell["state"]), cell["detail"], cell["seconds"])
                for subject, cell in item.pop("cells").items()
            }
            rows[item["check"]] = Row(**item, cells=cells)
        return cls(
            versions=data["versions"],
            environment=data["environment"],
            subjects=tuple(data["subjects"]),
            rows=rows,
            observations=data["observations"],
            seconds=data["seconds"],
        )

    def write(self, directory: Path) -> Path:
        """Write ``results.json`` into a directory, whole or not at all, and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "results.json"
        unfinished = directory / f".results.{os.getpid()}"
        unfinished.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        unfinished.replace(path)
        return path
