"""What a subject's classes override, found in the classes themselves. Runs in child processes."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conformance.contract.overrides.names import (
    RUNNER_ATTRIBUTE,
    RUNNER_BASE,
    UPSTREAM,
    WORKER_BASES,
    Method,
)

_ABSENT = object()
_METHODS = (types.FunctionType, staticmethod, classmethod, property)


@dataclass(frozen=True)
class Override:
    """A method that a CPU runner class defines, and what its base has under the name."""

    method: Method
    cls: Any
    owner: type
    base: Any
    value: Any
    original: Any

    @property
    def is_new(self) -> bool:
        """Whether the base has no such method."""
        return self.original is _ABSENT

    @property
    def is_wrapper(self) -> bool:
        """Whether it wraps the base's own method and says so."""
        if self.is_new or not isinstance(self.value, types.FunctionType):
            return False
        return inspect.unwrap(self.value) is inspect.unwrap(_function(self.original))

    @property
    def title(self) -> str:
        """The method, and where it is defined."""
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.method.method}"

    @property
    def place(self) -> str:
        """The base's file and line, and the override's."""
        here, there = _place(self.value), "" if self.is_new else _place(self.original)
        if not there:
            return here
        return f"{here}; the base's is at {there}"


def overrides_of(classes: dict[str, tuple[type, type]]) -> tuple[Override, ...]:
    """Everything that is a method or a property and stands before the base in the MRO."""
    found: list[Override] = []
    for role, (cls, base) in classes.items():
        found.extend(_overrides(role, cls, base))
    return tuple(sorted(found, key=lambda override: override.method))


def _overrides(role: str, cls: type, base: type) -> Iterator[Override]:
    seen: set[str] = set()
    for owner in cls.__mro__[: cls.__mro__.index(base)]:
        for name, value in vars(owner).items():
            special = name.startswith("__") and name != "__init__"
            if special or name in seen or not isinstance(value, _METHODS):
                continue
            seen.add(name)
            original = inspect.getattr_static(base, name, _ABSENT)
            yield Override(Method(role, name), cls, owner, base, value, original)


def classes_of(subject: str, worker_cls: str | None) -> dict[str, tuple[type, type]]:
    """A subject's runner and worker, by role, with the classes of vLLM's that they extend."""
    if worker_cls is None:
        named = [_load(*item) for item in UPSTREAM] if subject == "upstream" else []
    else:
        module, _, name = worker_cls.rpartition(".")
        named = [_load(module, name)]
    bases = {"runner": [_load(*RUNNER_BASE)], "worker": [_load(*item) for item in WORKER_BASES]}
    classes: dict[str, tuple[type, type]] = {}
    for cls in named:
        for role, candidates in bases.items():
            base = next((base for base in candidates if issubclass(cls, base)), None)
            if base is not None:
                classes[role] = (cls, base)
                runner = inspect.getattr_static(cls, RUNNER_ATTRIBUTE, None)
                if role == "worker" and isinstance(runner, type):
                    classes.setdefault("runner", (runner, bases["runner"][0]))
    return classes


def _load(module: str, name: str) -> type:
    cls: type = getattr(importlib.import_module(module), name)
    return cls


def _function(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _place(value: Any) -> str:
    function = inspect.unwrap(_function(value))
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(value)
    path = code.co_filename
    for package in ("/vllm/", "/runner_under_test/", "/tests/"):
        if package in path:
            path = package[1:] + path.rpartition(package)[2]
            break
    return f"{path}:{code.co_firstlineno}"
