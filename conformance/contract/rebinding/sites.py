"""The inventory's sites that a CPU reaches, as what a rebound name can be held against."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from conformance.contract.reached import COMPILER_OPTIONS
from conformance.surface.inventory import known_path, load
from conformance.surface.model import Row

_NO_READ = ("annotation", "write")
_CPU_BACKEND = re.compile(r"vllm[/.](v1[/.]worker[/.]cpu|platforms[/.]cpu)")


@cache
def all_rows(vllm: str) -> tuple[Row, ...]:
    """Every row of either generation, on a CPU or not."""
    return load(known_path(vllm)).rows


@cache
def rows(vllm: str, generations: tuple[str, ...] = ("v1",)) -> tuple[Row, ...]:
    """The rows of some runner generations that a CPU reaches, or may reach."""
    return tuple(
        row
        for row in all_rows(vllm)
        if row.on_cpu != "false" and row.generation in (*generations, "both")
    )


def modules(vllm: str) -> tuple[str, ...]:
    """The modules that the rows are in; not those of vLLM's own CPU runner, which rebind."""
    found = {row.module for row in rows(vllm)}
    return tuple(sorted(name for name in found if not _CPU_BACKEND.match(name)))


def read_at(label: str, rows: tuple[Row, ...]) -> list[Row]:
    """The sites among these at which a name is read, called or launched."""
    if label.startswith("torch."):
        return [
            row
            for row in rows
            if row.kind not in _NO_READ
            and (
                row.attribute == label
                or row.attribute.startswith(f"{label}.")
                or (row.attribute == "pin_memory=True" and callee(row) == label)
            )
        ]
    kernels = {f"triton:{label.rpartition('.')[2]}", f"triton:{'.'.join(label.split('.')[-2:])}"}
    return [row for row in rows if row.attribute in kernels]


def is_called_in_vllm(label: str) -> bool:
    """Whether vLLM calls a function of its own by this name, outside of its CPU backend.

    Functions of vLLM's that stand for no device attribute have no rows in the inventory.
    """
    module, _, name = label.rpartition(".")
    called = re.compile(rf"(?<!def )(?<!class )\b{re.escape(name)}\(")
    return any(
        name in text and called.search(text)
        for text in (path.read_text(errors="replace") for path in _files(module))
    )


def _files(module: str) -> Iterator[Path]:
    """vLLM's files, one after the other: the module's own, its package's, V1's, and the rest."""
    root = _root()
    own = root.parent / (module.replace(".", "/") + ".py")
    seen = set()
    if own.exists():
        seen.add(own)
        yield own
    for folder in (own.parent, root / "v1", root):
        for path in sorted(folder.rglob("*.py")):
            if path not in seen and not _CPU_BACKEND.search(path.as_posix()):
                seen.add(path)
                yield path


@cache
def _root() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def calls_of(vllm: str, label: str) -> Iterator[tuple[Row, str]]:
    """The calls of a name and of its members, each with the member's name, or an empty one."""
    for row in rows(vllm):
        if row.call is None or row.kind not in ("call", "launch"):
            continue
        if row.attribute == label:
            yield row, ""
        elif row.attribute.startswith(f"{label}."):
            yield row, row.attribute.removeprefix(f"{label}.")


def launches_of(vllm: str, labels: tuple[str, ...]) -> Iterator[Row]:
    """The launches of a kernel that is held under these names."""
    seen = set()
    for label in labels:
        for row in read_at(label, rows(vllm)):
            if row.kind != "launch" or row.call is None or row.key in seen:
                continue
            seen.add(row.key)
            # Others call what owns the kernel, which makes the launch's arguments of the call's.
            if _call_at(row, lambda call: isinstance(call.func, ast.Subscript)) is not None:
                yield row


def misfit(signature: inspect.Signature, row: Row, *, leading: int = 0) -> str | None:
    """Say why a site's arguments cannot be bound to a signature, None if they can."""
    assert row.call is not None
    positional = [text for text in row.call.positional if not text.startswith("*")]
    keywords = [text.partition("=")[0] for text in row.call.keywords if not text.startswith("*")]
    if row.kind == "launch":
        keywords = [name for name in keywords if name not in COMPILER_OPTIONS]
    # What a starred argument brings is not known: whatever is still missing may be in it.
    starred = len(positional) + len(keywords) < len(row.call.positional) + len(row.call.keywords)
    bind = signature.bind_partial if starred else signature.bind
    try:
        bind(*range(leading + len(positional)), **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return None


def place(row: Row) -> str:
    """A site's file and line."""
    return f"{row.module.replace('.', '/')}.py:{row.line}"


def callee(row: Row) -> str | None:
    """What is called where an argument is passed: ``torch.empty`` of a ``pin_memory=True``."""
    call = _call_at(row, lambda call: any(k.arg == "pin_memory" for k in call.keywords))
    return ast.unparse(call.func) if call is not None else None


def _call_at(row: Row, wanted: Callable[[ast.Call], bool]) -> ast.Call | None:
    """The innermost call at a row's line that is as wanted."""
    best: ast.Call | None = None
    for node in _calls(row.module):
        if node.lineno <= row.line <= (node.end_lineno or node.lineno) and wanted(node):
            best = node if best is None or node.lineno >= best.lineno else best
    return best


@cache
def _calls(module: str) -> tuple[ast.Call, ...]:
    tree = _tree(module)
    nodes = ast.walk(tree) if tree is not None else ()
    return tuple(node for node in nodes if isinstance(node, ast.Call))


def _tree(module: str) -> ast.Module | None:
    path = _root().parent / (module.replace(".", "/") + ".py")
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    return ast.parse(path.read_bytes()) if path.exists() else None
