"""Faults of stand-ins for torch's names, and of what stands in for kernels.

Each function breaks one thing, as a real runner did or well might; the table says which row of the
contract must turn red on it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.fault import Fault

FAULTS: list[Fault] = []


def _kills(check: str) -> Callable[[Callable[[], None]], Any]:
    """Enter a fault into the table, with the row that must turn red."""

    def enter(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__.replace("_", "-")
        FAULTS.append(Fault(name, f"{__name__}:{plant.__name__}", check))
        return plant

    return enter


def _torch() -> Any:
    import torch

    return torch


@_kills("presence|torch.accelerator.synchronize")
def synchronize_is_gone() -> None:
    del _torch().accelerator.synchronize


@_kills("presence|torch.cuda.Stream")
def the_stream_is_a_function() -> None:
    _torch().cuda.Stream = lambda *args, **kwargs: None


@_kills("presence|torch.cuda.current_stream")
def the_current_stream_cannot_be_called() -> None:
    _torch().cuda.current_stream = _torch().cuda.current_stream()


@_kills("presence|torch.Event.record")
def events_cannot_be_recorded() -> None:
    del _torch().Event.record


@_kills("presence|triton:expand_kernel")
def a_kernel_has_no_counterpart() -> None:
    from vllm.v1.sample import rejection_sampler

    rejection_sampler._expand.kernel = lambda *args: None


@_kills("signature|torch.cuda.Event(blocking=)")
def events_do_not_take_blocking() -> None:
    class Event(_torch().cuda.Event):  # type: ignore[misc]
        def __init__(self, enable_timing: bool = False) -> None:
            super().__init__(enable_timing)

    _torch().cuda.Event = Event


@_kills("signature|torch.accelerator.synchronize(_)")
def synchronize_takes_no_device() -> None:
    _torch().accelerator.synchronize = lambda: None


@_kills("signature|torch.Event.record(_)")
def events_are_recorded_in_no_stream() -> None:
    _torch().Event.record = lambda self: None


@_kills("signature|torch.accelerator.get_memory_info(_)")
def memory_info_takes_no_device() -> None:
    _torch().accelerator.get_memory_info = lambda: (1, 2)


@_kills("signature|torch.cuda.current_stream(_)")
def the_current_stream_takes_no_device() -> None:
    original = _torch().cuda.current_stream
    _torch().cuda.current_stream = lambda: original()


@_kills("behaviour|accelerator/no-two-names-share-a-function")
def two_names_share_a_function() -> None:
    def nothing(*args: Any) -> None:
        pass

    _torch().accelerator.synchronize = _torch().accelerator.empty_cache = nothing


@_kills("behaviour|accelerator/synchronize-returns")
def synchronize_returns_something() -> None:
    _torch().accelerator.synchronize = lambda device=None: 0


@_kills("behaviour|accelerator/synchronize-refuses-wrong-arguments")
def synchronize_takes_anything() -> None:
    _torch().accelerator.synchronize = lambda *args, **kwargs: None


@_kills("behaviour|accelerator/memory-info-is-plausible")
def no_memory_is_free() -> None:
    _torch().accelerator.get_memory_info = lambda device=None: (0, 2**34)


@_kills("behaviour|accelerator/memory-info-is-plausible")
def more_is_free_than_there_is() -> None:
    _torch().accelerator.get_memory_info = lambda device=None: (2**34, 2**33)


@_kills("behaviour|accelerator/memory-info-is-plausible")
def memory_is_counted_in_fractions() -> None:
    _torch().accelerator.get_memory_info = lambda device=None: (1.5, 2.5)


@_kills("behaviour|accelerator/out-of-memory-can-be-caught")
def out_of_memory_cannot_be_raised() -> None:
    _torch().cuda.OutOfMemoryError = object


@_kills("behaviour|accelerator/a-compiled-function-may-empty-the-cache")
def emptying_the_cache_raises() -> None:
    def refuse() -> None:
        raise RuntimeError("no cache")

    _torch().accelerator.empty_cache = refuse


@_kills("behaviour|devices/no-accelerator-is-claimed")
def an_accelerator_is_claimed() -> None:
    _torch().accelerator.is_available = lambda: True


@_kills("behaviour|devices/the-current-device-has-an-index")
def the_current_device_is_none() -> None:
    _torch().accelerator.current_device_index = lambda: None


@_kills("behaviour|graphs/no-stream-is-capturing")
def a_graph_is_said_to_be_captured() -> None:
    _torch().cuda.is_current_stream_capturing = lambda: True


@_kills("behaviour|graphs/a-replayed-graph-computes-anew")
def graphs_do_nothing() -> None:
    class Graph:
        def replay(self) -> None:
            pass

    @contextlib.contextmanager
    def graph(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    _torch().cuda.CUDAGraph, _torch().cuda.graph = Graph, graph


@_kills("behaviour|streams/streams-compare-by-identity")
def all_streams_are_equal() -> None:
    _torch().cuda.Stream.__eq__ = lambda self, other: True


@_kills("behaviour|streams/a-stream-waits-for-streams-and-events")
def a_recorded_event_is_not_returned() -> None:
    _torch().cuda.Stream.record_event = lambda self, event=None: None


@_kills("behaviour|streams/a-stream-waits-for-streams-and-events")
def a_stream_does_not_say_that_it_is_done() -> None:
    _torch().cuda.Stream.query = lambda self: None


@_kills("behaviour|streams/a-stream-refuses-to-wait-for-other-things")
def a_stream_waits_for_anything() -> None:
    _torch().cuda.Stream.wait_event = lambda self, event: None
    _torch().cuda.Stream.wait_stream = lambda self, stream: None


@_kills("behaviour|streams/the-current-stream-is-the-contexts")
def a_context_changes_nothing() -> None:
    _torch().cuda.stream = lambda stream: contextlib.nullcontext()


@_kills("behaviour|streams/an-exception-leaves-the-context")
def an_exception_leaves_the_stream_current() -> None:
    @contextlib.contextmanager
    def stream(stream: Any) -> Iterator[None]:
        before = _torch().cuda.current_stream()
        _torch().cuda.set_stream(stream)
        yield
        _torch().cuda.set_stream(before)

    _torch().cuda.stream = stream


@_kills("behaviour|streams/an-exception-leaves-the-context")
def a_context_swallows_exceptions() -> None:
    original = _torch().cuda.stream

    @contextlib.contextmanager
    def stream(stream: Any) -> Iterator[None]:
        with original(stream), contextlib.suppress(Exception):
            yield

    _torch().cuda.stream = stream


@_kills("behaviour|streams/each-thread-has-its-own-current-stream")
def the_current_stream_is_every_threads() -> None:
    current = [_torch().cuda.current_stream()]
    original = _torch().cuda.set_stream

    def set_stream(stream: Any) -> None:
        current[0] = stream
        original(stream)

    _torch().cuda.set_stream = set_stream
    _torch().cuda.current_stream = lambda device=None: current[0]


@_kills("behaviour|streams/the-current-stream-is-asked-for-by-device")
def the_current_stream_is_made_anew() -> None:
    _torch().cuda.current_stream = lambda device=None: _torch().cuda.Stream()


@_kills("behaviour|streams/vllms-record-follows-the-context")
def vllms_record_is_not_told() -> None:
    from vllm.utils import torch_utils

    _torch().cuda.set_stream = torch_utils.prev_set_stream


@_kills("behaviour|streams/a-stream-is-made-with-and-without-a-device")
def a_stream_has_another_device() -> None:
    class Stream(_torch().cuda.Stream):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.device = _torch().device("meta")

    _torch().cuda.Stream = Stream


@_kills("behaviour|events/an-event-refuses-wrong-arguments")
def events_take_anything() -> None:
    original = _torch().Event
    _torch().Event = lambda *args, **kwargs: original()


@_kills("behaviour|events/an-event-is-recorded-waited-for-and-queried")
def a_recorded_event_has_not_happened() -> None:
    _torch().Event.query = lambda self: False


@_kills("behaviour|events/a-cuda-event-is-an-event")
def the_two_events_are_unrelated() -> None:
    _torch().Event = type("Event", (), dict(vars(_torch().Event)))


@_kills("behaviour|tensors/a-non-blocking-copy-is-a-copy")
def a_non_blocking_copy_is_late() -> None:
    original = _torch().Tensor.copy_

    def copy(self: Any, source: Any, non_blocking: bool = False) -> Any:
        return self if non_blocking else original(self, source)

    _torch().Tensor.copy_ = copy


@_kills("behaviour|pinned/a-tensor-is-pinned")
def a_pinned_tensor_is_of_another_dtype() -> None:
    _torch().Tensor.pin_memory = lambda self, device=None: self.float()


@_kills("behaviour|pinned/torch-empty-strided-takes-pin-memory")
def a_pinned_factory_loses_the_strides() -> None:
    original = _torch().empty_strided

    @functools.wraps(original)
    def empty_strided(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs).contiguous()

    _torch().empty_strided = empty_strided


@_kills("behaviour|platforms/is-cuda")
def the_platform_is_cuda() -> None:
    from vllm.platforms import current_platform

    type(current_platform).is_cuda = lambda self: True  # type: ignore[method-assign]


def _in_place_of(kernel: str, function: Callable[..., None]) -> None:
    """Let a stand-in's implementation be another."""
    from vllm.v1.sample import rejection_sampler

    getattr(rejection_sampler, kernel).func = function


