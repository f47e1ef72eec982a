"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A function that breaks something of ours in a child, and the check that must turn red.

    ``plant`` is ``module:function``. ``check`` is a check of the suite, or of the contract's rows
    their tier and name, in whichever context: ``behaviour|streams/streams-compare-by-identity``.
    ``says`` is a part of what the check then tells. ``only`` limits a child to what has to be run,
    where the row of the check does not say it.
    """

    name: str
    plant: str
    check: str
    says: str = ""
    only: tuple[str, ...] = ()
    subject: str = "ours"
