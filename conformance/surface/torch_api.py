"""What names of torch and of the standard library give, as far as the walker has to know.

Source: torch's documentation of ``torch.cuda``, ``torch.accelerator``, ``torch.Event`` and
``torch.Stream``, and the signatures in torch 2.13.
"""

from __future__ import annotations

import re
from functools import cache

CLASSES = frozenset(
    {
        "torch.Event",
        "torch.Generator",
        "torch.Stream",
        "torch.Tensor",
        "torch.cuda.CUDAGraph",
        "torch.cuda.Event",
        "torch.cuda.ExternalStream",
        "torch.cuda.MemPool",
        "torch.cuda.Stream",
        "torch.cuda.StreamContext",
        "torch.cuda.graph",
        "torch.cuda.memory.CUDAPluggableAllocator",
        "torch.device",
        "torch.nn.Parameter",
    }
)
"""Classes whose call gives an instance that the walker follows."""

GIVES = {
    "torch.accelerator.current_stream": "torch.Stream",
    "torch.cuda.Stream.record_event": "torch.cuda.Event",
    "torch.Stream.record_event": "torch.Event",
    "torch.cuda.current_stream": "torch.cuda.Stream",
    "torch.cuda.default_stream": "torch.cuda.Stream",
    "torch.cuda.get_device_properties": "torch.cuda.DeviceProperties",
    "torch.cuda.get_stream_from_external": "torch.cuda.Stream",
    "torch.cuda.stream": "torch.cuda.StreamContext",
    "torch.nn.Parameter": "torch.Tensor",
}
"""What the instance is that a call gives."""

MEMBERS = {
    "elapsed_time": "torch.Event",
    "record_event": "torch.Stream",
    "wait_event": "torch.Stream",
    "wait_stream": "torch.Stream",
}
"""Members whose name alone says what the object is."""

AMBIGUOUS_MEMBERS = {
    "event": ("torch.Event", frozenset({"record", "wait", "query", "synchronize", "elapsed_time"})),
    "stream": (
        "torch.Stream",
        frozenset({"query", "synchronize", "wait_stream", "wait_event", "record_event"}),
    ),
    "graph": (
        "torch.cuda.CUDAGraph",
        frozenset({"replay", "reset", "pool", "capture_begin", "capture_end", "debug_dump"}),
    ),
}
"""Members that many objects have, with the word that the object's own name must hold."""

TENSOR_METHODS = frozenset({"pin_memory", "record_stream", "cuda"})
"""Tensor methods that reach the device; ``torch.Tensor.<name>`` in an inventory."""

_NO_TENSOR = frozenset(
    {
        "Size",
        "compile",
        "device",
        "dtype",
        "enable_grad",
        "finfo",
        "get_default_dtype",
        "get_num_threads",
        "iinfo",
        "inference_mode",
        "is_floating_point",
        "is_tensor",
        "load",
        "manual_seed",
        "no_grad",
        "numel",
        "save",
        "set_default_dtype",
        "set_num_threads",
        "seed",
        "typename",
    }
)
_NO_TENSOR_METHODS = frozenset(
    {
        "data_ptr",
        "dim",
        "element_size",
        "is_contiguous",
        "is_pinned",
        "item",
        "numel",
        "numpy",
        "shape",
        "size",
        "storage_offset",
        "stride",
        "tolist",
        "untyped_storage",
        "dtype",
        "device",
        "is_cuda",
        "is_cpu",
    }
)
_TENSOR_FUNCTION = re.compile(r"torch\.(nn\.functional\.|ops\.|linalg\.)?[a-z]\w*")

PASSES_ON = frozenset(
    {
        "builtins.dict",
        "builtins.enumerate",
        "builtins.filter",
        "builtins.frozenset",
        "builtins.iter",
        "builtins.list",
        "builtins.map",
        "builtins.max",
        "builtins.min",
        "builtins.next",
        "builtins.reversed",
        "builtins.set",
        "builtins.sorted",
        "builtins.sum",
        "builtins.tuple",
        "builtins.zip",
        "collections.ChainMap",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "contextlib.closing",
        "copy.copy",
        "copy.deepcopy",
        "dataclasses.replace",
        "itertools.chain",
        "torch.compile",
        "typing.cast",
        "weakref.WeakMethod",
        "weakref.proxy",
        "weakref.ref",
    }
)
"""Callables that give back what they take, or what is in it."""

NAMESPACES = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "amp",
        "comm",
        "gds",
        "graphs",
        "green_contexts",
        "jiterator",
        "memory",
        "nccl",
        "nvtx",
        "profiler",
        "random",
        "sparse",
        "streams",
        "tunable",
    )
)
"""Modules below torch.cuda: reading one reaches nothing, what is read from it does."""

_CALLS_LATER = re.compile(
    r"functools\.(?!reduce)|contextlib\.|dataclasses\.|typing\.|abc\.|triton\."
    r"|torch\.(compile|jit|library|_dynamo|compiler|no_grad|inference_mode|fx)\b"
    r"|builtins\.(property|staticmethod|classmethod|super)$"
)

SPECIAL_METHODS = {
    "builtins.bool": "__bool__",
    "builtins.iter": "__iter__",
    "builtins.len": "__len__",
    "builtins.next": "__next__",
}
"""Functions that call a method of what they are given."""

_OF_CONTAINERS = frozenset(
    name for kind in (list, dict, set) for name in dir(kind) if not name.startswith("__")
) | {"appendleft", "popleft", "get_nowait", "put", "put_nowait"}

