"""What a replay comes to: for each fault its looks, for each look its versions. Plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from conformance.replay.history import Fault, Shown

SCHEMA = "vllm-conformance/replay/1"

Colour = Literal["red", "green", "not checked", "absent"]
"""``absent`` is a check that the suite has not got: a look that asks nothing."""

State = Literal["fails", "shown", "its kind", "not checked", "not here"]
STATES: tuple[State, ...] = ("fails", "shown", "its kind", "not checked", "not here")
"""Of a fault, worst first. ``shown``: red where it was and green where it was not, as it must be.
``its kind``: so are others of its kind, and the fault itself cannot be seen here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look found in one version."""

    colour: Colour
    text: str
    """What the harness says; why, and what to run, where it was not checked."""
    also: tuple[str, ...] = ()
    """More that it says there: several findings can have the same fields."""

    def says(self, text: str) -> bool:
        """Whether it says so."""
        return any(text in said for said in (self.text, *self.also))


@dataclass(frozen=True, slots=True)
class Checked:
    """One version of a look: what was expected, and what was found."""

    version: str
    expected: Colour
    says: str
    """What has to be said where it is red."""
    answer: Answer

    @property
    def problem(self) -> str:
        """What is wrong, as a sentence; "" if nothing is, or nothing was checked."""
        found = self.answer
        if found.colour == "not checked":
            return ""
        if found.colour != self.expected:
            return f"{self.version} has to be {self.expected}, and is {found.colour}: {found.text}"
        if self.expected == "red" and not found.says(self.says):
            return (
                f"{self.version} is red as it has to be, and does not say {self.says!r}: "
                f"{found.text}"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {
            "version": self.version,
            "expected": self.expected,
            "found": self.answer.colour,
            "text": self.answer.text,
            "problem": self.problem or None,
        }


@dataclass(frozen=True, slots=True)
class Looked:
    """A look with what came of it. ``red`` are the versions that had it, ``green`` the other."""

    shown: Shown
    red: tuple[Checked, ...]
    green: tuple[Checked, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with it."""
        return tuple(item.problem for item in (*self.red, *self.green) if item.problem)

    @property
    def checked(self) -> bool:
        """Whether at least one version that had it was asked."""
        return any(item.answer.colour != "not checked" for item in self.red)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {
            "by": self.shown.by,
            "of": self.shown.of,
            "look": self.shown.look.text,
            "says": self.shown.says,
            "unfixed": self.shown.unfixed or None,
            "had": [item.to_json() for item in self.red],
            "green": [item.to_json() for item in self.green],
        }


@dataclass(frozen=True, slots=True)
class Replayed:
    """A fault with its looks."""

    fault: Fault
    looks: tuple[Looked, ...]

    @property
    def state(self) -> State:
        """What it came to."""
        if any(look.problems for look in self.looks):
            return "fails"
        if any(look.checked for look in self.looks if look.shown.of == "fault"):
            return "shown"
        if any(look.checked for look in self.looks):
            return "its kind"
        return "not checked" if self.looks else "not here"

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        fault = self.fault
        return {
            "id": fault.id,
            "link": fault.link,
            "what": fault.what,
            "kind": fault.kind,
            "reported": fault.reported,
            "state": self.state,
            "not_here": fault.not_here or None,
            "shown": [look.to_json() for look in self.looks],
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """All of it. ``installed`` is the vLLM that checks of the suite could be run on."""

    installed: str | None
    faults: tuple[Replayed, ...]

    @property
    def counts(self) -> dict[State, int]:
        """How many faults came to each state."""
        found = Counter(item.state for item in self.faults)
        return {state: found[state] for state in STATES}

    @property
    def fails(self) -> bool:
        """Whether something is other than it has to be."""
        return bool(self.counts["fails"])

    def to_json(self) -> dict[str, Any]:
        """As in ``replay --format json``."""
        return {
            "schema": SCHEMA,
            "installed": self.installed,
            "counts": {state.replace(" ", "_"): n for state, n in self.counts.items()},
            "faults": [item.to_json() for item in self.faults],
        }
