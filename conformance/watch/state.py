"""Which releases were checked, when, and what it came to: one file, which is committed.

    {"schema": "vllm-conformance/watch/1", "packages": {
    "vllm": [
    {"version": "0.32.0", "outcome": "baseline", "date": "2026-11-30"},
    {"version": "0.33.0", "outcome": "findings", "date": "2026-11-30", "against": "0.32.0", ...}
    ]}}

A release has a line; what is empty is left out of it. Releases older than a package's first line,
which is where its watch began, are never looked at.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from packaging.version import InvalidVersion, Version

from conformance.target import WrongUse

SCHEMA = "vllm-conformance/watch/1"

Outcome = Literal["baseline", "clean", "incomplete", "findings", "skipped"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One release.

    ``baseline`` is where the watch began, and was compared with nothing; ``incomplete`` is a
    release without findings of which a part could not be compared; ``skipped`` is entered by hand,
    for a release that never can be checked, and has a ``reason``.
    """

    version: str
    outcome: Outcome
    date: str
    against: str = ""
    """The release that it was compared with."""
    errors: int = 0
    warnings: int = 0
    suite: str = ""
    """What the suite said, if it was run: ``conforms`` or ``findings``."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dictionary without what is empty."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, data: Any) -> Entry:
        """Read what `to_json` gave; ValueError for anything else."""
        if not isinstance(data, dict):
            raise ValueError(f"{data!r} is no release")
        types = {item.name: int if item.type == "int" else str for item in fields(cls)}
        for key, value in data.items():
            if key not in types:
                raise ValueError(f"{key!r} is unknown")
            if type(value) is not types[key] or not value:
                raise ValueError(f"{key} is {value!r}")
        for key in ("version", "outcome", "date"):
            if key not in data:
                raise ValueError(f"a release has no {key}")
        try:
            Version(data["version"])
        except InvalidVersion as error:
            raise ValueError(f"{data['version']!r} is no version") from error
        datetime.date.fromisoformat(data["date"])
        if data["outcome"] not in get_args(Outcome):
            raise ValueError(f"{data['outcome']!r} is no outcome")
        if data["outcome"] == "skipped" and "reason" not in data:
            raise ValueError(f"{data['version']} is skipped without a reason")
        return cls(**data)


@dataclass(frozen=True, slots=True)
class State:
    """The releases of each package, oldest first."""

    packages: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    def of(self, package: str) -> tuple[Entry, ...]:
        """A package's releases; none if it was never looked at."""
        return self.packages.get(package, ())

    def having(self, package: str, entries: Iterable[Entry]) -> State:
        """This state with releases entered, in the place of those of the same version."""
        known = {Version(entry.version): entry for entry in (*self.of(package), *entries)}
        ordered = tuple(known[version] for version in sorted(known))
        return State({**self.packages, package: ordered})


def load(path: Path) -> State | None:
    """Read the file; None if there is none.

    Raises:
        WrongUse: it cannot be read, or is no state of this schema. It is left as it is.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WrongUse(f"The state {path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise WrongUse(f"{path} is no JSON ({error}): {_ADVICE}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise WrongUse(
            f"{path} is no state that is read here, its schema is {found!r} and not {SCHEMA!r}: "
            f"use the harness that wrote it, or {_ADVICE}"
        )
    try:
        return _state(data)
    except (ValueError, TypeError) as error:
        raise WrongUse(f"{path} is damaged ({error}): {_ADVICE}") from error


def save(state: State, path: Path) -> None:
    """Write the file, whole or not at all, so that it outlasts a loss of power.

    Raises:
        WrongUse: it cannot be written; what was there is as it was.
    """
    part = None
    try:
        descriptor, part = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dumps(state))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)  # a temporary file is its owner's only
        os.replace(part, path)
        part = None
        _sync_folder(path.parent)
    except OSError as error:
        raise WrongUse(
            f"The state {path} cannot be written ({error.strerror or error}), and is as it was: "
            "make room, or name another file (--state)."
        ) from error
    finally:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)


def dumps(state: State) -> str:
    """Return the file's text; equal states have equal texts."""
    packages = ",\n".join(
        f"{json.dumps(package)}: [\n"
        + ",\n".join(json.dumps(entry.to_json()) for entry in state.packages[package])
        + "\n]"
        for package in sorted(state.packages)
    )
    return f'{{"schema": {json.dumps(SCHEMA)}, "packages": {{\n{packages}\n}}}}\n'


_ADVICE = (
    "restore it from git, or move it away; without one the watch begins at the newest releases."
)


def _state(data: dict[str, Any]) -> State:
    packages = data.get("packages")
    if data.keys() != {"schema", "packages"} or not isinstance(packages, dict):
        raise ValueError("it holds a schema and packages, and nothing else")
    state = State()
    for package, items in packages.items():
        if not isinstance(items, list) or not items:
            raise ValueError(f"{package} has no list of releases")
        entries = [Entry.from_json(item) for item in items]
        state = state.having(package, entries)
        if len(state.of(package)) != len(entries):
            raise ValueError(f"{package} has a release twice")
    return state


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
