"""Events on a host without an accelerator.

Work on the CPU is done when the operator returns, so an event happens at the moment it is recorded.
What is kept: whether it was recorded, when, and whether it may be used for timing. Errors follow
torch's ``c10/core/impl`` and ``torch/csrc/Event.cpp`` (2.13).
"""

from __future__ import annotations

import time
from typing import Any

from runner_under_test.patches.devices import host_device
from runner_under_test.patches.patch import Patch


class Event:
    """Stands in for ``torch.Event``.

    Args:
        device: None, the CPU, its name or its index.
        enable_timing: whether ``elapsed_time`` may be asked.
        blocking: kept; waiting never takes time here.
        interprocess: kept.
    """

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self.device = host_device(device)
        self.enable_timing = bool(enable_timing)
        self.blocking = bool(blocking)
        self.interprocess = bool(interprocess)
        self._recorded_ns: int | None = None

    @property
    def recorded(self) -> bool:
        """Whether the event has been recorded."""
        return self._recorded_ns is not None

    @property
    def event_id(self) -> int:
        """The handle, an int; 0 before the first recording, as on a GPU."""
        return id(self) if self.recorded else 0

    def record(self, stream: Any = None) -> None:
        """Record the event in a stream, the current one if none is given."""
        _check_stream(stream)
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None:
        """Let a stream's later work wait for the event, which has happened or never will."""
        _check_stream(stream)

    def query(self) -> bool:
        """Whether the recorded work is done: True, and True before any recording too."""
        return True

    def synchronize(self) -> None:
        """Wait for the event; returns at once, before any recording too."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the time from this recording to another event's, in milliseconds.

        Raises:
            TypeError: ``end_event`` is no event.
            ValueError: one of the two was made without timing, or was not recorded.
        """
        if not isinstance(end_event, Event):
            raise TypeError(f"elapsed_time() needs an event, not {type(end_event).__name__}")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("elapsed_time() needs two events made with enable_timing=True")
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise ValueError("elapsed_time() needs two events that have been recorded")
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def __repr__(self) -> str:
        state = "recorded" if self.recorded else "not recorded"
        return f"<stand-in for {self._stands_for} {state}>"

    _stands_for = "torch.Event"


class CudaEvent(Event):
    """Stands in for ``torch.cuda.Event``, whose arguments differ; it is a ``torch.Event`` too."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
        self.external = bool(external)

    @property
    def cuda_event(self) -> int:
        """The handle, an int."""
        return self.event_id

    _stands_for = "torch.cuda.Event"


def _check_stream(stream: Any) -> None:
    if stream is not None and not hasattr(stream, "stream_id"):
        raise TypeError(f"a stream is needed, not {type(stream).__name__}")


PATCHES = (
    Patch(
        target="torch.Event",
        build=lambda _: Event,
        why="the runner makes its transfer and draft events with it; torch makes one for the CPU, "
        'whose record() raises RuntimeError ("cpu backend doesn\'t support events")',
        link="https://github.com/vllm-project/vllm/pull/23643",
        remove_when="torch.Event('cpu').record() works",
    ),
    Patch(
        target="torch.cuda.Event",
        build=lambda _: CudaEvent,
        why="asynchronous output and n-gram drafting on the device make events with it; "
        "without CUDA it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/pull/47868",
        remove_when="torch.cuda's events exist on hosts without an accelerator",
    ),
)
