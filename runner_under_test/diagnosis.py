"""From torch's bare error to the patch that is missing.

torch answers a device call on a host without a device in a dozen ways ("Torch not compiled with
CUDA enabled", "Cannot access accelerator device when none is available", ...), none of which says
who asked for what. Every entry point of the worker passes through here, so that the answer does.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_WorkerClass = TypeVar("_WorkerClass", bound=type)

_NO_DEVICE = re.compile(
    "|".join(
        (
            r"Torch not compiled with CUDA enabled",
            r"Cannot access accelerator device when none is available",
            r"instantiate dummy base class",
            r"torch\.cuda\.Stream requires CUDA support",
            r"requires a CUDA or other accelerator backend",
            r"cpu backend doesn't support events",
            r"has no attribute '_cuda_",
            r"Found no NVIDIA driver",
            r"CUDA driver version is insufficient",
            r"No CUDA GPUs are available",
        )
    )
)
"""What torch 2.11 to 2.13 says, built with CUDA and without, for lack of a device (measured)."""


class UnpatchedAttribute(RuntimeError):
    """Device code was reached on the CPU that no patch stands in for."""


@dataclass(frozen=True)
class Site:
    """Where it was reached: a call in vLLM."""

    attribute: str
    file: str
    line: int
    function: str
    source: str


def explains_missing_patches(cls: _WorkerClass) -> _WorkerClass:
    """Let every public method of a worker class explain a device call that no patch covers."""
    names = {
        name
        for base in cls.__mro__[:-1]
        for name, value in vars(base).items()
        if isinstance(value, types.FunctionType)
        and (name == "__init__" or not name.startswith("_"))
    }
    for name in sorted(names):
        setattr(cls, name, _explaining(getattr(cls, name)))
    return cls


def _explaining(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except UnpatchedAttribute:
            raise
        except Exception as error:
            explanation = explain(error)
            if explanation is None:
                raise
            raise UnpatchedAttribute(explanation) from error

    return explained


def explain(error: BaseException) -> str | None:
    """Return what to do about an error, or None if it is not about a missing device."""
    if not _NO_DEVICE.search(str(error)):
        return None
    site = find_site(error)
    if site is None:
        return None
    return (
        f"{site.attribute} needs an accelerator, this host has none, and no patch of "
        f"runner_under_test stands in for it. Reached at {site.file}:{site.line} in "
        f"{site.function}: `{site.source}` (torch: {error}). To cover it, add a Patch with "
        f"target={site.attribute!r} to a module of runner_under_test/patches/ "
        "and list it in the register; docs/patches.md shows how."
    )


def find_site(error: BaseException) -> Site | None:
    """Return the innermost call outside torch in the error's traceback."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    for frame, offset, line in reversed(frames):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("torch", "runner_under_test"):
            continue
        code = frame.f_code
        source = _source_of(code, offset, line)
        return Site(
            attribute=_attribute_of(source, frame),
            file=code.co_filename,
            line=line,
            function=code.co_qualname,
            source=source,
        )
    return None


def _source_of(code: types.CodeType, offset: int, line: int) -> str:
    """The expression that was being evaluated, on one line."""
    positions = list(code.co_positions())
    first, last, start, end = positions[offset // 2]
    if first is None or last is None or start is None or end is None:
        return linecache.getline(code.co_filename, line).strip()
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    if not all(lines):
        return code.co_name
    # Positions count bytes.
    lines[-1] = lines[-1].encode()[:end].decode(errors="replace")
    lines[0] = lines[0].encode()[start:].decode(errors="replace")
    return " ".join("".join(lines).split())


def _attribute_of(source: str, frame: types.FrameType) -> str:
    """The dotted name of what an expression calls, as the register would name it."""
    try:
        node: ast.AST = ast.parse(source, mode="eval").body
    except SyntaxError:
        return source
    if isinstance(node, ast.Call):
        node = node.func
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.reverse()
    if not isinstance(node, ast.Name):
        return ".".join(("torch.Tensor", *names)) if names else source
    root = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(root, types.ModuleType):
        return ".".join((root.__name__, *names))
    if root is None:
        return ".".join((node.id, *names))
    owner = root if isinstance(root, type | types.FunctionType) else type(root)
    module = owner.__module__.removesuffix(".streams")
    return ".".join((module, owner.__qualname__, *names))
