"""What can be asked of each attribute: where it is found, and what its call sites hand it.

A site's arguments are expressions of vLLM's; here are values of the kinds that they have. They are
made in the child that checks, with the stand-ins that are in force there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.contract.reached import Shape

_ABSENT = object()


@dataclass(frozen=True)
class Attribute:
    """One attribute of torch's, or member of an object that it gives.

    ``receiver`` makes the object of which a member is asked; without it the name is a dotted path.
    ``samples`` has a maker for each argument, by position and by keyword. ``gpus`` are the shapes
    that the GPU's own takes besides those at vLLM's sites, as ``source`` states them.
    """

    name: str
    source: str = "torch's documentation"
    receiver: Callable[[], Any] | None = None
    samples: Mapping[int | str, Callable[[], Any]] = field(default_factory=dict)
    gpus: tuple[Shape, ...] = ()

    @property
    def member(self) -> str:
        """The last name of the path."""
        return self.name.rpartition(".")[2]

    def arguments(self, shape: Shape) -> tuple[list[Any], dict[str, Any]]:
        """Values for a call of this shape; LookupError if there is none for one of them."""
        return (
            [self.samples[position]() for position in range(shape.positional)],
            {name: self.samples[name]() for name in shape.keywords},
        )

    def find(self) -> Any:
        """The attribute itself, as it is bound now.

        Raises:
            AttributeError: there is none of that name.
        """
        return (
            resolve(self.name) if self.receiver is None else getattr(self.receiver(), self.member)
        )


def resolve(path: str) -> Any:
    """Return what a dotted path leads to, through modules, then attributes."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            value = getattr(value, name)
        return value
    raise AttributeError(f"no module of the path {path} can be imported")


def _shape(positional: int = 0, *keywords: str) -> Shape:
    return Shape(positional, tuple(sorted(keywords)))


def _made(path: str, *arguments: Any, **keywords: Any) -> Callable[[], Any]:
    return lambda: resolve(path)(*arguments, **keywords)


def _cpu() -> Any:
    return resolve("torch.device")("cpu")


def _recorded(path: str) -> Callable[[], Any]:
    def make() -> Any:
        event = resolve(path)(enable_timing=True)
        event.record()
        return event

    return make


def _properties() -> Any:
    return resolve("torch.cuda.get_device_properties")(0)


def _tensor() -> Any:
    return resolve("torch.ones")(3)


def _yes() -> bool:
    return True


_stream = _made("torch.cuda.Stream")
_event = _made("torch.cuda.Event")
_EVENT_OPTIONS = ("enable_timing", "blocking", "interprocess")
_DEVICE: dict[int | str, Callable[[], Any]] = {0: _cpu, "device": _cpu}
_INDEX: dict[int | str, Callable[[], Any]] = {0: lambda: 0}


def _event_members(cls: str) -> tuple[Attribute, ...]:
    receiver = _recorded(cls)
    stream: dict[int | str, Callable[[], Any]] = {0: _stream, "stream": _stream}
    return (
        Attribute(f"{cls}.record", receiver=receiver, samples=stream, gpus=(_shape(), _shape(1))),
        Attribute(f"{cls}.wait", receiver=receiver, samples=stream, gpus=(_shape(), _shape(1))),
        Attribute(f"{cls}.synchronize", receiver=receiver, gpus=(_shape(),)),
        Attribute(
            f"{cls}.elapsed_time", receiver=receiver, samples={0: receiver}, gpus=(_shape(1),)
        ),
    )


def _stream_members(cls: str) -> tuple[Attribute, ...]:
    # What vLLM annotates as torch.Stream is what torch.cuda.current_stream() gives.
    receiver = _stream
    return (
        Attribute(f"{cls}.wait_event", receiver=receiver, samples={0: _event}, gpus=(_shape(1),)),
        Attribute(f"{cls}.wait_stream", receiver=receiver, samples={0: _stream}, gpus=(_shape(1),)),
        Attribute(f"{cls}.synchronize", receiver=receiver, gpus=(_shape(),)),
    )


