"""A clause of the contract: one claim about attributes, which a child process can check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Diverges(AssertionError):
    """A claim does not hold: something answered, and not as a GPU does.

    Whatever else a check raises comes from the attribute itself, which then refuses to answer.
    """


@dataclass(frozen=True)
class Clause:
    """A claim, and the function that raises if it does not hold.

    ``attributes`` are the surface's names of what it speaks of. ``gpu`` says what they do on a GPU
    and where that is written. ``bare_holds`` is true where unpatched torch keeps the claim on the
    CPU too, so that only a stand-in can break it.
    """

    name: str
    attributes: tuple[str, ...]
    gpu: str
    check: Callable[[], Any]
    versions: str = ""
    bare_holds: bool = False
    host_only: bool = False
    """It says what a host without an accelerator answers; on a GPU it does not hold."""


def clause(
    *attributes: str,
    gpu: str,
    versions: str = "",
    bare_holds: bool = False,
    host_only: bool = False,
) -> Callable[[Callable[[], Any]], Clause]:
    """Make a clause of a function, whose name is the claim."""

    def make(check: Callable[[], Any]) -> Clause:
        family = check.__module__.rpartition(".")[2]
        name = f"{family}/{check.__name__.replace('_', '-')}"
        return Clause(name, attributes, gpu, check, versions, bare_holds, host_only)

    return make


def clauses_of(namespace: dict[str, Any]) -> tuple[Clause, ...]:
    """Return a module's clauses in the order of their definition."""
    return tuple(value for value in namespace.values() if isinstance(value, Clause))


def the_device() -> Any:
    """The ``torch.device`` that a clause is about: the accelerator, or the CPU where none is."""
    import torch

    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def require(holds: object, message: str) -> None:
    """Raise Diverges with a sentence unless it holds."""
    if not holds:
        raise Diverges(message)


def require_raises(call: Callable[[], Any], what: str) -> None:
    """Raise Diverges unless the call raises."""
    try:
        returned = call()
    except Exception:
        return
    raise Diverges(f"{what} raised nothing, and returned {returned!r}")
