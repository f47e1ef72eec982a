"""What a reference of a V2 kernel is.

The V2 runner has no counterparts of its kernels: where there is Triton, a CPU runs the kernels
themselves. So each is held against what it ought to compute, written anew in numpy, in float64 and
element by element, from what the runner says that it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.kernels.example import Example, Memory, View
from conformance.kernels.generators.generator import Draw

Arrays = dict[str, Any]
"""Arguments by name: tensors as numpy arrays that share their memory, everything else as it is."""


@dataclass(frozen=True)
class Reference:
    """How inputs of a V2 kernel are drawn, and what it should do to them.

    ``build`` draws an example, ``model`` changes the arrays as the kernel should. ``tolerance`` is
    the largest relative difference of floating-point outputs; 0 asks for the same bits.
    """

    kernel: str
    home: str
    build: Callable[[Draw], Example]
    model: Callable[[Arrays], None]
    tolerance: float = 0.0
    left_out: tuple[str, ...] = ()
    versions: str = ""
    """The releases of vLLM whose kernel it is for (PEP 440); empty for all."""


def logits_of(draw: Draw, rows: int, vocabulary: int) -> View:
    """Rows of logits, ``[rows, vocabulary]`` float32, further apart than they are wide."""
    values = draw.rng.normal(size=(rows, vocabulary)) * draw.among(0.1, 3.0, 30.0)
    values[draw.rng.random(values.shape) < 0.1] = 0.0
    values[draw.rng.random(values.shape) < 0.1] = -np.inf
    return draw.memory.tensor("logits_ptr", values, "float32", gap=draw.integer(0, 3))


def states_of(draw: Draw, rows: int, states: int) -> np.ndarray:
    """Which request state each row belongs to, ``[rows]``."""
    return draw.rng.integers(0, states, rows)


def column(memory: Memory, name: str, values: Any, dtype: str = "int32") -> View:
    """A one-dimensional argument."""
    return memory.tensor(name, values, dtype)
