"""What may be passed: whether one callable takes all that another takes."""

from __future__ import annotations

import contextlib
import inspect
import types
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HELPER = contextlib.contextmanager(lambda: None).__code__  # type: ignore[arg-type, return-value]


def signature_of(value: Any, *, bound: bool = False) -> inspect.Signature | None:
    """Return a callable's signature, None where inspect cannot say; ``bound`` drops the first.

    A wrapper that keeps the wrapped function's name is asked for what it takes itself.
    """
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].kind in _POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def narrower(base: inspect.Signature, other: inspect.Signature) -> list[str]:
    """Say which calls of ``base`` the other does not take, or takes otherwise; empty if none."""
    faults: list[str] = []
    mine = list(other.parameters.values())
    positional = [p for p in mine if p.kind in _POSITIONAL]
    named = {p.name: p for p in mine if p.kind in _NAMED}
    any_positional = any(p.kind is p.VAR_POSITIONAL for p in mine)
    any_named = any(p.kind is p.VAR_KEYWORD for p in mine)
    met: set[str] = set()
    index = 0
    for theirs in base.parameters.values():
        match: inspect.Parameter | None = None
        if theirs.kind is theirs.VAR_POSITIONAL:
            if not any_positional:
                faults.append(f"it does not take *{theirs.name}")
            continue
        if theirs.kind is theirs.VAR_KEYWORD:
            if not any_named:
                faults.append(f"it does not take **{theirs.name}")
            continue
        if theirs.kind in _POSITIONAL:
            match = positional[index] if index < len(positional) else None
            index += 1
            if match is None and not any_positional:
                faults.append(f"it does not take {theirs.name!r} by position")
        if theirs.kind in _NAMED:
            by_name = named.get(theirs.name)
            if by_name is None and not any_named:
                faults.append(f"it does not take {theirs.name!r} by name")
            elif match is not None and by_name is not None and by_name is not match:
                faults.append(f"{theirs.name!r} has another place")
            match = by_name or match
        if match is not None:
            met.add(match.name)
            faults.extend(_defaults(theirs, match))
    faults.extend(
        f"it needs {p.name!r}, which nobody passes"
        for p in mine
        if p.name not in met
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    )
    return list(dict.fromkeys(faults))


def _defaults(theirs: inspect.Parameter, mine: inspect.Parameter) -> list[str]:
    if theirs.default is theirs.empty:
        return []
    if mine.default is mine.empty:
        return [f"{theirs.name!r} may be left out, and must be given here"]
    if type(mine.default) is not type(theirs.default) or mine.default != theirs.default:
        return [f"{theirs.name!r} left out is {theirs.default!r}, and here {mine.default!r}"]
    return []


def kind_of(value: Any) -> str:
    """Say what using a class's attribute gives: a method, a property, a coroutine, ..."""
    if isinstance(value, staticmethod | classmethod | property):
        return type(value).__name__
    if not isinstance(value, types.FunctionType):
        return type(value).__name__
    if value.__code__ is _HELPER:
        return "context manager"
    if inspect.iscoroutinefunction(value):
        return "coroutine function"
    if inspect.isasyncgenfunction(value):
        return "asynchronous generator function"
    if inspect.isgeneratorfunction(value):
        return "generator function"
    return "method"
