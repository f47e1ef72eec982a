"""Holds V2 kernels against their references. Runs in child processes that interpret kernels."""

from __future__ import annotations

from typing import Any

from conformance.kernels.comparing import described, difference
from conformance.kernels.example import Example, View
from conformance.kernels.memory import Placed
from conformance.kernels.recording import drawn_from, launched_kernel, parameters_of
from conformance.kernels.references import REFERENCE
from conformance.kernels.references.reference import Reference
from conformance.scenarios.child import Journal


def run(journal: Journal, kernel: str, examples: int, ignoring: dict[str, Any]) -> None:
    """Hold a kernel against its reference; report how many launches differ, and the smallest.

    ``ignoring`` plants a fault: an argument, and the value that the kernel is given for all of it.
    """
    import torch

    torch.set_num_threads(1)
    reference = REFERENCE[kernel]
    launched = launched_kernel(reference.home)
    names, _ = parameters_of(launched)
    failed = []
    drawn = drawn_from(reference, names, examples)
    for number, example in enumerate(drawn):
        if set(example.arguments) != set(names):
            raise ValueError(
                f"{kernel} takes {', '.join(names)}, and its reference gives "
                f"{', '.join(example.arguments)}: make conformance/kernels/references give the same"
            )
        told = _differs(reference, launched, example, ignoring)
        if told is not None:
            failed.append((example.size, number, told))
    smallest = None
    if failed:
        _, number, told = min(failed)
        inputs = described(drawn[number]).replace("\n", "\n    ")
        smallest = f"{told}\n  with (example {number}):\n    {inputs}"
    journal.result("outcome", [len(drawn), len(failed), smallest])


def _differs(
    reference: Reference, kernel: Any, example: Example, ignoring: dict[str, Any]
) -> str | None:
    by_kernel, by_model = Placed(example), Placed(example)
    arguments = dict(by_kernel.arguments)
    for name, value in ignoring.items():
        if isinstance(example.arguments[name], View):
            arguments[name] = arguments[name].clone().fill_(value)
        else:
            arguments[name] = value
    if 0 not in example.grid:
        kernel[example.grid](**arguments)
    arrays = {name: _array(value) for name, value in by_model.arguments.items()}
    reference.model({**arrays, "_extra": example.extra})
    return difference(
        example,
        by_model.contents(),
        by_kernel.contents(),
        reference.tolerance,
        told="the reference has {}, the kernel leaves {}",
    )


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value
