"""Streams on a host without an accelerator.

CPU operators have finished when they return, so a stream has nothing to order; what remains is
its identity: which stream is current, in which thread, inside which context, and what a caller may
pass. The behaviour follows torch's documentation of ``torch.cuda.Stream`` and
``torch.cuda.StreamContext``, and its ``torch/cuda/streams.py``.
"""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any

import torch

from runner_under_test.patches import events
from runner_under_test.patches.devices import host_device
from runner_under_test.patches.patch import Patch

_stream_ids = itertools.count(1)
_DEFAULT_STREAM_ID = 0


class Stream:
    """Stands in for ``torch.cuda.Stream``: an identity that the thread can make current.

    Args:
        device: None, a device, its name or its index; here the host's CPU is the only one.
        priority: kept, as there is nothing to schedule.
        stream_id: the identity of an existing stream, as the GPU's constructor takes it together
            with ``device_index`` and ``device_type``.

    Raises:
        RuntimeError: the device is not this host's.
        TypeError: an argument that the GPU's constructor does not know.
    """

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int | None = None,
    ) -> None:
        self.device: torch.device = host_device(device)
        self.priority = int(priority)
        if stream_id is None:
            stream_id = next(_stream_ids) if stream_ptr is None else int(stream_ptr)
        self.stream_id = int(stream_id)
        self.device_index = self.device.index if device_index is None else int(device_index)
        self.device_type = 0 if device_type is None else int(device_type)
        self._outer: list[Stream] = []

    @property
    def cuda_stream(self) -> int:
        """The handle, an int; 0 is the default stream."""
        return self.stream_id

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event, which on this host has happened."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let later work wait for another stream's, which on this host is done."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Record an event here, a new one if none is given, and return it."""
        if event is None:
            event = events.CudaEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: True, as CPU operators finish before they return."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is being captured from the stream: never, on a host."""
        return False

    def synchronize(self) -> None:
        """Wait for the stream's work, of which none is outstanding."""

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        torch.cuda.set_stream(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.cuda.set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Stream):
            return (self.stream_id, self.device) == (other.stream_id, other.device)
        return False

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<stand-in for torch.cuda.Stream device={self.device} stream={self.stream_id:#x}>"


class StreamContext:
    """Stands in for ``torch.cuda.StreamContext``; a stream of None makes it do nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._outer: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        # Read first: the argument may be no stream, and then nothing has changed yet.
        host_device(self.stream.device)
        self._outer = current_stream()
        # Through the attribute, so that vLLM's own record of the current stream sees it.
        torch.cuda.set_stream(self.stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._outer is not None:
            torch.cuda.set_stream(self._outer)
            self._outer = None


class _Current(threading.local):
    """The current stream of each thread; every thread begins on the default stream."""

    stream: Stream | None = None


_current = _Current()
_default = Stream(stream_id=_DEFAULT_STREAM_ID)


def current_stream(device: Any = None) -> Stream:
    """Return the stream that is current in this thread."""
    host_device(device)
    return _current.stream or _default


def set_stream(stream: Stream | None) -> None:
    """Make a stream current in this thread; None changes nothing, as on a GPU."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise AttributeError(f"{type(stream).__name__!r} object has no attribute 'stream_id'")
    _current.stream = stream


def forget_streams() -> None:
    """Return this thread to the default stream, in vLLM's own record too."""
    _current.__dict__.pop("stream", None)
    from vllm.utils import torch_utils

    vars(torch_utils._current_stream_tls).pop("value", None)


def _current_stream(_: Any) -> Any:
    def stand_in_current_stream(device: Any = None) -> Stream:
        return current_stream(device)

    return stand_in_current_stream


def _stream(_: Any) -> Any:
    def stand_in_stream(stream: Stream | None) -> StreamContext:
        return StreamContext(stream)

    return stand_in_stream


def _set_stream(_: Any) -> Any:
    def stand_in_set_stream(stream: Stream | None) -> None:
        set_stream(stream)

    return stand_in_set_stream


def _accelerators_current_stream(_: Any) -> Any:
    def stand_in_accelerator_current_stream(device: Any = None, /) -> Stream:
        return current_stream(device)

    return stand_in_accelerator_current_stream


_GENERIC = "https://github.com/vllm-project/vllm/pull/58082"
_CUDA_ONLY = "torch.cuda's streams exist on hosts without an accelerator"

PATCHES = (
    Patch(
        target="torch.cuda.Stream",
        build=lambda _: Stream,
        why="the copy streams of speculation and of asynchronous output are made with it; "
        "without CUDA it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/pull/23708",
        remove_when=_CUDA_ONLY,
    ),
    Patch(
        target="torch.cuda.current_stream",
        build=_current_stream,
        why="drafts and counts are copied behind the current stream; "
        "without CUDA it raises AssertionError",
        link="https://github.com/vllm-project/vllm/pull/25011",
        remove_when=_CUDA_ONLY,
    ),
    Patch(
        target="torch.cuda.stream",
        build=_stream,
        why="drafts and counts are copied inside this context, "
        "and inside it the current stream is the given one",
        link="https://github.com/vllm-project/vllm/pull/25011",
        remove_when=_CUDA_ONLY,
    ),
    Patch(
        # vLLM wraps torch.cuda.set_stream to keep its own record of the current stream. What it
        # wrapped is replaced, so that the record goes on being kept.
        target="vllm.utils.torch_utils.prev_set_stream",
        build=_set_stream,
        why="torch.cuda.set_stream, as vLLM holds it, changes the current stream; "
        "without CUDA it raises AttributeError",
        link="https://github.com/vllm-project/vllm/pull/39798",
        remove_when=_CUDA_ONLY,
        undo=forget_streams,
    ),
    Patch(
        target="torch.accelerator.current_stream",
        build=_accelerators_current_stream,
        why="code that balances experts, and profiling hooks, name the current stream so; "
        "without an accelerator it raises RuntimeError",
        link=_GENERIC,
        remove_when=_CUDA_ONLY,
        versions=">=0.29",  # before, nothing that a CPU reaches asks it
    ),
)
