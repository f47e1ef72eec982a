"""``vllm-conformance replay``: ids in, text and exit status out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.replay import installed as suite
from conformance.replay import kept
from conformance.replay.history import HISTORY, Fault, Shown, SuiteLook, chosen, load
from conformance.replay.installed import Suite
from conformance.replay.model import Answer, Checked, Colour, Looked, Replay, Replayed
from conformance.replay.render import RENDERERS
from conformance.target import installed_versions

FORMATS = tuple(RENDERERS)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    ids: tuple[str, ...] = ()
    format: str = "table"
    installed_only: bool = False
    fetch: bool = False
    history: Path = HISTORY


def run(options: Options) -> tuple[str, int]:
    """Return what to print, and the exit status: 1 if something is other than it has to be.

    Raises:
        WrongUse: there is no such entry, or the file of entries is not what it should be.
    """
    faults = chosen(load(options.history), options.ids)
    replay = replay_of(
        faults,
        installed=installed_versions().vllm,
        installed_only=options.installed_only,
        fetch=options.fetch,
    )
    return RENDERERS[options.format](replay), int(replay.fails)


def replay_of(
    faults: Iterable[Fault],
    *,
    installed: str | None = None,
    installed_only: bool = False,
    fetch: bool = False,
    run_suite: Suite = suite.run,
) -> Replay:
    """Look at each fault.

    Checks of the suite are run if ``installed`` is a version they name. With ``fetch`` the sources
    of releases of which nothing is kept are read from the package index.
    """
    wanted = tuple(faults)
    ran = run_suite(
        shown.look.check
        for fault in wanted
        for shown in fault.shown
        if isinstance(shown.look, SuiteLook) and installed in (*shown.had, shown.green)
    )
    found = []
    for fault in wanted:
        looks = [
            shown
            for shown in fault.shown
            if not installed_only
            or (isinstance(shown.look, SuiteLook) and installed in (*shown.had, shown.green))
        ]
        if looks or not installed_only:
            looked = tuple(_looked(shown, installed, ran, fetch) for shown in looks)
            found.append(Replayed(fault, looked))
    return Replay(installed, tuple(found))


def _looked(shown: Shown, installed: str | None, ran: Mapping[str, Answer], fetch: bool) -> Looked:
    def checked(version: str, expected: Colour) -> Checked:
        look = shown.look
        if not isinstance(look, SuiteLook):
            answer = kept.answer(look, version, fetch=fetch)
        elif version != installed:
            answer = suite.elsewhere(version)
        else:
            answer = ran[look.check]
        return Checked(version, expected, shown.says, answer)

    return Looked(
        shown,
        tuple(checked(version, "red") for version in shown.had),
        tuple(checked(version, "green") for version in (shown.green,) if version),
    )
