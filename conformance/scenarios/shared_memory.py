"""Which files in shared memory a process and its descendants made, and whether they still exist.

``/dev/shm`` is everybody's: other runs make and remove files there meanwhile. A new file counts as
a process's own if the process, or a descendant, was seen with it mapped or open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

DIRECTORY = Path("/dev/shm")
_TRIES = 100


class SharedMemoryWatch:
    """Attributes new files to processes, by looking while they run; `look` often."""

    def __init__(self) -> None:
        self._before = _names()
        self._unattributed: dict[str, int] = {}
        self._own: set[str] = set()

    def look(self, process: psutil.Process) -> None:
        """Look for new files, and for who has them; a file nobody shows up with is given up."""
        for name in _names() - self._before - self._own - self._unattributed.keys():
            self._unattributed[name] = 0
        wanted = {name for name, tries in self._unattributed.items() if tries < _TRIES}
        if not wanted:
            return
        for name in wanted:
            self._unattributed[name] += 1
        held = _held_by((process, *_descendants(process)))
        for name in wanted:
            if any(name in text for text in held):
                self._own.add(name)
                del self._unattributed[name]

    @property
    def left(self) -> list[str]:
        """The processes' own files that exist now."""
        return sorted(str(DIRECTORY / name) for name in self._own & _names())


def _names() -> set[str]:
    try:
        return set(os.listdir(DIRECTORY))
    except OSError:
        return set()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _held_by(processes: Iterable[psutil.Process]) -> list[str]:
    """What is mapped by, and open in, the processes: text in which names can be looked for."""
    texts = []
    for process in processes:
        entry = Path("/proc") / str(process.pid)
        try:
            texts.append((entry / "maps").read_text())
            texts.extend(os.readlink(link) for link in (entry / "fd").iterdir())
        except OSError:  # it has ended, or is another user's
            continue
    return texts
