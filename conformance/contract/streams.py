"""Streams: which one is current, when and in which thread; comparing, waiting, wrong arguments.

GPU behaviour: torch's documentation of ``torch.cuda.Stream`` and ``torch.cuda.stream``, and
``torch/cuda/__init__.py`` and ``torch/cuda/streams.py`` of 2.13.
"""

from __future__ import annotations

import threading
from typing import Any

from conformance.contract.clause import clause, clauses_of, require, require_raises, the_device

_CONTEXT = "inside torch.cuda.stream(s), s is the current stream; afterwards the previous one is"
_IDENTITY = "streams compare by device and handle; a new stream has a handle of its own"
_WAIT = "wait_stream and wait_event return at once; record_event returns the recorded event"


@clause("torch.cuda.Stream", gpu="Stream(device=None, priority=0); .device is its device")
def a_stream_is_made_with_and_without_a_device() -> None:
    import torch

    for stream in (
        torch.cuda.Stream(),
        torch.cuda.Stream(the_device()),
        torch.cuda.Stream(device=the_device(), priority=-1),
    ):
        require(isinstance(stream, torch.cuda.Stream), f"{stream!r} is no torch.cuda.Stream")
        require(stream.device.type == the_device().type, f"its device is {stream.device}")


@clause("torch.cuda.Stream", gpu="an unknown keyword or a device that is none raises")
def a_stream_refuses_wrong_arguments() -> None:
    import torch

    torch.cuda.Stream(priority=0)
    require_raises(lambda: torch.cuda.Stream(no_such_argument=1), "Stream(no_such_argument=1)")
    require_raises(lambda: torch.cuda.Stream(device="no-such-device"), "Stream of no device")
    require_raises(lambda: torch.cuda.Stream(device=object()), "Stream of an object")


@clause("torch.cuda.Stream", gpu=_IDENTITY)
def streams_compare_by_identity() -> None:
    import torch

    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    require(one == one and hash(one) == hash(one), "a stream does not equal itself")
    require(one != other, "two streams are equal")
    require(len({one, other, one}) == 2, "two streams do not give two entries in a set")
    require(torch.cuda.current_stream() == torch.cuda.current_stream(), "the current stream varies")


_MEMBERS = (
    "torch.cuda.Stream.wait_stream",
    "torch.cuda.Stream.wait_event",
    "torch.cuda.Stream.record_event",
    "torch.cuda.Stream.synchronize",
    # What vLLM annotates as torch.Stream is what torch.cuda.current_stream() gives.
    "torch.Stream.wait_stream",
    "torch.Stream.wait_event",
    "torch.Stream.synchronize",
)


@clause(*_MEMBERS, gpu=_WAIT)
def a_stream_waits_for_streams_and_events() -> None:
    import torch

    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    require(one.wait_stream(other) is None, "wait_stream returned something")
    event = other.record_event()
    require(one.wait_event(event) is None, "wait_event returned something")
    mine = torch.cuda.Event()
    require(other.record_event(mine) is mine, "record_event did not return the event it was given")
    one.synchronize()
    require(one.query() is True, "a stream with no work outstanding is not done")


@clause(*_MEMBERS[:2], gpu="waiting for what is no stream or event raises")
def a_stream_refuses_to_wait_for_other_things() -> None:
    import torch

    stream = torch.cuda.Stream()
    require_raises(lambda: stream.wait_stream(3), "wait_stream(3)")
    require_raises(lambda: stream.wait_event("event"), "wait_event('event')")


@clause("torch.cuda.stream", "torch.cuda.current_stream", gpu=_CONTEXT)
def the_current_stream_is_the_contexts() -> None:
    import torch

    outer, inner = torch.cuda.Stream(), torch.cuda.Stream()
    before = torch.cuda.current_stream()
    with torch.cuda.stream(outer):
        require(torch.cuda.current_stream() == outer, "inside the context it is another stream")
        with torch.cuda.stream(inner):
            require(torch.cuda.current_stream() == inner, "nested, it is not the inner stream")
        require(torch.cuda.current_stream() == outer, "after the inner context it is not the outer")
    require(torch.cuda.current_stream() == before, "after the context it is not the one before")


