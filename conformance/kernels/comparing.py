"""Compares what two launches left in memory, and says it so that a person can read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.kernels.example import Example, Region, View, from_storage, storage_dtype

_SHOWN = 12
"""So many elements of a tensor are told of an example."""


def difference(
    example: Example,
    want: Sequence[bytes],
    got: Sequence[bytes],
    tolerance: float = 0.0,
    told: str = "a GPU leaves {}, here {}",
) -> str | None:
    """Say where memory is other than it should be; None if it is the same everywhere.

    All bytes of all regions count, those around tensors too. Bits decide, but for NaN, of which
    there are many, and but for floating-point numbers within the tolerance of each other.
    """
    found: list[str] = []
    for number, (region, expected, actual) in enumerate(
        zip(example.regions, want, got, strict=True)
    ):
        if expected == actual:
            continue
        a, b = _elements(region, expected), _elements(region, actual)
        different = ~_same(a, b, tolerance)
        if different.any():
            at = int(np.flatnonzero(different)[0])
            more = int(different.sum()) - 1
            place = _place(example, number, at)
            both = told.format(_shown(a[at]), _shown(b[at]))
            others = f", and {more} more elements differ" if more else ""
            found.append(f"{place} ({region.dtype}): {both}{others}")
    return "; ".join(found) or None


def described(example: Example) -> str:
    """The inputs of an example, an argument per line; long tensors are cut."""
    lines = []
    for name, value in example.arguments.items():
        if not isinstance(value, View):
            lines.append(f"{name} = {value}")
            continue
        region = example.regions[value.region]
        linked = any(link.region == value.region for link in example.links)
        strided = f", strides {value.stride}" if _is_strided(value) else ""
        shape = "x".join(map(str, value.shape))
        values = "addresses" if linked else _listed(region, value)
        lines.append(f"{name} = {value.dtype}[{shape}]{strided}: {values}")
    return "\n".join(lines)


def _elements(region: Region, content: bytes) -> np.ndarray:
    return from_storage(np.frombuffer(content, storage_dtype(region.dtype)), region.dtype)


def _same(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray:
    if a.dtype.kind != "f":
        return a == b
    both_nan = np.isnan(a) & np.isnan(b)
    if tolerance:
        with np.errstate(all="ignore"):
            wide, other = a.astype(np.float64), b.astype(np.float64)
            close = np.abs(wide - other) <= tolerance * np.maximum(np.abs(wide), 1.0)
        return (a == b) | both_nan | close
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | both_nan


def _place(example: Example, region: int, element: int) -> str:
    """An element of a region, in the coordinates of the argument that it belongs to."""
    size = storage_dtype(example.regions[region].dtype).itemsize
    nearest: tuple[int, str] | None = None
    for name, view in example.arguments.items():
        if not isinstance(view, View) or view.region != region:
            continue
        if storage_dtype(view.dtype).itemsize != size:
            continue
        places = _places(view)
        hit = np.flatnonzero(places == element)
        if hit.size:
            index = np.unravel_index(int(hit[0]), view.shape)
            return f"{name}[{', '.join(str(int(i)) for i in index)}]"
        if places.size:
            after = int(places.max())
            before = int(places.min())
            away = element - after if element > after else element - before
            if element < before or element > after:
                side = "after" if away > 0 else "before"
                nearest = (abs(away), f"element {abs(away)} {side} {name}")
            else:
                nearest = (0, f"memory between the rows of {name}")
    if nearest is not None:
        return nearest[1]
    return f"element {element} of {example.regions[region].name}"


def _places(view: View) -> np.ndarray:
    """Where in its region each element of a view lies, in the order of its indices."""
    places = np.full(view.shape, view.offset, dtype=np.int64)
    for axis, (length, stride) in enumerate(zip(view.shape, view.stride, strict=True)):
        shape = [1] * len(view.shape)
        shape[axis] = length
        places = places + np.arange(length).reshape(shape) * stride
    return places.ravel()


def _is_strided(view: View) -> bool:
    contiguous, step = [], 1
    for length in reversed(view.shape):
        contiguous.append(step)
        step *= max(length, 1)
    return tuple(reversed(contiguous)) != view.stride


def _listed(region: Region, view: View) -> str:
    values = _elements(region, region.content)[_places(view)]
    shown = ", ".join(_shown(value) for value in values[:_SHOWN])
    more = f", ... ({values.size} in all)" if values.size > _SHOWN else ""
    return f"[{shown}{more}]"


def _shown(value: Any) -> str:
    if isinstance(value, np.bool_):
        return str(bool(value))
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)
