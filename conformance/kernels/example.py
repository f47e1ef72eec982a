"""One launch as data: memory, the views of it that are passed, scalars, and addresses in memory.

Numpy only, so that it can be drawn, kept and compared without torch. `conformance.kernels.memory`
turns it into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BFLOAT16 = "bfloat16"
"""Numpy has no such dtype; its elements are kept as the upper halves of float32."""

Scalar = int | float | bool | None


@dataclass(frozen=True)
class Region:
    """A piece of memory before the launch: its bytes, and the dtype that it is told in."""

    name: str
    dtype: str
    content: bytes


@dataclass(frozen=True)
class View:
    """A tensor argument: where it lies in a region. Offset and strides count elements."""

    region: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Link:
    """A 64-bit address in memory: at byte ``at`` of ``region`` lies that of ``target`` + offset."""

    region: int
    at: int
    target: int
    offset: int


Value = View | Scalar


@dataclass(frozen=True)
class Example:
    """A launch: the kernel's arguments by its own parameter names, and the memory behind them.

    ``extra`` is what the function above the launch needs and the kernel is not given.
    ``may_refuse`` says that a CPU is never asked for this, so that an error is as good as the
    answer; a wrong answer is not.
    """

    regions: tuple[Region, ...]
    arguments: dict[str, Value]
    grid: tuple[int, ...]
    links: tuple[Link, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    may_refuse: bool = False

    @property
    def size(self) -> int:
        """Bytes of memory: of the examples that fail, the one with the fewest is told."""
        return sum(len(region.content) for region in self.regions)


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype in which elements of a dtype are kept."""
    return np.dtype("uint16" if dtype == BFLOAT16 else dtype)


def to_storage(values: Any, dtype: str) -> np.ndarray:
    """Elements as they are kept; float32 is rounded to the nearest bfloat16, to even at a tie."""
    if dtype != BFLOAT16:
        return np.asarray(values).astype(dtype)
    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Elements as numbers; bfloat16 as float32."""
    if dtype != BFLOAT16:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


class Memory:
    """Lays out the regions of an example.

    ``poison`` is what memory holds that no input fills: outputs, and what lies around all tensors.
    A bool has it as True if it is negative.
    """

    def __init__(self, poison: int) -> None:
        self.poison = poison
        self._regions: list[Region] = []
        self._links: list[Link] = []
        self._arrays: list[np.ndarray] = []

    def region(self, name: str, values: np.ndarray, dtype: str) -> int:
        """Add a region that holds these elements and nothing else; return its number."""
        kept = to_storage(values, dtype)
        self._regions.append(Region(name, dtype, kept.tobytes()))
        return len(self._regions) - 1

    def tensor(
        self,
        name: str,
        values: Any,
        dtype: str,
        *,
        room: tuple[int, int] = (1, 2),
        gap: int = 0,
    ) -> View:
        """Add a tensor in a region of its own, with poison before, after and between its rows.

        ``room`` is the number of elements before it and after it, ``gap`` between two of its rows.
        """
        values = np.asarray(values)
        shape = values.shape
        stride: tuple[int, ...] = (1,)
        if values.ndim == 0:
            stride = ()
        elif values.ndim == 2:
            stride = (shape[1] + gap, 1)
        length = values.size + (gap * shape[0] if values.ndim == 2 else 0)
        whole = np.full(room[0] + length + room[1], self._poison(dtype))
        if values.dtype == object or values.dtype.kind in "iub":
            whole = whole.astype(object if dtype == "uint64" else np.int64)
        if values.ndim == 2:
            rows = whole[room[0] : room[0] + length].reshape(shape[0], shape[1] + gap)
            rows[:, : shape[1]] = values
        else:
            whole[room[0] : room[0] + length] = values.ravel()
        return View(self.region(name, whole, dtype), dtype, shape, stride, room[0])

    def output(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: str,
        *,
        room: tuple[int, int] = (1, 2),
        gap: int = 0,
    ) -> View:
        """Add a tensor that is full of poison."""
        filled = np.full(shape, self._poison(dtype))
        return self.tensor(name, filled, dtype, room=room, gap=gap)

    def link(self, region: int, at: int, target: int, offset: int) -> None:
        """Put an address into memory: that of ``target``, and ``offset`` bytes."""
        self._links.append(Link(region, at, target, offset))

    def addresses(self, name: str, targets: Sequence[tuple[int, int]], dtype: str) -> View:
        """Add a tensor of addresses, each a region and an offset in bytes."""
        view = self.tensor(name, np.zeros(len(targets), dtype=np.int64), dtype)
        for number, (target, offset) in enumerate(targets):
            self.link(view.region, (view.offset + number) * 8, target, offset)
        return view

    def example(
        self,
        arguments: dict[str, Value],
        grid: tuple[int, ...],
        *,
        extra: dict[str, Any] | None = None,
        may_refuse: bool = False,
    ) -> Example:
        """The example of what was laid out."""
        return Example(
            tuple(self._regions), arguments, grid, tuple(self._links), extra or {}, may_refuse
        )

    def _poison(self, dtype: str) -> Any:
        if dtype == "bool":
            return self.poison < 0
        if dtype in ("uint8", "uint64"):
            return abs(self.poison)
        return float(self.poison) if "float" in dtype else self.poison
