"""Inside a forked child: set it up, run its job, and write down what happens as it happens."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

EVENTS = "events.jsonl"


class Journal:
    """The child's record of phases and results, flushed line by line so that a crash keeps it."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / EVENTS).open("a")
        self.enter_hooks: list[Callable[[str], None]] = []
        self._open: list[str] = []

    @property
    def phase(self) -> str:
        """The innermost open phase."""
        return self._open[-1] if self._open else "start"

    @contextmanager
    def phase_of(self, name: str) -> Iterator[None]:
        """Run a phase; an exception is written down and goes on."""
        begun = time.monotonic()
        self._write({"event": "begin", "phase": name})
        self._open.append(name)
        self._announce()
        raised = None
        try:
            yield
        except BaseException as error:
            raised = None if getattr(error, "_journalled", False) else _describe(error)
            with suppress(AttributeError):
                error._journalled = True  # type: ignore[attr-defined]
            raise
        finally:
            self._open.pop()
            self._announce()
            self._write(
                {
                    "event": "end",
                    "phase": name,
                    "seconds": time.monotonic() - begun,
                    "raised": raised,
                    "rss": _resident_bytes(),
                }
            )

    def result(self, name: str, value: Any) -> None:
        """Report a result; a later one of the same name replaces it."""
        self._write({"event": "result", "name": name, "value": value})

    def done(self) -> None:
        """Say that the job was done to its end; a process can exit with status 0 before that."""
        self._write({"event": "done"})

    def _announce(self) -> None:
        for hook in self.enter_hooks:
            hook(self.phase)

    def _write(self, event: dict[str, Any]) -> None:
        print(json.dumps(event), file=self._file, flush=True)


def run_job(job: dict[str, Any]) -> None:
    """Run the job's entry point, a function that takes a Journal and the job's arguments."""
    directory = Path(job["directory"])
    _redirect(directory)
    faulthandler.enable()
    os.environ.update(job["environment"])
    os.environ["TMPDIR"] = str(directory / "tmp")
    import tempfile

    tempfile.tempdir = None
    journal = Journal(directory)
    module, _, function = job["entry"].partition(":")
    try:
        getattr(importlib.import_module(module), function)(journal, **job["arguments"])
    except Exception as error:
        if not getattr(error, "_journalled", False):
            journal.result("error", _describe(error))
        traceback.print_exc()
        sys.exit(1)
    journal.done()


def _redirect(directory: Path) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def _describe(error: BaseException) -> dict[str, str]:
    lines = traceback.format_exception(error)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(lines)[-6000:],
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
