"""What a generator is, and what generators have in common.

A generator draws sizes, flags and edge values one by one with hypothesis, and fills bulk memory
from a seed that it draws, which is faster by far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from conformance.kernels.example import Example, Memory

T = TypeVar("T")

POISONS = (-77, 113)
"""What outputs hold before a launch: values that no kernel stores, of either sign."""


class Draw:
    """Draws the parts of one example."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], names: Sequence[str]) -> None:
        self._draw = draw
        self.names = tuple(names)
        """The parameters of the kernel in the vLLM at hand."""
        self.rng = np.random.default_rng(self._draw(st.integers(0, 2**32 - 1)))
        self.memory = Memory(self.among(*POISONS))

    def among(self, *values: T) -> T:
        """One of some values."""
        return self._draw(st.sampled_from(values))

    def integer(self, least: int, most: int) -> int:
        """An integer, both ends included."""
        return int(self._draw(st.integers(least, most)))

    def flag(self) -> bool:
        """True or false."""
        return bool(self._draw(st.booleans()))

    def rarely(self) -> bool:
        """True once in eight."""
        return self.integer(0, 7) == 7

    def integers(self, count: int, least: int, most: int) -> list[int]:
        """A number of integers, each drawn by itself."""
        return list(self._draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    def ids(self, count: int, vocabulary: int) -> np.ndarray:
        """Token ids, ``[count]`` int64; the first and the last of the vocabulary among them."""
        values = self.rng.integers(0, vocabulary, count)
        values[self.rng.random(count) < 0.2] = vocabulary - 1
        values[self.rng.random(count) < 0.2] = 0
        return values


@dataclass(frozen=True)
class Generator:
    """How inputs of one kernel are drawn, and how it is launched.

    ``kernel`` is its name on the surface. ``home`` is ``module:path`` of what launches read, so
    that a stand-in that no launch reads is not taken for one. ``build`` draws an example.
    ``call`` is the function above the launch, called with the arguments as tensors by the kernel's
    names, and the example's extra values; ``through`` names it. ``left_out`` says which inputs are
    not drawn, and why.
    """

    kernel: str
    home: str
    build: Callable[[Draw], Example]
    through: str
    call: Callable[[dict[str, Any], dict[str, Any]], None]
    left_out: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    """Outputs that may be bfloat16, to which the interpreter does not round."""
    tolerance: float = 0.0
    """Largest relative difference of floating-point outputs; 0 asks for the same bits."""
    operator: Callable[[dict[str, Any], dict[str, Any]], None] | None = None
    """What a CPU runs elsewhere in the kernel's stead, whatever stands in for a launch of it."""
    model: Callable[[dict[str, Any]], None] | None = None
    """For a kernel that cannot be interpreted: what it does to its arguments, in float64."""

    @property
    def module(self) -> str:
        """The module that has what launches read."""
        return self.home.partition(":")[0]


def strategy(build: Callable[[Draw], Example], names: Sequence[str]) -> st.SearchStrategy[Example]:
    """Examples for a kernel with these parameters."""
    return st.composite(lambda draw: build(Draw(draw, names)))()


def boundaries(lengths: Sequence[int]) -> np.ndarray:
    """Where each of some requests begins, and the end: ``[requests + 1]``."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