@clause("torch.cuda.stream", gpu=_CONTEXT + ", after an exception too, which goes on")
def an_exception_leaves_the_context() -> None:
    import torch

    before = torch.cuda.current_stream()
    stream = torch.cuda.Stream()

    def fail() -> None:
        with torch.cuda.stream(stream):
            require(torch.cuda.current_stream() == stream, "the context did not take effect")
            raise KeyError("planted")

    require_raises(fail, "an exception inside the context")
    require(torch.cuda.current_stream() == before, "the exception left the stream current")


@clause("torch.cuda.stream", gpu="torch.cuda.stream(None) does nothing", bare_holds=True)
def a_context_of_no_stream_does_nothing() -> None:
    import torch

    with torch.cuda.stream(None):
        pass


@clause("torch.cuda.stream", gpu="a context of what is no stream raises when it is entered")
def a_context_refuses_what_is_no_stream() -> None:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        require(torch.cuda.current_stream() == stream, "a stream's own context did not take effect")

    def enter() -> None:
        with torch.cuda.stream(3):
            pass

    require_raises(enter, "torch.cuda.stream(3)")


@clause(
    "torch.cuda.current_stream", gpu="the current stream is the thread's; each begins on default"
)
def each_thread_has_its_own_current_stream() -> None:
    import torch

    seen: list[Any] = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
            thread.start()
            thread.join()
        require(torch.cuda.current_stream() == stream, "the context did not take effect")
    require(len(seen) == 2, "another thread could not ask")
    require(seen[0] != stream, "another thread began on this thread's stream")
    require(seen[0] == seen[1], "two threads did not begin on the same stream, the default one")


@clause(
    "torch.cuda.current_stream", gpu="current_stream(device) takes a device; a wrong one raises"
)
def the_current_stream_is_asked_for_by_device() -> None:
    import torch

    stream = torch.cuda.current_stream(the_device())
    require(stream == torch.cuda.current_stream(), "naming the device gives another stream")
    require_raises(lambda: torch.cuda.current_stream("no-such-device"), "a device that is none")


@clause("torch.cuda.set_stream", gpu="set_stream(s) makes s the thread's current stream")
def set_stream_changes_the_current_stream() -> None:
    import torch
    from vllm.utils import torch_utils

    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    try:
        require(torch.cuda.current_stream() == stream, "it is still another stream")
        require(torch_utils.current_stream() == stream, "vLLM's own record was not told")
    finally:
        torch.cuda.set_stream(before)
    require(torch.cuda.current_stream() == before, "it could not be set back")


@clause("torch.cuda.set_stream", gpu="vllm.utils.torch_utils.current_stream() follows the context")
def vllms_record_follows_the_context() -> None:
    import torch
    from vllm.utils import torch_utils

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        require(torch_utils.current_stream() == stream, "inside the context it has another stream")
    require(torch_utils.current_stream() != stream, "after the context it still has the stream")


@clause(
    "torch.cuda.Stream.cuda_stream",
    "torch.Stream.stream_id",
    gpu="the handle, an int; two streams that are made have two",
)
def a_stream_has_a_handle() -> None:
    import torch

    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    for name in ("cuda_stream", "stream_id"):
        handles = getattr(one, name), getattr(other, name)
        require(all(type(handle) is int for handle in handles), f"{name} is {handles[0]!r}")
        require(handles[0] != handles[1], f"two streams have the same {name}")


@clause("torch.Stream", gpu="a class, of whatever device; of the CPU too", bare_holds=True)
def a_stream_of_the_cpu_is_one() -> None:
    import torch

    require(isinstance(torch.Stream, type), f"torch.Stream is {torch.Stream!r}")
    require((torch.Stream | None) is not None, "torch.Stream | None is nothing")
    stream = torch.Stream(device="cpu")
    require(isinstance(stream, torch.Stream), f"torch.Stream(device='cpu') is {stream!r}")


CLAUSES = clauses_of(globals())
