"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A function that breaks something of ours in a child, and the check that must turn red.

    ``plant`` is ``module:function``; it runs where the stand-ins of ours are in force. ``check`` is
    a row of the contract, in whichever context: ``behaviour|streams/streams-compare-by-identity``.
    """

    name: str
    plant: str
    check: str
