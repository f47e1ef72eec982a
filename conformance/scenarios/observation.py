"""What a run in a child process shows: the data that checks read. JSON in, JSON out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from conformance.surface.recorder import Touch


@dataclass(frozen=True)
class Exit:
    """How a child process ended, and what it left."""

    status: int | None
    """Its exit status; None if a signal ended it."""
    signal: str | None
    """The signal's name; None if it exited."""
    timed_out: bool
    seconds: float
    processes_left: tuple[str, ...] = ()
    """Command lines of descendants that were alive after it, and were then ended."""
    files_left: tuple[str, ...] = ()
    """Names below its temporary directory, and in shared memory, that it created and left."""

    @property
    def is_clean(self) -> bool:
        """Exit status 0, by itself."""
        return self.status == 0 and not self.timed_out

    @property
    def sentence(self) -> str:
        """How it ended, for a message."""
        if self.timed_out:
            return f"was stopped at its time limit, after {self.seconds:.0f} s"
        if self.signal is not None:
            return f"was ended by {self.signal} after {self.seconds:.1f} s"
        return f"exited with status {self.status} after {self.seconds:.1f} s"


@dataclass(frozen=True)
class Raised:
    """An exception that a phase ended with."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Phase:
    """One phase of a run, in order; ``ended`` is false if the process died inside it."""

    name: str
    ended: bool
    seconds: float = 0.0
    raised: Raised | None = None
    rss_bytes: int = 0
    """Resident memory of the process when the phase ended."""


@dataclass(frozen=True)
class ChildRun:
    """A child process from its fork to its end."""

    label: str
    exit: Exit
    phases: tuple[Phase, ...]
    results: dict[str, Any]
    """What the child reported, by name."""
    done: bool
    """Whether it did its job to the end."""
    stderr: str
    stdout: str

    @property
    def last_phase(self) -> str:
        """The innermost phase that the process was in when it ended."""
        unended = [phase.name for phase in self.phases if not phase.ended]
        if unended:
            return unended[-1]
        return self.phases[-1].name if self.phases else "start"

    @property
    def failure(self) -> str | None:
        """Why the run did not complete, in a few lines; None if it did."""
        raised = next((phase for phase in self.phases if phase.raised), None)
        if raised is not None and raised.raised is not None:
            error = raised.raised
            return (
                f"{self.label}: {error.type} in phase {raised.name!r}: {error.message}\n"
                f"{error.traceback}"
            )
        if not self.exit.is_clean or not self.done:
            return (
                f"{self.label}: the process {self.exit.sentence}, in phase {self.last_phase!r}\n"
                f"{tail(self.stderr)}"
            )
        return None

    @property
    def touches(self) -> tuple[Touch, ...]:
        """The reads of device attributes that its recorder saw; none where nothing was recorded."""
        return tuple(Touch(**touch) for touch in self.results.get("touches", ()))

    @property
    def summary(self) -> dict[str, Any]:
        """How it ended, its phases, and the attributes that vLLM touched in each; plain data."""
        touched: dict[str, dict[str, int]] = {}
        for touch in self.touches:
            if not touch.by_vllm:
                continue
            counts = touched.setdefault(touch.phase, {})
            counts[touch.attribute] = counts.get(touch.attribute, 0) + touch.count
        return {
            "exit": asdict(self.exit),
            "phases": [asdict(phase) for phase in self.phases],
            "touched": touched,
        }


Logprobs = tuple[dict[int, float], ...]
"""By position: token id to log-probability, in nats."""


@dataclass(frozen=True)
class Completion:
    """One of the texts that a request got."""

    tokens: tuple[int, ...]
    text: str = ""
    logprobs: Logprobs = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Completion:
        """Read what `driving.generate.described` wrote."""
        return cls(
            tokens=tuple(data["tokens"]),
            text=data["text"],
            logprobs=_logprobs(data["logprobs"]),
            finish_reason=data["finish_reason"],
            stop_reason=data["stop_reason"],
        )


@dataclass(frozen=True)
class Generation:
    """What one request got: its first completion's tokens and log-probabilities, and the rest.

    ``prompt_logprobs`` has an empty first position where they were asked for, and nothing
    otherwise. ``cached`` is how many tokens of the prompt came from the prefix cache.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: Logprobs = ()
    prompt_logprobs: Logprobs = ()
    cached: int | None = None
    completions: tuple[Completion, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Read what `driving.generate.described` wrote; JSON has no integer keys."""
        return cls(
            prompt=tuple(data["prompt"]),
            tokens=tuple(data["tokens"]),
            logprobs=_logprobs(data["logprobs"]),
            prompt_logprobs=_logprobs(data.get("prompt_logprobs", ())),
            cached=data.get("cached"),
            completions=tuple(map(Completion.from_json, data.get("completions", ()))),
        )


def _logprobs(rows: Iterable[dict[str, float]]) -> Logprobs:
    return tuple({int(token): value for token, value in row.items()} for row in rows)


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-lines:])