NEVER_CALLS_BACK = frozenset(
    {
        "builtins.callable",
        "builtins.delattr",
        "builtins.getattr",
        "builtins.hasattr",
        "builtins.id",
        "builtins.isinstance",
        "builtins.issubclass",
        "builtins.len",
        "builtins.print",
        "builtins.repr",
        "builtins.setattr",
        "builtins.str",
        "builtins.type",
        "inspect.getdoc",
        "inspect.getfile",
        "inspect.getsource",
        "inspect.iscoroutinefunction",
        "inspect.signature",
        "typing.get_type_hints",
    }
)
"""Callables that take functions or classes without calling them."""

CONTAINER_READS = frozenset(
    {"copy", "get", "get_nowait", "items", "pop", "popitem", "popleft", "setdefault", "values"}
)
CONTAINER_WRITES = frozenset(
    {"add", "append", "appendleft", "extend", "insert", "put", "put_nowait", "set", "setdefault"}
    | {"update"}
)


OPERATOR = "torch.ops.vllm."
"""Operators that the tree registers itself, by ``direct_register_custom_op``."""

OUTSIDE = "?"
"""Any name from outside the tree that the walker has no use for: it may call back, that is all."""

TENSOR_FUNCTION = "torch.<tensor>"
"""Any function or method of torch that gives a tensor."""

_FOLLOWED = frozenset(
    {
        "builtins",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "functools",
        "importlib",
        "inspect",
        "itertools",
        "triton",
        "typing",
        "weakref",
    }
)
_TORCH_NAMESPACES = frozenset(
    {
        "torch",
        "torch.accelerator",
        "torch.cuda",
        "torch.jit",
        "torch.library",
        "torch.linalg",
        "torch.nn",
        "torch.nn.functional",
        "torch.ops",
        "torch.ops.vllm",
        "torch._dynamo",
        "torch.compiler",
    }
)


def followed(dotted: str) -> str:
    """The name that stands for ``dotted`` in the walk: one name for all that act alike."""
    dotted = canonical(dotted)
    root = dotted.partition(".")[0]
    if root == "torch":
        if dotted.startswith(OPERATOR):  # without its overload: ``torch.ops.vllm.name.default``
            return ".".join(dotted.split(".")[:4])
        if (
            dotted in _TORCH_NAMESPACES
            or dotted in CLASSES
            or dotted in PASSES_ON
            or is_device(dotted)
            or dotted == TENSOR_FUNCTION
        ):
            return dotted
        if calls_later(dotted):
            return "torch.library.<later>"
        return TENSOR_FUNCTION if given(dotted) == "torch.Tensor" else OUTSIDE
    if root not in _FOLLOWED or dotted.count(".") > 1:
        return OUTSIDE
    return dotted


@cache
def is_device(dotted: str) -> bool:
    """Whether a dotted name is part of the surface; containers are one with their elements."""
    owner, _, name = dotted.rpartition(".")
    if owner in CLASSES and name in _OF_CONTAINERS:
        return False
    return dotted.startswith(("torch.cuda.", "torch.accelerator.")) or dotted.startswith(
        ("torch.Event", "torch.Stream")
    )


_CONSTANT = re.compile(
    r"b?float\w*|u?int\d+|q?u?int\d+|complex\d+|bfloat16|half|double|long|short|bool|int|dtype"
    r"|preserve_format|contiguous_format|channels_last\w*|strided"
)


def is_constant(owner: str, name: str) -> bool:
    """Whether an attribute of torch is a value that nothing is read from."""
    return owner == "torch" and _CONSTANT.fullmatch(name) is not None


def is_leaf(dotted: str) -> bool:
    """Whether a name of the device is a function or a member: nothing is read from it."""
    if dotted == "torch.cuda.DeviceProperties" or dotted.startswith("torch.cuda.DeviceProperties."):
        return True
    if not is_device(dotted) or dotted in CLASSES or dotted in NAMESPACES:
        return False
    return not dotted.rpartition(".")[2][:1].isupper()


@cache
def calls_later(dotted: str) -> bool:
    """Whether a callable takes functions without calling them before it returns."""
    return dotted in NEVER_CALLS_BACK or _CALLS_LATER.match(dotted) is not None


def is_member(owner: str, name: str) -> bool:
    """Whether a name can be a member of an object."""
    return is_device(f"{owner}.{name}") and name[:2] != "__"


def canonical(dotted: str) -> str:
    """The public name of what torch has under several."""
    for private, public in (
        ("torch.cuda.streams.", "torch.cuda."),
        ("torch.cuda.graphs.", "torch.cuda."),
        ("torch.cuda.device_count.", "torch.cuda.device_count."),
    ):
        if dotted.startswith(private):
            return public + dotted[len(private) :]
    return dotted


@cache
def given(dotted: str) -> str | None:
    """The class of the instance that calling ``dotted`` gives, if the walker follows it."""
    if dotted in GIVES:
        return GIVES[dotted]
    if dotted in CLASSES:
        return dotted
    if dotted == TENSOR_FUNCTION:
        return "torch.Tensor"
    owner, _, name = dotted.rpartition(".")
    if owner == "torch.Tensor":
        return None if name in _NO_TENSOR_METHODS else "torch.Tensor"
    if _TENSOR_FUNCTION.fullmatch(dotted) and name not in _NO_TENSOR:
        return "torch.Tensor"
    return None
