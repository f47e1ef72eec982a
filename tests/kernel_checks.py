"""Runs a kernel implementation beside a reference and compares all memory that both could reach.

Torch is imported by the functions, not by the module: collecting the tests must not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Arguments = dict[str, Any]
POISONS = (-77, 113)
"""What outputs hold before a launch. Bool outputs hold True for the first, False for the other."""


def poisoned(size: int | tuple[int, ...], dtype: torch.dtype, poison: int) -> torch.Tensor:
    """A tensor that is full of a value no kernel writes."""
    import torch

    return torch.full(
        size if isinstance(size, tuple) else (size,),
        poison < 0 if dtype == torch.bool else poison,
        dtype=dtype,
    )


def memory(tensor: torch.Tensor) -> np.ndarray:
    """What lies behind the pointer of a tensor, as a numpy array that shares it."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((elements - tensor.storage_offset(),), (1,))
    return whole.numpy()


def copied(arguments: Arguments) -> Arguments:
    """Copy the arguments with their strides; what shared memory shares it in the copy too."""
    import torch

    storages: dict[int, torch.UntypedStorage] = {}
    result: Arguments = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            copy = storages.setdefault(storage._cdata, storage.clone())
            result[name] = torch.empty(0, dtype=value.dtype).set_(
                copy, value.storage_offset(), value.shape, value.stride()
            )
        else:
            result[name] = value
    return result


def differences(
    implementation: Callable[..., None],
    reference: Callable[..., None],
    arguments: Arguments,
) -> list[str]:
    """Run both on copies of the arguments; say where the memory of each tensor then differs."""
    import torch

    got, want = copied(arguments), copied(arguments)
    implementation(**got)
    reference(**{n: memory(v) if isinstance(v, torch.Tensor) else v for n, v in want.items()})
    found = []
    for name, value in want.items():
        if not isinstance(value, torch.Tensor):
            continue
        a, b = memory(got[name]), memory(value)
        same = (a == b) | ((a != a) & (b != b))
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            found.append(f"{name}[{at}] is {a[at]}, not {b[at]}")
    return found


def off_by_one(implementation: Callable[..., None], output: str) -> Callable[..., None]:
    """Plant a fault: the output is right but for its first written element."""

    def faulty(**arguments: Any) -> None:
        before = memory(arguments[output]).copy()
        implementation(**arguments)
        after = memory(arguments[output])
        written = np.flatnonzero(before != after)
        if written.size:
            at = written[0]
            after[at] = not after[at] if after.dtype == bool else after[at] + 1

    return faulty


def into_a_copy(implementation: Callable[..., None], output: str) -> Callable[..., None]:
    """Plant a fault: the result goes into a converted copy, and the tensor given never sees it."""

    def faulty(**arguments: Any) -> None:
        import torch

        implementation(**{**arguments, output: arguments[output].to(torch.float64)})

    return faulty


def one_too_many(implementation: Callable[..., None], output: str) -> Callable[..., None]:
    """Plant a fault: one element that must stay as it is gets overwritten."""

    def faulty(**arguments: Any) -> None:
        before = memory(arguments[output]).copy()
        implementation(**arguments)
        after = memory(arguments[output])
        untouched = np.flatnonzero(before == after)
        if untouched.size:
            at = untouched[-1]
            after[at] = not after[at] if after.dtype == bool else after[at] + 1

    return faulty


FAULTS = (off_by_one, into_a_copy, one_too_many)


def undetected(
    implementation: Callable[..., None],
    reference: Callable[..., None],
    cases: Iterable[Arguments],
    outputs: Iterable[str],
) -> list[str]:
    """Name the planted faults that the comparison misses over all cases."""
    cases = list(cases)
    return [
        f"{fault.__name__} in {output}"
        for output in outputs
        for fault in FAULTS
        if not any(differences(fault(implementation, output), reference, case) for case in cases)
    ]


def lengths(rng: np.random.Generator, num_reqs: int, longest: int) -> np.ndarray:
    """Ragged row lengths, some of them zero."""
    return rng.integers(0, longest + 1, num_reqs) * (rng.random(num_reqs) < 0.8)
