"""Kernels on a machine that has Triton and no vLLM: their source cut out of vLLM's, and launched.

A kernel's module imports half of vLLM, of which the kernel needs nothing. So what is carried is
its own function, as it is written, with the functions and constants that it names, and those that
these name. What else of vLLM it needs is refused, and not replaced, but for `_STAND_INS`.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.kernels.comparing import difference
from conformance.kernels.example import Example
from conformance.kernels.memory import Placed
from conformance.kernels.store import Record, read, write
from conformance.surface.sources import SourceTree, decode

EXAMPLES = 40
"""So many inputs of each kernel are carried: shapes are compiled, and files are committed."""

_STAND_INS = {
    ("vllm.triton_utils", "triton"): "import triton",
    ("vllm.triton_utils", "tl"): "import triton.language as tl",
    ("vllm.triton_utils", "tldevice"): "from triton.language.extra import libdevice as tldevice",
    ("vllm.platforms", "current_platform"): (
        "class current_platform:  # a GPU of NVIDIA's\n"
        "    is_cuda = is_cuda_alike = staticmethod(lambda: True)\n"
        "    is_rocm = is_xpu = is_cpu = staticmethod(lambda: False)"
    ),
}
"""What vLLM's own names of Triton, and of the platform, are on a CUDA machine."""


class CannotCarry(Exception):
    """A kernel cannot be cut out of its module; the message says why."""


def cut_out(tree: SourceTree, module: str, path: str) -> str:
    """The source of a module that has one kernel, and what it needs, and no vLLM.

    ``path`` is the kernel's name in ``module``; a method becomes a function of its own name.

    Raises:
        CannotCarry: something that it needs is not written down there as a plain statement.
    """
    parts: dict[tuple[str, int | str], str] = {}
    homes: dict[str, str] = {}
    _gather(tree, module, path, parts, homes)
    head = f"# From {tree.label}: {module}, {path}. Apache-2.0, contributors to the vLLM project.\n"
    future = "from __future__ import annotations"
    uses = future in decode(tree.read(module), module)
    return "\n\n".join([head + (f"{future}\n" if uses else ""), *parts.values()]) + "\n"


def _gather(
    tree: SourceTree,
    module: str,
    path: str,
    parts: dict[tuple[str, int | str], str],
    homes: dict[str, str],
) -> None:
    """Add the statement that binds a name of a module, after those that it needs."""
    owner, _, name = path.rpartition(".")
    if homes.setdefault(name, module) != module:
        raise CannotCarry(f"{name} is another thing in {homes[name]} than in {module}")
    text = decode(tree.read(module), module)
    body = ast.parse(text).body
    if owner:
        classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == owner]
        body = [statement for found in classes for statement in found.body]
    statement = next((node for node in body if name in _bound(node)), None)
    if statement is None:
        raise CannotCarry(f"{module} binds no {path} at its top")
    key: tuple[str, int | str] = (module, statement.lineno)
    if key in parts:
        return
    if isinstance(statement, ast.ImportFrom):
        alias = next(a for a in statement.names if (a.asname or a.name) == name)
        source = _absolute(module, statement, tree)
        if (source, alias.name) in _STAND_INS:
            parts[module, name] = _STAND_INS[source, alias.name]
        elif source.partition(".")[0] != "vllm":
            parts[module, name] = f"from {source} import {alias.name} as {name}"
        elif alias.asname not in (None, alias.name):
            raise CannotCarry(f"{module} has {alias.name} of {source} by another name")
        elif source in tree.files:
            homes[name] = source
            _gather(tree, source, name, parts, homes)
        else:
            raise CannotCarry(f"{tree.label} has no module {source}, which has {name}")
        return
    if isinstance(statement, ast.Import) and "vllm" in ast.unparse(statement):
        raise CannotCarry(f"{module} imports vLLM as a whole for {name}")
    own = set(_bound(statement)) | {
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    decorators = getattr(statement, "decorator_list", [])
    dropped = [d for d in decorators if ast.unparse(d) == "staticmethod"]
    skipped = {id(node) for decorator in dropped for node in ast.walk(decorator)}
    for node in ast.walk(statement):
        named = node.id if isinstance(node, ast.Name) and id(node) not in skipped else None
        if named and named not in own and not hasattr(builtins, named):
            _gather(tree, module, named, parts, homes)
    lines = text.splitlines()
    first = min([statement.lineno, *(d.lineno for d in decorators if d not in dropped)])
    parts[key] = textwrap.dedent("\n".join(lines[first - 1 : statement.end_lineno]))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module binds, in its branches too."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((a.asname or a.name).partition(".")[0] for a in statement.names)
    elif isinstance(statement, ast.If | ast.Try):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _bound(child)
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _absolute(module: str, statement: ast.ImportFrom, tree: SourceTree) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    if not tree.files[module].is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - statement.level + 1]
    return ".".join([*parts, *filter(None, [statement.module])])


