"""Overrides that call their base: what is passed on, what comes back, what is swallowed."""

from __future__ import annotations

import inspect
from typing import Any

from conformance.contract.clause import require
from conformance.contract.overrides.bench import Bench, replaced
from conformance.contract.overrides.found import Override


class _Planted(RuntimeError):
    """What a planted base raises."""


def initialize_kv_cache(override: Override, bench: Bench) -> None:
    """The base's, with every argument passed on."""
    keywords: dict[str, Any] = {"is_profiling": True}
    base = getattr(override.base, override.method.method)
    if "kv_cache_allocation_context" in inspect.signature(base).parameters:  # from vLLM 0.29 on
        keywords["kv_cache_allocation_context"] = object()
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        (("config",), {}),
        (("config", True), {}),
        (("config",), keywords),
    )
    for given in calls:
        _passes_on(override, bench.runner, *given)


def shutdown(override: Override, bench: Bench) -> None:
    """The base's; an exception of the base's comes out, whatever is cleaned up on the way."""
    _passes_on(override, bench.worker, (), {})


def _passes_on(
    override: Override, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    name, base = override.method.method, override.base
    signature = inspect.signature(getattr(base, name))
    expected = signature.bind(target, *args, **kwargs)
    expected.apply_defaults()
    calls: list[Any] = []

    def planted(*a: Any, **k: Any) -> Any:
        bound = signature.bind(*a, **k)
        bound.apply_defaults()
        calls.append(bound.arguments)
        if len(calls) == 2:
            raise _Planted("planted in the base")

    with replaced(base, name, planted):
        returned = getattr(target, name)(*args, **kwargs)
        require(len(calls) == 1, f"it calls the base's {name} {len(calls)} times, and not once")
        require(
            calls[0] == expected.arguments,
            f"called with {args or kwargs}, the base gets {dict(calls[0])}",
        )
        require(returned is None, f"the base returns None, and it returned {returned!r}")
        try:
            getattr(target, name)(*args, **kwargs)
        except _Planted:
            return
        except Exception as error:
            require(
                isinstance(error.__cause__, _Planted),
                f"an exception of the base's comes out as {type(error).__name__}: {error}",
            )
            return
    require(False, "an exception that the base raises is swallowed")


def wrapper(override: Override) -> None:
    """A wrapper of the base's own method gives arguments, result and exceptions through.

    The method that it wraps is looked for in its closure, and something else put there.
    """
    base = inspect.unwrap(override.original)
    cells = [
        cell
        for cell in override.value.__closure__ or ()
        if callable(cell.cell_contents) and inspect.unwrap(cell.cell_contents) is base
    ]
    require(len(cells) == 1, "it wraps the base's method, and what it does with it cannot be seen")
    (cell,) = cells
    wrapped, result = cell.cell_contents, object()
    calls: list[Any] = []

    def planted(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        if len(calls) == 2:
            raise _Planted("planted in the base")
        return result

    given = ((object(), object()), {"keyword": object()})
    cell.cell_contents = planted
    try:
        returned = override.value(*given[0], **given[1])
        require(calls == [given], f"called with {given}, the base's method got {calls}")
        require(returned is result, f"the base's result is lost: it returned {returned!r}")
        try:
            override.value(*given[0], **given[1])
        except _Planted:
            return
        require(False, "an exception that the base raises is swallowed")
    finally:
        cell.cell_contents = wrapped
