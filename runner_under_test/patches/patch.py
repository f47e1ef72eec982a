"""What a patch is: one rebinding, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

APPLIED_AT = (
    "construction of runner_under_test.worker.CPUWorker, before vLLM's worker and runner run"
)


@dataclass(frozen=True)
class Patch:
    """One name that the CPU runner rebinds.

    ``target`` is the dotted path of the name (``torch.cuda.Stream``); ``build`` receives what is
    bound there and returns what takes its place, a new object each time, so that no two names
    ever share one (Dynamo keys its handlers on the object). ``owners`` names attributes through
    which objects at module level may hold the target too. ``undo`` runs after the name is
    restored and clears state that the stand-in left elsewhere.
    """

    target: str
    build: Callable[[Any], Any]
    why: str
    remove_when: str
    link: str = ""
    applied_at: str = APPLIED_AT
    versions: str = ""
    condition: Callable[[], bool] | None = None
    owners: tuple[str, ...] = ()
    undo: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """The patch's name in reports and in ``RUNNER_UNDER_TEST_WITHOUT``: its target."""
        return self.target


class PatchError(RuntimeError):
    """A patch that cannot be applied; the message says what to do."""


class AcceleratorPresent(PatchError):
    """This host has an accelerator: stand-ins for one would break it."""


class PatchTargetMissing(PatchError):
    """A patched name does not exist in this torch or vLLM."""
