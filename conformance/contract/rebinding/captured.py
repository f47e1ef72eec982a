"""Who still holds the original of a rebound name: what a module captured before the patch."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

_RECORDS = {
    "vllm.triton_utils.dispatcher": "it keeps the originals, to know which kernels it replaced",
}
"""Modules whose own record of the originals is no use of them, and why."""


_OTHERS = frozenset({"vllm.platforms.rocm", "vllm.platforms.tpu", "vllm.platforms.xpu"})
"""Modules that load another platform's library of operators, which may end the process."""


def import_all(names: Iterable[str]) -> list[str]:
    """Import what can be imported here; return what cannot, or is for another platform."""
    missing = []
    # Python raises ImportError for what is None among the modules.
    kept_out: dict[str, Any] = dict.fromkeys(_OTHERS - sys.modules.keys())
    sys.modules.update(kept_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as error:  # a module for another platform may even exit
                if isinstance(error, KeyboardInterrupt):
                    raise
                missing.append(name)
    for name in kept_out:
        del sys.modules[name]
    return missing


def captures(originals: dict[int, str], stand_ins: set[int]) -> Iterator[tuple[str, str]]:
    """Where vLLM's modules hold one of the originals, by id; and the name that is rebound.

    A stand-in may hold what it stands for.
    """
    modules: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in modules:
        if name.partition(".")[0] != "vllm" or name in _RECORDS:
            continue
        if not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in stand_ins:
                continue
            if id(value) in originals:
                if not _defines(name, key, value):
                    yield f"{name}.{key}", originals[id(value)]
            elif getattr(value, "__module__", None) == name:
                yield from _inside(f"{name}.{key}", value, originals, stand_ins)
            elif isinstance(value, dict | list | tuple):
                yield from _in_container(f"{name}.{key}", value, originals)


def _defines(module: str, key: str, value: Any) -> bool:
    """Whether the name is the object's own definition, which has to be somewhere."""
    return (
        getattr(value, "__module__", None) == module and getattr(value, "__qualname__", None) == key
    )


def _inside(
    label: str, value: Any, originals: dict[int, str], stand_ins: set[int]
) -> Iterator[tuple[str, str]]:
    """What a function or class of the module holds."""
    if isinstance(value, type):
        for key, held in list(vars(value).items()):
            if id(_plain(held)) in stand_ins:
                continue
            if id(held) in originals and not key.startswith("__"):
                yield f"{label}.{key}", originals[id(held)]
            yield from _in_function(f"{label}.{key}", _plain(held), originals)
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                for default in (field.default, field.default_factory):
                    if id(default) in originals:
                        yield f"{label}.{field.name} (a field's default)", originals[id(default)]
    else:
        yield from _in_function(label, _plain(value), originals)


def _plain(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _in_function(label: str, value: Any, originals: dict[int, str]) -> Iterator[tuple[str, str]]:
    if isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.values())
        yield from ((f"{label} (partial)", originals[id(v)]) for v in held if id(v) in originals)
        return
    if not isinstance(value, types.FunctionType):
        return
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    yield from ((f"{label} (a default)", originals[id(v)]) for v in defaults if id(v) in originals)
    for cell in value.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if id(held) in originals:
            yield f"{label} (its closure)", originals[id(held)]
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None and id(wrapped) in originals:
        yield f"{label} (what it wraps)", originals[id(wrapped)]


def _in_container(label: str, value: Any, originals: dict[int, str]) -> Iterator[tuple[str, str]]:
    items = value.values() if isinstance(value, dict) else value
    for item in list(items)[:1000]:
        if id(item) in originals:
            yield f"{label} (an item)", originals[id(item)]
