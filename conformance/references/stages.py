"""Recording in stages: in order of value, within a budget of time, and again where it stopped.

Nothing here knows what is recorded. A piece is there whole or not at all, so a second call goes on
with what the first one left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec

__all__ = ["Piece", "Skipped", "Stage", "Tally", "run"]


class Skipped(Exception):
    """What a piece needs is missing on this machine; the message says what."""


@dataclass(frozen=True)
class Piece:
    """One file of a recording.

    ``seconds`` is the longest that it may take; ``record`` keeps to it, writes all or nothing, and
    returns a few words on what came of it. ``is_there`` says whether it was recorded before, on
    such a machine and of the same things.
    """

    name: str
    seconds: float
    is_there: Callable[[], bool]
    record: Callable[[], str]


@dataclass(frozen=True)
class Stage:
    """Pieces of one kind, and the packages without which there are none.

    ``at_once`` pieces are recorded side by side. ``pieces`` may raise `Skipped`.
    """

    name: str
    pieces: Callable[[], Sequence[Piece]]
    packages: tuple[str, ...] = ()
    at_once: int = 1


@dataclass
class Tally:
    """The names of the pieces, by what came of them."""

    recorded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status: 1 if a piece failed, 2 if there is none at all, else 0."""
        if self.failed:
            return 1
        return 0 if self.recorded or self.kept else 2


def run(
    stages: Sequence[Stage],
    minutes: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    has: Callable[[str], bool] = lambda package: find_spec(package) is not None,
    interrupted: Callable[[], None] = lambda: None,
) -> Tally:
    """Record stage after stage; begin nothing that may end after so many minutes.

    ``say`` gets a line for each piece. On an interrupt ``interrupted`` is called, and is to end
    what pieces are waiting for; the interrupt then goes on.
    """
    tally, end = Tally(), clock() + 60 * minutes

    def one(stage: str, piece: Piece) -> None:
        name, begun = f"{stage}/{piece.name}", clock()
        if piece.is_there():
            tally.kept.append(name)
            return
        if begun + piece.seconds > end:
            tally.left.append(name)
            return
        try:
            told = piece.record()
        except Skipped as error:
            say(f"{name}: skipped: {error}")
        except Exception as error:
            tally.failed.append(name)
            lines = str(error).splitlines() or [""]
            told = " ... ".join(dict.fromkeys((lines[0], lines[-1])))  # of a traceback, the error
            say(f"{name}: failed: {type(error).__name__}: {told}")
        else:
            tally.recorded.append(name)
            say(f"{name}: {told} ({clock() - begun:.0f} s)")

    for stage in stages:
        missing = [package for package in stage.packages if not has(package)]
        if missing:
            say(f"{stage.name}: skipped: no {', '.join(missing)} here")
            continue
        try:
            pieces = stage.pieces()
        except Skipped as error:
            say(f"{stage.name}: skipped: {error}")
            continue
        with ThreadPoolExecutor(stage.at_once) as pool:
            try:
                for done in [pool.submit(one, stage.name, piece) for piece in pieces]:
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                interrupted()
                raise
    for state in ("kept", "left", "failed"):
        names = getattr(tally, state)
        if names:
            word = {"kept": "were there", "left": "are left for another call"}.get(state, state)
            say(f"{len(names)} {word}: {', '.join(names)}")
    return tally