_ACCELERATOR = "torch.accelerator's documentation and torch's test/test_accelerator.py"
_STREAMS = "torch/cuda/streams.py"

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "torch.Event",
        samples={0: _cpu, "device": _cpu, **dict.fromkeys(_EVENT_OPTIONS, _yes)},
        gpus=(_shape(), _shape(1), *(_shape(0, name) for name in ("device", *_EVENT_OPTIONS))),
    ),
    *_event_members("torch.Event"),
    Attribute("torch.Stream", samples=_DEVICE, gpus=(_shape(1), _shape(0, "device"))),
    *_stream_members("torch.Stream"),
    Attribute("torch.Stream.is_capturing", receiver=_stream),
    Attribute("torch.Stream.stream_id", receiver=_stream),
    Attribute("torch.Tensor.cuda", receiver=_tensor),
    Attribute("torch.Tensor.pin_memory", receiver=_tensor, gpus=(_shape(),)),
    Attribute("torch.Tensor.record_stream", receiver=_tensor, samples={0: _stream}),
    Attribute("torch.accelerator.current_accelerator", _ACCELERATOR, gpus=(_shape(),)),
    Attribute("torch.accelerator.current_device_index", _ACCELERATOR, gpus=(_shape(),)),
    Attribute("torch.accelerator.current_stream", _ACCELERATOR, samples=_DEVICE),
    Attribute("torch.accelerator.device_index", _ACCELERATOR, samples=_INDEX),
    Attribute("torch.accelerator.empty_cache", _ACCELERATOR, gpus=(_shape(),)),
    Attribute(
        "torch.accelerator.get_memory_info",
        _ACCELERATOR,
        samples=_DEVICE,
        gpus=(_shape(), _shape(1)),
    ),
    Attribute("torch.accelerator.is_available", _ACCELERATOR, gpus=(_shape(),)),
    Attribute("torch.accelerator.memory_reserved", _ACCELERATOR, samples=_DEVICE),
    Attribute("torch.accelerator.memory_stats", _ACCELERATOR, samples=_DEVICE),
    Attribute("torch.accelerator.reset_peak_memory_stats", _ACCELERATOR, samples=_DEVICE),
    Attribute("torch.accelerator.set_device_index", _ACCELERATOR, samples=_INDEX),
    Attribute("torch.accelerator.set_stream", _ACCELERATOR, samples={0: _stream}),
    Attribute(
        "torch.accelerator.synchronize",
        _ACCELERATOR,
        samples=_DEVICE,
        gpus=(_shape(), _shape(1)),
    ),
    Attribute("torch.cuda.CUDAGraph"),
    Attribute(
        "torch.cuda.CUDAGraph.capture_begin",
        receiver=_made("torch.cuda.CUDAGraph"),
        samples={"pool": lambda: None},
    ),
    Attribute("torch.cuda.CUDAGraph.capture_end", receiver=_made("torch.cuda.CUDAGraph")),
    Attribute("torch.cuda.CUDAGraph.replay", receiver=_made("torch.cuda.CUDAGraph")),
    Attribute("torch.cuda.DeviceProperties.gcnArchName", receiver=_properties),
    Attribute("torch.cuda.DeviceProperties.multi_processor_count", receiver=_properties),
    Attribute(
        "torch.cuda.Event",
        _STREAMS,
        samples={0: _yes, 1: _yes, **dict.fromkeys((*_EVENT_OPTIONS, "external"), _yes)},
        gpus=(_shape(), *(_shape(0, name) for name in _EVENT_OPTIONS), _shape(2)),
    ),
    *_event_members("torch.cuda.Event"),
    Attribute("torch.cuda.MemPool"),
    Attribute("torch.cuda.OutOfMemoryError"),
    Attribute(
        "torch.cuda.Stream",
        _STREAMS,
        samples={**_DEVICE, "priority": lambda: -1},
        gpus=(_shape(), _shape(1), _shape(0, "device", "priority")),
    ),
    *_stream_members("torch.cuda.Stream"),
    Attribute("torch.cuda.Stream.cuda_stream", _STREAMS, receiver=_stream),
    Attribute(
        "torch.cuda.Stream.record_event",
        _STREAMS,
        receiver=_stream,
        samples={0: _event},
        gpus=(_shape(), _shape(1)),
    ),
    Attribute("torch.cuda.current_blas_handle"),
    Attribute("torch.cuda.current_stream", samples=_DEVICE, gpus=(_shape(), _shape(1))),
    Attribute("torch.cuda.device", samples=_INDEX),
    Attribute("torch.cuda.get_device_capability", samples=_INDEX),
    Attribute("torch.cuda.get_device_name", samples=_INDEX),
    Attribute("torch.cuda.get_device_properties", samples=_INDEX),
    Attribute(
        "torch.cuda.graph",
        samples={
            0: _made("torch.cuda.CUDAGraph"),
            1: lambda: None,
            "pool": lambda: None,
            "stream": _stream,
        },
    ),
    Attribute("torch.cuda.is_available", gpus=(_shape(),)),
    Attribute("torch.cuda.is_current_stream_capturing", gpus=(_shape(),)),
    Attribute("torch.cuda.memory.CUDAPluggableAllocator"),
    Attribute("torch.cuda.nvtx.range", samples={0: lambda: "range"}),
    Attribute("torch.cuda.profiler.start"),
    Attribute("torch.cuda.profiler.stop"),
    Attribute("torch.cuda.set_stream", samples={0: _stream}, gpus=(_shape(1),)),
    Attribute("torch.cuda.stream", samples={0: _stream}, gpus=(_shape(1),)),
)

ATTRIBUTE = {attribute.name: attribute for attribute in ATTRIBUTES}
"""Every attribute of torch's that has a contract, by its name."""
