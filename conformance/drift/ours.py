"""The CPU side that this project ships, read from its source: torch is never imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conformance.drift.classes import overrides_of
from conformance.drift.files import is_in
from conformance.drift.side import Side
from conformance.drift.standins import Module, Source, StandIn, value_of

PACKAGE = "runner_under_test"
_ROOT = Path(__file__).resolve().parents[2]
_HELD = {"vllm.utils.torch_utils.prev_set_stream": "torch.cuda.set_stream"}
"""Names of vLLM that hold a function of torch: vLLM's own ``torch.cuda.set_stream`` calls it."""
_CLASSES = (
    (f"{PACKAGE}.worker", "CPUWorker", "worker"),
    (f"{PACKAGE}.model_runner", "CPUModelRunner", "v1"),
)


def side(version: str | None = None, root: Path = _ROOT) -> Side:
    """Return what the runner does on one version of vLLM, or on any.

    A patch that is not for the version is left out.
    """
    source = _source(root)
    found = tuple(
        stand_in
        for stand_in, versions in _register(source)
        if version is None or not versions or is_in(version, versions)
    )
    return Side("ours", found, overrides_of(source, _CLASSES))


def supported(root: Path = _ROOT) -> str:
    """The versions of vLLM that the runner is made for, as a specifier."""
    module = _source(root).module(PACKAGE)
    value = module.top.get("SUPPORTED_VLLM") if module is not None else None
    return str(value.value) if isinstance(value, ast.Constant) else ""


@cache
def _source(root: Path) -> Source:
    texts = {}
    packages = set()
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
            packages.add(".".join(parts))
        texts[".".join(parts)] = path.read_bytes
    return Source(texts, frozenset(packages))


def _register(source: Source) -> Iterator[tuple[StandIn, str]]:
    """Every ``Patch(...)`` of the register as a stand-in, with the versions that it is for."""
    for name in sorted(source.texts):
        module = source.module(name)
        if module is None or not name.startswith(f"{PACKAGE}."):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="Patch")):
                    yield from _patch(module, node)
                case ast.Call(func=ast.Name(id="Kernel")):
                    yield from _kernel(module, node)


def _patch(module: Module, call: ast.Call) -> Iterator[tuple[StandIn, str]]:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    build = keywords.get("build")
    versions = keywords.get("versions")
    for target in _texts(module, keywords.get("target")):
        if build is None:
            continue
        shape, members = value_of(module, _built(module, build))
        stand_in = StandIn(
            _HELD.get(target, target), f"{module.name}:{call.lineno}", shape, members
        )
        yield stand_in, next(iter(_texts(module, versions)), "")


def _kernel(module: Module, call: ast.Call) -> Iterator[tuple[StandIn, str]]:
    """A ``Kernel(target, implementation, why, versions)``."""
    if len(call.args) < 4:
        return
    shape, members = value_of(module, call.args[1])
    for target in _texts(module, call.args[0]):
        versions = next(iter(_texts(module, call.args[3])), "")
        yield StandIn(target, f"{module.name}:{call.lineno}", shape, members), versions


def _built(module: Module, build: ast.expr) -> ast.AST:
    """What a builder returns: the body of a lambda, or the function that a function defines."""
    if isinstance(build, ast.Lambda):
        return build.body
    found = module.top.get(build.id) if isinstance(build, ast.Name) else None
    if isinstance(found, ast.FunctionDef):
        for node in found.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                return node
    return build


def _texts(module: Module, node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression can be: a constant, or one built from constants."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name):
            value = module.top.get(name)
            if isinstance(value, ast.expr):
                yield from _texts(module, value)
        case ast.JoinedStr(values=values):
            texts = [""]
            for part in values:
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                found = list(_texts(module, inner)) or list(_items(module, inner))
                texts = [text + end for text in texts for end in found]
            yield from texts
        case _:
            pass


def _items(module: Module, node: ast.expr) -> Iterator[str]:
    """What a loop variable runs over, if that is a tuple of texts at the module's level."""
    if not isinstance(node, ast.Name):
        return
    for inner in ast.walk(module.tree):
        match inner:
            case ast.comprehension(target=ast.Name(id=name), iter=ast.Name(id=over)) if (
                name == node.id
            ):
                value = module.top.get(over)
                if isinstance(value, ast.Tuple):
                    for element in value.elts:
                        yield from _texts(module, element)
