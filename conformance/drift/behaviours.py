"""What torch's device names do on a host without an accelerator: measured, a table per torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from conformance.cache import FIXTURES
from conformance.drift.files import write_whole
from conformance.target import WrongUse

SCHEMA = "vllm-conformance/behaviours/1"
DIRECTORY = FIXTURES / "behaviours"
"""Where the tables are, ``torch-<version>.json`` each."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one name did: it was not there, it raised, or it gave something."""

    exists: bool
    how: str = ""
    """The expression that was evaluated."""
    raises: str = ""
    message: str = ""
    gives: str = ""

    @property
    def breaks(self) -> bool:
        """Whether code that uses the name so ends there."""
        return not self.exists or bool(self.raises)

    @property
    def text(self) -> str:
        """What happened, as part of a sentence."""
        if not self.exists:
            return "there is no such name"
        if self.raises:
            return f"`{self.how}` raises {self.raises}" + (
                f" ({self.message})" if self.message else ""
            )
        return f"`{self.how}` gives {self.gives}"


@dataclass(frozen=True, slots=True)
class Table:
    """The behaviours of one torch."""

    torch: str
    attributes: Mapping[str, Behaviour]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a table says of a name, and whether it is the table that was asked for."""

    behaviour: Behaviour | None
    torch: str
    """The torch that was measured; empty if no table has the name."""
    asked: str | None
    """The torch that the vLLM pins; None if it is not known."""

    @property
    def exact(self) -> bool:
        """Whether the torch that was asked for is the one that was measured."""
        return (
            self.behaviour is not None and self.asked is not None and _same(self.asked, self.torch)
        )

    @property
    def text(self) -> str:
        """The behaviour with its provenance."""
        if self.behaviour is None:
            return f"not measured{f' for torch {self.asked}' if self.asked else ''}"
        if self.exact:
            return f"{self.behaviour.text} (torch {self.torch})"
        other = (
            f"torch {self.asked}, which this vLLM pins, is not measured"
            if self.asked
            else "which torch this vLLM pins is not known"
        )
        return f"{self.behaviour.text} (torch {self.torch}; {other})"


class Behaviours:
    """All tables; asked for a torch that has none, the nearest one answers, and says so."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tuple(sorted(tables, key=lambda table: Version(table.torch)))

    def of(self, attribute: str, torch: str | None) -> Answer:
        """What ``attribute`` does on the torch that is asked for, or on the nearest one."""
        exact = self.table(torch)
        if exact is not None:
            return Answer(exact.attributes.get(attribute), exact.torch, torch)
        for table in self._by_distance(torch):
            behaviour = table.attributes.get(attribute)
            if behaviour is not None:
                return Answer(behaviour, table.torch, torch)
        return Answer(None, "", torch)

    def table(self, torch: str | None) -> Table | None:
        """The table of exactly this torch, whatever its build."""
        for table in self.tables:
            if torch is not None and _same(torch, table.torch):
                return table
        return None

    def _by_distance(self, torch: str | None) -> list[Table]:
        if torch is None:
            return list(reversed(self.tables))
        wanted = Version(torch).release

        def distance(table: Table) -> tuple[int, ...]:
            release = Version(table.torch).release
            return tuple(abs(a - b) for a, b in zip(wanted, release, strict=False))

        return sorted(self.tables, key=distance)


def load(directory: Path = DIRECTORY) -> Behaviours:
    """Read every table of a directory.

    Raises:
        WrongUse: one cannot be read; the sentence says how to make it anew.
    """
    return Behaviours(tuple(_load(path) for path in sorted(directory.glob("torch-*.json"))))


def write(table: Mapping[str, Any], directory: Path = DIRECTORY) -> Path:
    """Write a table that `conformance.drift.measure` made, whole or not at all."""
    head = {key: value for key, value in table.items() if key != "attributes"}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table["attributes"].items()
    )
    text = f'{json.dumps(head)[:-1]}, "attributes": {{\n{lines}\n}}}}\n'
    path = directory / f"torch-{table['torch']}.json"
    write_whole(path, text)
    return path


def _load(path: Path) -> Table:
    again = "measure it anew with `python -m conformance.drift.measure`."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        Version(data["torch"])
        attributes = {name: Behaviour(**value) for name, value in data["attributes"].items()}
        return Table(data["torch"], attributes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, InvalidVersion) as error:
        raise WrongUse(f"{path} is no table of behaviours ({error}): {again}") from error


def _same(one: str, other: str) -> bool:
    """Builds of one release behave alike here: what follows the plus is left out."""
    return Version(one).public == Version(other).public
