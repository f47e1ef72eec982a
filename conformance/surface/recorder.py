"""The dynamic recorder: who reads which attribute of torch.cuda and torch.accelerator, and when.

Runs in the process of the engine. A module's class can be exchanged for a subclass, whose
``__getattribute__`` sees every read; taking the old class back leaves no trace. Names that a module
copied with ``from torch.cuda import X`` before the recorder was installed are not seen.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_NOT_REACHING = ("torch.", "conformance.", "runner_under_test.patches.")
"""Callers whose reads are no reach of the runner: torch's own, the harness's, the register's."""

RECORDED_MODULES = ("torch.cuda", "torch.accelerator")


@dataclass(frozen=True)
class Touch:
    """Reads of one attribute from one line of code in one phase."""

    attribute: str
    phase: str
    module: str
    line: int
    count: int


class Recorder:
    """Counts reads by attribute, phase and calling line."""

    def __init__(self) -> None:
        self.phase = "import"
        self._reads: Counter[tuple[str, str, str, int]] = Counter()

    @property
    def touches(self) -> tuple[Touch, ...]:
        """All reads so far, in a stable order."""
        return tuple(
            Touch(attribute, phase, module, line, count)
            for (attribute, phase, module, line), count in sorted(self._reads.items())
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the context is open."""
        modules = [sys.modules[name] for name in RECORDED_MODULES]
        classes = [module.__class__ for module in modules]
        for module in modules:
            module.__class__ = self._recording_class(module.__name__)
        try:
            yield
        finally:
            for module, cls in zip(modules, classes, strict=True):
                module.__class__ = cls

    def _recording_class(self, prefix: str) -> type[types.ModuleType]:
        recorder = self
        read = types.ModuleType.__getattribute__

        class RecordedModule(types.ModuleType):
            def __getattribute__(self, name: str) -> object:
                if not name.startswith("__"):
                    caller = sys._getframe(1)
                    module = caller.f_globals.get("__name__", "?") + "."
                    if not module.startswith(_NOT_REACHING):
                        key = (f"{prefix}.{name}", recorder.phase, module[:-1], caller.f_lineno)
                        recorder._reads[key] += 1
                return read(self, name)

        return RecordedModule