def pack(tree: SourceTree, kernel: str, module: str, record: Path, folder: Path) -> None:
    """Write what a machine without vLLM needs of a kernel: its source, and its recorded inputs.

    ``record`` is what the interpreter made of them, which goes along to be held against.

    Raises:
        CannotCarry: the kernel cannot be cut out.
    """
    from conformance.kernels.generators import GENERATOR

    name = kernel.removeprefix("triton:")
    text = cut_out(tree, module, name)
    whole = read(record)
    generator = GENERATOR[kernel]
    provenance = {**whole.provenance, "tolerance": generator.tolerance}
    if generator.model is not None:
        provenance |= {"source": "a reference in numpy", "by": "numpy"}
    apart = max(1, len(whole.examples) // EXAMPLES)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    cut = replace(
        whole,
        examples=whole.examples[::apart][:EXAMPLES],
        after=whole.after[::apart][:EXAMPLES],
        provenance=provenance,
    )
    write(folder / f"{name}.json", cut)


def launch(
    folder: Path, name: str, path: Path, device: str, seconds: float, where: dict[str, Any]
) -> dict[str, Any]:
    """Launch a carried kernel on its inputs, write what memory holds then, and say how it compares.

    ``where`` is the provenance. No launch is begun after so many seconds: the record then has fewer
    examples than were carried, and says so. ``differ`` counts those that left other memory than the
    interpreter.

    Raises:
        RuntimeError: not one launch was made, or Triton would interpret on a GPU.
    """
    import triton

    if device != "cpu" and os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise RuntimeError("TRITON_INTERPRET is set: what the interpreter does is no GPU's")
    begun = time.monotonic()
    carried = read(folder / f"{name}.json")
    kernel = loaded(folder / f"{name}.py", name.rpartition(".")[2])
    after: list[tuple[bytes, ...]] = []
    differ, first = 0, None
    for example, want in zip(carried.examples, carried.after, strict=True):
        if time.monotonic() - begun > seconds:
            break
        got = left_by(kernel, example, device)
        after.append(got)
        told = difference(
            example,
            want,
            got,
            carried.provenance["tolerance"],
            f"{carried.provenance['source']} leaves {{}}, the GPU {{}}",
        )
        if told is not None:
            differ, first = differ + 1, first or told
    if not after:
        raise RuntimeError(f"no launch was made within {seconds:.0f} s")
    versions = {**where["versions"], "triton": triton.__version__}
    versions["vllm"] = carried.provenance["versions"]["vllm"]
    held = {
        "source": carried.provenance["source"],
        "examples": len(after),
        "carried": len(carried.examples),
        "differ": differ,
        "first": first,
    }
    record = Record(
        carried.kernel,
        carried.parameters,
        carried.constants,
        carried.examples[: len(after)],
        tuple(after),
        {**where, "versions": versions, "held against": held},
    )
    write(path, record)
    return held


def key_of(path: Path) -> str | None:
    """What a record was made of, as its provenance has it; None if there is no such record."""
    try:
        key: str = json.loads(path.read_text())["provenance"]["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if path.with_suffix(".safetensors").exists() else None


def loaded(path: Path, name: str) -> Any:
    """The kernel of a carried source."""
    spec = importlib.util.spec_from_file_location("carried_kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def left_by(kernel: Any, example: Example, device: str) -> tuple[bytes, ...]:
    """The contents of all regions after a launch on a copy of them in a device's memory."""
    placed = Placed(example, device)
    if 0 not in example.grid:  # a launch of no programs does nothing, and is refused
        kernel[example.grid](**placed.arguments)
    return tuple(placed.contents())
