"""Devices: which there are, which is current, and what they are like.

GPU behaviour: torch's documentation of ``torch.accelerator`` and ``torch.cuda``, and
``test/test_accelerator.py`` of 2.13. A host without an accelerator may refuse what only a GPU has;
it must not answer as if there were one.
"""

from __future__ import annotations

from conformance.contract.clause import clause, clauses_of, require

_CLASSES = "a class: vLLM names it in annotations, `cls | None` among them, when it is imported"


@clause(
    "torch.accelerator.is_available",
    "torch.accelerator.current_accelerator",
    "torch.cuda.is_available",
    gpu="what is there is said to be there",
    bare_holds=True,
    host_only=True,
)
def no_accelerator_is_claimed() -> None:
    import torch

    require(torch.accelerator.is_available() is False, "an accelerator is said to be available")
    # Without check_available a build for CUDA names its accelerator, whether or not there is one.
    found = torch.accelerator.current_accelerator(check_available=True)
    require(found is None, f"the current accelerator is said to be {found!r}")
    require(torch.cuda.is_available() is False, "CUDA is said to be available")


@clause(
    "torch.accelerator.current_device_index", gpu="the index of the current device, an int from 0"
)
def the_current_device_has_an_index() -> None:
    import torch

    index = torch.accelerator.current_device_index()
    require(type(index) is int and index == 0, f"of the one device there is, it is {index!r}")


@clause(
    "torch.accelerator.set_device_index",
    "torch.accelerator.device_index",
    gpu="set_device_index(i) returns None; inside device_index(i), i is the current device",
)
def the_current_device_is_set() -> None:
    import torch

    require(torch.accelerator.set_device_index(0) is None, "set_device_index returned something")
    with torch.accelerator.device_index(0):
        inside = torch.accelerator.current_device_index()
    require(inside == 0, f"inside device_index(0) it is {inside!r}")


@clause(
    "torch.accelerator.current_stream", gpu="the same stream that torch.cuda.current_stream() gives"
)
def both_names_give_the_current_stream() -> None:
    import torch

    require(torch.accelerator.current_stream() == torch.cuda.current_stream(), "the two differ")


@clause(
    "torch.accelerator.set_stream", gpu="makes a stream the one torch.cuda.current_stream() gives"
)
def both_names_set_the_current_stream() -> None:
    import torch

    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    torch.accelerator.set_stream(stream)
    try:
        require(torch.cuda.current_stream() == stream, "what one sets the other does not give")
    finally:
        torch.accelerator.set_stream(before)


@clause(
    "torch.cuda.get_device_properties",
    "torch.cuda.DeviceProperties.multi_processor_count",
    "torch.cuda.DeviceProperties.gcnArchName",
    gpu="multi_processor_count, major and minor are ints, the first at least 1",
)
def a_device_has_properties() -> None:
    import torch

    properties = torch.cuda.get_device_properties(0)
    for name in ("multi_processor_count", "major", "minor"):
        value = getattr(properties, name)
        require(type(value) is int and value >= 0, f"{name} is {value!r}")
    require(properties.multi_processor_count > 0, "it has no multiprocessor")


@clause("torch.cuda.get_device_capability", gpu="two ints, (major, minor)")
def a_device_has_a_capability() -> None:
    import torch

    got = torch.cuda.get_device_capability()
    require(
        isinstance(got, tuple) and len(got) == 2 and all(type(part) is int for part in got),
        f"it is {got!r}",
    )


@clause("torch.cuda.get_device_name", gpu="a string that is not empty")
def a_device_has_a_name() -> None:
    import torch

    name = torch.cuda.get_device_name(0)
    require(isinstance(name, str) and name, f"it is {name!r}")


@clause(
    "torch.cuda.device",
    "torch.cuda.MemPool",
    "torch.cuda.memory.CUDAPluggableAllocator",
    gpu=_CLASSES,
    bare_holds=True,
)
def what_annotations_name_is_a_class() -> None:
    import torch

    for name, cls in (
        ("torch.cuda.device", torch.cuda.device),
        ("torch.cuda.MemPool", torch.cuda.MemPool),
        ("torch.cuda.memory.CUDAPluggableAllocator", torch.cuda.memory.CUDAPluggableAllocator),
    ):
        require(isinstance(cls, type), f"{name} is {cls!r}")
        require((cls | None) is not None, f"{name} | None is nothing")


@clause("torch.cuda.current_blas_handle", gpu="a handle, an int that is not 0")
def the_blas_handle_is_an_int() -> None:
    import torch

    handle = torch.cuda.current_blas_handle()
    require(type(handle) is int and handle != 0, f"it is {handle!r}")


CLAUSES = clauses_of(globals())
