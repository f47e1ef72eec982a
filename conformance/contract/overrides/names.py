"""Which methods a subject's classes define, read from their source; nothing of it is imported."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from conformance.target import Subject

RUNNER_BASE = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
WORKER_BASES = (
    ("vllm.v1.worker.gpu_worker", "Worker"),
    ("vllm.v1.worker.worker_base", "WorkerBase"),
)
UPSTREAM = (
    ("vllm.v1.worker.cpu_model_runner", "CPUModelRunner"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker"),
)
RUNNER_ATTRIBUTE = "model_runner_class"
"""The class attribute through which a worker names its runner."""

Link = tuple[str, str, ast.ClassDef | None]
"""A class of a chain of bases: module, name, and its source where it is read."""

OTHERS = "others"
"""The row of what the classes have and no row names: made by a decorator, or not to be read."""


@dataclass(frozen=True, order=True)
class Method:
    """A method that a CPU runner class defines. ``role`` is ``runner`` or ``worker``."""

    role: str
    method: str

    @property
    def name(self) -> str:
        """The method's name in rows."""
        return f"{self.role}.{self.method}" if self.role else self.method


def rows_of(subjects: tuple[Subject, ...]) -> tuple[Method, ...]:
    """The methods of every subject that overrides any, and the row of those that none names."""
    methods = {method for subject in subjects for method in methods_of(subject)}
    return (*sorted(methods), Method("", OTHERS))


def methods_of(subject: Subject) -> tuple[Method, ...]:
    """The methods that a subject's runner and worker define themselves, as far as source shows."""
    if subject.name == "bare":
        return ()
    if subject.worker_cls is None:
        classes: tuple[tuple[str, str], ...] = UPSTREAM
    else:
        module, _, name = subject.worker_cls.rpartition(".")
        classes = ((module, name),)
    return tuple(sorted({method for item in classes for method in _methods(*item)}))


def _methods(module: str, name: str, role: str | None = None) -> Iterator[Method]:
    """The methods of a class and of its own bases, down to the class of vLLM's that they extend."""
    chain = list(_chain(module, name))
    role = role or _role(chain)
    if role is None:
        return
    for where, _, node in chain:
        for statement in node.body if node is not None else ():
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                if statement.name == "__init__" or not statement.name.startswith("__"):
                    yield Method(role, statement.name)
            elif role == "worker" and (runner := _runner_of(statement)) is not None:
                yield from _methods(*_origin(_source(where) or {}, where, runner), "runner")


def _role(chain: list[Link]) -> str | None:
    ends = {(module, name) for module, name, node in chain if node is None}
    if RUNNER_BASE in ends:
        return "runner"
    return "worker" if ends & set(WORKER_BASES) else None


def _runner_of(statement: ast.stmt) -> str | None:
    """The class that a statement of a worker's body names as its runner."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=runner)):
            return runner if name == RUNNER_ATTRIBUTE else None
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Name(id=runner)):
            return runner if name == RUNNER_ATTRIBUTE else None
    return None


def _chain(module: str, name: str, depth: int = 8) -> Iterator[Link]:
    """A class and its bases; vLLM's own, where the chain ends, without a node."""
    if (module, name) in (RUNNER_BASE, *WORKER_BASES):
        yield module, name, None
        return
    source = _source(module)
    node = source.get(name) if source else None
    if source is None or not depth:
        return
    if isinstance(node, ast.ImportFrom):
        yield from _chain(*_origin(source, module, name), depth - 1)
    elif isinstance(node, ast.ClassDef):
        yield module, name, node
        for base in node.bases:
            if isinstance(base, ast.Name):
                yield from _chain(*_origin(source, module, base.id), depth - 1)


def _origin(source: dict[str, ast.AST], module: str, name: str) -> tuple[str, str]:
    """Where a name of a module's comes from: its import, or the module itself."""
    node = source.get(name)
    if not isinstance(node, ast.ImportFrom):
        return module, name
    original = next(a.name for a in node.names if (a.asname or a.name) == name)
    package = module.split(".")[: -node.level] if node.level else []
    return ".".join([*package, *([node.module] if node.module else [])]), original


@cache
def _source(module: str) -> dict[str, ast.AST] | None:
    """A module's classes and imports by the names that they bind; None if it is not found."""
    path = _path(module)
    if path is None:
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    bound: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bound[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            bound.update((alias.asname or alias.name, node) for alias in node.names)
    return bound


def _path(module: str) -> Path | None:
    """A module's file. Its packages are looked into and not imported, as find_spec would."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for depth, _ in enumerate(rest, 2):
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = ".".join(module.split(".")[:depth])
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return Path(spec.origin) if spec is not None and spec.origin else None
