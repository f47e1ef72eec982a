"""One watch at a time on one state."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conformance.target import WrongUse


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Hold the lock beside a state; its file is gone afterwards.

    The lock is the kernel's, so that a watch that was killed leaves none behind.

    Raises:
        WrongUse: another watch holds it, or no file can be made there.
    """
    path = state.with_name(f"{state.name}.lock")
    descriptor = _take(path, state)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who opened it before sees that it is another file
        os.close(descriptor)


def _take(path: Path, state: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WrongUse(
                f"Beside the state {state} no file can be made ({error.strerror or error}): "
                "name another one (--state), or look without one being written (--dry-run)."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, descriptor):
                return descriptor
            os.close(descriptor)  # its last holder has removed it: take the new one
        except BlockingIOError:
            os.close(descriptor)
            raise WrongUse(
                f"Another watch is at work on {state}: wait for its end, or name another state "
                "(--state)."
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise WrongUse(
                f"{path} cannot be locked ({error.strerror or error}): name a state on another "
                "file system (--state)."
            ) from error


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
