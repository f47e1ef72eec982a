"""Events: what was recorded, when, and what may be asked of it.

GPU behaviour: torch's documentation of ``torch.Event`` and ``torch.cuda.Event``,
``torch/csrc/Event.cpp`` and ``c10/core/impl/InlineEvent.h`` of 2.13.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from conformance.contract.clause import clause, clauses_of, require, require_raises, the_device

_ARGUMENTS = "enable_timing, blocking and interprocess are keywords, as vLLM passes them"
_TIMING = "elapsed_time gives milliseconds between two recorded events made with enable_timing"


def _classes() -> tuple[Any, ...]:
    import torch

    return (torch.Event, torch.cuda.Event)


@clause("torch.Event", gpu=_ARGUMENTS)
def an_event_takes_the_arguments_of_the_gpus() -> None:
    import torch

    torch.Event(enable_timing=True, blocking=True, interprocess=False).record()
    torch.Event(the_device()).record()
    torch.Event(the_device().type, enable_timing=True).record()


@clause("torch.cuda.Event", gpu=_ARGUMENTS + "; external too; all of them positional as well")
def a_cuda_event_takes_the_arguments_of_the_gpus() -> None:
    import torch

    torch.cuda.Event(enable_timing=True, blocking=True, interprocess=False, external=False).record()
    torch.cuda.Event(True, True).record()


@clause("torch.Event", "torch.cuda.Event", gpu="an unknown keyword raises TypeError")
def an_event_refuses_wrong_arguments() -> None:
    import torch

    require_raises(lambda: torch.Event(no_such_argument=1), "Event(no_such_argument=1)")
    require_raises(lambda: torch.cuda.Event(no_such_argument=1), "cuda.Event(no_such_argument=1)")
    torch.cuda.Event().record()
    require_raises(lambda: torch.cuda.Event().record(3), "recording in what is no stream")
    require_raises(lambda: torch.Event().record("stream"), "recording in what is no stream")


_RECORDED = tuple(
    f"{cls}.{member}"
    for cls in ("torch.Event", "torch.cuda.Event")
    for member in ("record", "wait", "synchronize")
)
_ELAPSED = ("torch.Event.elapsed_time", "torch.cuda.Event.elapsed_time")


@clause(*_RECORDED, gpu="record(stream=None) records in the current or the given stream")
def an_event_is_recorded_waited_for_and_queried() -> None:
    import torch

    stream = torch.cuda.Stream()
    for cls in _classes():
        event = cls()
        require(event.record() is None, f"{cls}: record() returned something")
        event.record(stream)
        event.wait(stream)
        event.wait()
        require(event.synchronize() is None, f"{cls}: synchronize() returned something")
        require(event.query() is True, f"{cls}: a recorded event has not happened")


@clause(*_RECORDED[1:], gpu="an event that was never recorded counts as done; waiting returns")
def an_unrecorded_event_holds_nobody_up() -> None:
    for cls in _classes():
        event = cls()
        require(event.query() is True, f"{cls}: query() is not True before a recording")
        event.synchronize()
        event.wait()


@clause(*_ELAPSED, gpu=_TIMING)
def elapsed_time_is_in_milliseconds() -> None:
    for cls in _classes():
        begin, end = cls(enable_timing=True), cls(enable_timing=True)
        begin.record()
        time.sleep(0.02)
        end.record()
        end.synchronize()
        elapsed = begin.elapsed_time(end)
        require(isinstance(elapsed, float), f"{cls}: it is {elapsed!r}")
        require(19.0 <= elapsed < 2000.0, f"{cls}: 20 ms were measured as {elapsed}")
        require(end.elapsed_time(begin) < 0, f"{cls}: backwards it is not negative")


@clause(*_ELAPSED, gpu="without timing, or before a recording, it raises ValueError")
def elapsed_time_refuses_what_it_cannot_measure() -> None:
    for cls in _classes():
        timed, untimed, unrecorded = cls(enable_timing=True), cls(), cls(enable_timing=True)
        timed.record()
        untimed.record()
        require_raises(functools.partial(timed.elapsed_time, untimed), f"{cls}: without timing")
        require_raises(functools.partial(timed.elapsed_time, unrecorded), f"{cls}: unrecorded")
        require(timed.elapsed_time(timed) == 0.0, f"{cls}: from itself to itself it is not 0")


@clause("torch.cuda.Event", gpu="torch.cuda.Event is a subclass of torch.Event")
def a_cuda_event_is_an_event() -> None:
    import torch

    require(isinstance(torch.cuda.Event(), torch.Event), "torch.cuda.Event() is no torch.Event")


CLAUSES = clauses_of(globals())
