"""Draws a kernel's inputs and records what its own source does to them.

Runs in a child process in which Triton interprets kernels (a `Host` of generation ``v2``).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.kernels.example import BFLOAT16, Example, View
from conformance.kernels.generators import GENERATOR
from conformance.kernels.generators.generator import Generator, strategy
from conformance.kernels.memory import Placed
from conformance.kernels.references.reference import Reference
from conformance.kernels.store import INTERPRETER, Record, write
from conformance.scenarios.child import Journal


def run(journal: Journal, kernel: str, examples: int, path: str) -> None:
    """Record a kernel into the file ``path``, with so many examples; report how many there are."""
    import torch

    torch.set_num_threads(1)
    generator = GENERATOR[kernel]
    with journal.phase_of("find"):
        launched = launched_kernel(generator.home)
        names, constants = parameters_of(launched)
    with journal.phase_of("draw"):
        drawn = drawn_from(generator, names, examples)
    with journal.phase_of("launch"):
        begun = time.monotonic()
        after = [contents_after(generator, launched, names, example) for example in drawn]
        seconds = time.monotonic() - begun
    provenance = {
        "source": "gpu-code",
        "device": "cpu",
        "by": "Triton's interpreter",
        "versions": _versions(),
        "not a GPU": INTERPRETER,
        "left out": generator.left_out,
    }
    with journal.phase_of("write"):
        write(
            Path(path),
            Record(kernel, names, constants, tuple(drawn), tuple(after), provenance),
        )
    journal.result("examples", len(drawn))
    journal.result("seconds", seconds)


def launched_kernel(home: str) -> Any:
    """What launches read: ``module:path``.

    Raises:
        AttributeError: this vLLM has no such name.
    """
    module, _, path = home.partition(":")
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


def parameters_of(kernel: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a Triton kernel's parameters, and those that are the compiler's constants.

    Heuristics around it set some of its parameters themselves; launches do not pass them.
    """
    import inspect

    given: set[str] = set()
    while not hasattr(kernel, "arg_names") or hasattr(kernel, "values"):
        given |= set(getattr(kernel, "values", ()))
        kernel = kernel.fn
    signature = inspect.signature(kernel.fn)
    names = tuple(name for name in kernel.arg_names if name not in given)
    constants = tuple(
        name for name in names if "constexpr" in str(signature.parameters[name].annotation)
    )
    return names, constants


def drawn_from(generator: Generator | Reference, names: Sequence[str], count: int) -> list[Example]:
    """So many different examples, the same ones every time; fewer if the generator has no more."""
    from hypothesis import HealthCheck, Phase, given, settings

    drawn: dict[str, Example] = {}

    @settings(
        # Hypothesis repeats itself here and there.
        max_examples=2 * count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(generator.build, names))
    def keep(example: Example) -> None:
        if len(drawn) < count:
            drawn.setdefault(repr(example), example)

    keep()
    return list(drawn.values())


def contents_after(
    generator: Generator, kernel: Any, names: Sequence[str], example: Example
) -> tuple[bytes, ...]:
    """Launch on a copy of an example's memory; the contents of all regions after that.

    Raises:
        ValueError: the example has other arguments than the kernel has parameters.
    """
    import torch

    if set(example.arguments) != set(names):
        raise ValueError(
            f"{generator.kernel} takes {', '.join(names)}, and its generator gives "
            f"{', '.join(example.arguments)}: make conformance/kernels/generators give the same"
        )
    placed = Placed(example)
    arguments = dict(placed.arguments)
    wide = {}
    for name in generator.rounded:
        view = example.arguments[name]
        assert isinstance(view, View)
        if view.dtype == BFLOAT16:
            # The interpreter would cut the result off; torch rounds it, as a GPU does.
            wide[name] = arguments[name]
            arguments[name] = torch.empty(view.shape, dtype=torch.float32)
    if generator.model is not None:
        generator.model(arguments)
    elif 0 not in example.grid:  # a launch of no programs does nothing, and is refused here
        kernel[example.grid](**arguments)
        for name, target in wide.items():
            target.copy_(arguments[name])
    return tuple(placed.contents())


def _versions() -> dict[str, str]:
    import torch
    import triton
    import vllm

    return {
        "vllm": vllm.__version__,
        "triton": triton.__version__,
        "torch": torch.__version__,
    }
