"""Which steps of a chain a subject replaces, so that nothing behind them is reached through them.

Runs in child processes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.surface.upstream import calls_super


def replaced_steps(steps: Iterable[str], classes: Sequence[type]) -> list[str]:
    """The steps ``module:function`` or ``module:Class.method`` that something stands in for.

    That is a method which one of ``classes`` overrides and does not hand over to, and a function
    whose module has one from another file in its place.
    """
    return sorted(step for step in set(steps) if _is_replaced(step, classes))


def _is_replaced(step: str, classes: Sequence[type]) -> bool:
    module_name, _, path = step.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return False
    owner, _, name = path.rpartition(".")
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part, None)
    if owner:
        base = getattr(module, owner, None)
        return isinstance(base, type) and any(_overrides(cls, base, name) for cls in classes)
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    return code is not None and code.co_filename != module.__file__


def _overrides(cls: type, base: type, name: str) -> bool:
    """Whether a class below a base has a method of its own that does not call the base's."""
    if not issubclass(cls, base):
        return False
    for between in cls.__mro__[: cls.__mro__.index(base)]:
        member = vars(between).get(name)
        if member is not None:
            source = textwrap.dedent(inspect.getsource(inspect.unwrap(member)))
            return not calls_super(ast.parse(source), name)
    return False