@_kills("behaviour|kernels/temperatures-are-written-for-each-draft-token")
def a_launch_does_nothing() -> None:
    _in_place_of("expand_kernel", lambda **arguments: None)


@_kills("behaviour|kernels/top-k-is-written-for-each-draft-token")
def a_launch_writes_into_a_copy() -> None:
    from vllm.v1.sample import rejection_sampler

    original = rejection_sampler.expand_kernel.func

    def expand(output_ptr: Any, **arguments: Any) -> None:
        original(output_ptr=output_ptr.clone(), **arguments)

    _in_place_of("expand_kernel", expand)


@_kills("behaviour|kernels/slots-of-no-token-are-padding")
def the_padding_is_left_as_it_was() -> None:
    from vllm.v1.worker import block_table

    kernel = block_table.ComputeSlotMappingKernel.kernel
    original = kernel.func

    def fill(slot_mapping_ptr: Any, **arguments: Any) -> None:
        before = slot_mapping_ptr.clone()
        original(slot_mapping_ptr=slot_mapping_ptr, **arguments)
        number = arguments["num_tokens"]
        slot_mapping_ptr[number:] = before[number:]

    kernel.func = fill


@_kills("behaviour|triton:rejection_greedy_sample_kernel/a-launch-without-its-arguments-is-refused")
def a_launch_swallows_what_is_wrong() -> None:
    from vllm.v1.sample import rejection_sampler

    kernel = rejection_sampler.rejection_greedy_sample_kernel
    original = kernel.launch

    def launch(*args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            original(*args, **kwargs)

    kernel.launch = launch


@_kills("signature|triton:rejection_random_sample_kernel")
def a_counterpart_lacks_a_new_parameter() -> None:
    def sample(output_token_ids_ptr: Any, cu_num_draft_tokens_ptr: Any) -> None:
        raise AssertionError("never launched")

    _in_place_of("rejection_random_sample_kernel", sample)


@_kills("behaviour|sampling/top-k-keeps-the-k-largest")
def top_k_keeps_all() -> None:
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.apply_top_k_only = lambda logits, k: logits
