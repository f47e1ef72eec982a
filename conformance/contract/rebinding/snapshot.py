"""What torch and vLLM's loaded modules hold, and which names are rebound. Runs in children."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_TORCH = re.compile(r"torch(\.(cuda|accelerator)(\.\w+)*)?")
_VLLM = re.compile(r"vllm(\.\w+)*")
_OWNERS = ("kernel",)
"""Attributes through which objects at module level hold a Triton kernel that is launched."""

ABSENT = object()
Key = tuple[int, str]


@dataclass(frozen=True)
class Place:
    """A name: whose it is, and what it is bound to. ``label`` is dotted."""

    label: str
    holder: Any
    key: str
    value: Any


@dataclass(frozen=True)
class Rebound:
    """A name that is bound to another object than before, with every copy of it.

    ``original`` is what was bound there (or inherited), ``stand_in`` what is now.
    """

    labels: tuple[str, ...]
    original: Any
    stand_in: Any

    @property
    def label(self) -> str:
        """Its name where it is defined: torch's, or the longest of vLLM's."""
        return self.labels[0]


def snapshot(vllm: bool = True) -> dict[Key, Place]:
    """Everything that can be called or launched, by who holds it and under which name."""
    places: dict[Key, Place] = {}
    for name, module in list(sys.modules.items()):
        looked_at = _TORCH.fullmatch(name) or (vllm and _VLLM.fullmatch(name))
        if isinstance(module, ModuleType) and looked_at:
            for place in _held(name, module):
                places.setdefault((id(place.holder), place.key), place)
    import torch

    for key, value in vars(torch.Tensor).items():
        places[id(torch.Tensor), key] = Place(f"torch.Tensor.{key}", torch.Tensor, key, value)
    return places


def _held(name: str, module: ModuleType) -> Iterator[Place]:
    for key, value in list(vars(module).items()):
        if isinstance(value, ModuleType):
            continue
        if _counts(value):
            yield Place(f"{name}.{key}", module, key, value)
        # Of vLLM's classes every member counts: a kernel is one, too.
        whole = isinstance(value, type) and value.__module__ == name and _VLLM.fullmatch(name)
        owners: Iterable[str] = vars(value) if whole else _OWNERS
        namespace = _namespace(value)
        for owner in owners if namespace else ():
            inner = namespace.get(owner, ABSENT)
            if inner is not ABSENT and _counts(inner):
                yield Place(f"{name}.{key}.{owner}", value, owner, inner)


def _counts(value: Any) -> bool:
    # A look at the type alone: lazy placeholders import what they stand for when they are asked.
    kind = type(value)
    return callable(value) or (hasattr(kind, "__getitem__") and hasattr(kind, "launch"))


def _namespace(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def is_platforms(value: Any) -> bool:
    """Whether vLLM's platform put the object where a Triton kernel was, for every runner."""
    return f"{type(value).__module__}.{type(value).__qualname__}" == (
        "vllm.triton_utils.dispatcher.KernelOverride"
    )


def rebound(before: dict[Key, Place], after: dict[Key, Place]) -> tuple[Rebound, ...]:
    """The names that are bound to another object than before, copies of one name together.

    The platform replaces its own replacements whenever a worker is made; that is no news.
    """
    groups: dict[tuple[int, int], list[tuple[str, Any, Any]]] = {}
    for key, place in after.items():
        was = before.get(key)
        original = was.value if was is not None else _inherited(place)
        if original is ABSENT or original is place.value:
            continue
        if is_platforms(original) and is_platforms(place.value):
            continue
        groups.setdefault((id(original), id(place.value)), []).append(
            (place.label, original, place.value)
        )
    found = []
    for group in groups.values():
        labels = sorted({label for label, _, _ in group}, key=_rank)
        found.append(Rebound(tuple(labels), group[0][1], group[0][2]))
    return tuple(sorted(found, key=lambda r: r.label))


def _rank(label: str) -> tuple[bool, int, str]:
    return (not label.startswith("torch."), label.count("."), label)


def _inherited(place: Place) -> Any:
    """What a name that was not there before stood for: what the holder's class inherits."""
    if isinstance(place.holder, type) and place.label.startswith("torch."):
        for base in place.holder.__mro__[1:]:
            if place.key in vars(base):
                return vars(base)[place.key]
    return ABSENT


def changed(before: dict[Key, Place], after: dict[Key, Place]) -> list[str]:
    """The labels of all names that are bound to another object; torch's that are gone or new."""
    import torch

    labels = [label for item in rebound(before, after) for label in item.labels]
    labels += [
        f"{place.label} (gone)"
        for key, place in before.items()
        if key not in after and place.label.startswith("torch.")
    ]
    # Modules grow as they are used; a class does not.
    labels += [
        f"{place.label} (its own, where it was inherited)"
        for key, place in after.items()
        if key not in before and place.holder is torch.Tensor
    ]
    return sorted(dict.fromkeys(labels))
