"""Runs a subject's counterpart of a kernel on recorded inputs. Runs in child processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from conformance.contract.batch import put_in_place
from conformance.kernels.comparing import described, difference
from conformance.kernels.generators import GENERATOR
from conformance.kernels.generators.generator import Generator
from conformance.kernels.memory import Placed
from conformance.kernels.recording import launched_kernel
from conformance.kernels.replaced import replaced_steps
from conformance.kernels.rows import LAUNCHED, OPERATOR, WAYS
from conformance.kernels.store import Record, read
from conformance.scenarios.child import Journal
from conformance.scenarios.engine import engine_defaults, watched_worker
from conformance.scenarios.subjects import worker_argument

_CLASSES = {
    "bare": (),
    "upstream": (
        "vllm.v1.worker.cpu_worker:CPUWorker",
        "vllm.v1.worker.cpu_model_runner:CPUModelRunner",
    ),
    "ours": ("runner_under_test.worker:CPUWorker", "runner_under_test.model_runner:CPUModelRunner"),
}
"""Worker and runner of each subject whose stand-ins can be put in force without an engine."""

REPLACED = "replaced"
"""The result that names the steps of chains which a subject replaces."""


def held(
    journal: Journal, subject: str, records: list[str], steps: list[str], plant: list[str]
) -> None:
    """Replay where what a subject has in force is in force, and no engine is.

    ``steps`` are those of the chains that lead to the launches, ``module:function`` each.
    ``plant`` is empty, or names a function ``module:function`` and its arguments; it is called
    first, to plant a fault.
    """
    import torch

    torch.set_num_threads(1)
    with journal.phase_of("patch"):
        put_in_place(subject)
    if plant:
        module, _, function = plant[0].partition(":")
        getattr(importlib.import_module(module), function)(*plant[1:])
    classes = [launched_kernel(name) for name in _CLASSES[subject]]
    journal.result(REPLACED, replaced_steps(steps, classes))
    _replay(journal, records)


def engine(
    journal: Journal,
    worker_cls: str,
    model: str,
    draft: str,
    records: list[str],
    steps: list[str],
) -> None:
    """Replay in a speculating engine of a subject's, where its first step begins."""
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    worker = worker_argument(worker_cls)
    pending = list(records)

    def enter(phase: str) -> None:
        if phase == "execute" and pending:
            now, pending[:] = list(pending), []
            classes = [type(value) for value in (workers[0], workers[0].model_runner)]
            journal.result(REPLACED, replaced_steps(steps, classes))
            _replay(journal, now)

    journal.enter_hooks.append(enter)
    with watched_worker(journal, None) as workers, ExitStack() as stack:
        with journal.phase_of("engine"):
            llm = LLM(
                model=model,
                **{**engine_defaults(), **worker},
                speculative_config={
                    "method": "draft_model",
                    "model": draft,
                    "num_speculative_tokens": 2,
                },
            )
        stack.callback(lambda: llm.llm_engine.engine_core.shutdown())
        with journal.phase_of("generate"):
            llm.generate(
                [{"prompt_token_ids": [61, 62, 63, 61]}],
                SamplingParams(temperature=0.0, max_tokens=2, detokenize=False),
                use_tqdm=False,
            )


def _replay(journal: Journal, records: list[str]) -> None:
    for path in records:
        record = read(Path(path))
        ways = (*WAYS, OPERATOR) if GENERATOR[record.kernel].operator else WAYS
        for way in ways:
            with journal.phase_of(f"{record.kernel}, {way}"):
                journal.result(f"{record.kernel}|{way}", replay(record, way))


def replay(record: Record, way: str) -> dict[str, Any]:
    """Run all examples of a record one way; what came of it, as plain data.

    ``failed`` are the examples that left other memory or raised, ``raised`` those that raised, and
    ``refused`` those that raised and may. ``smallest`` tells of the smallest that failed, and
    ``parameters`` of a counterpart that has other ones than the kernel.
    """
    generator = GENERATOR[record.kernel]
    if way == LAUNCHED:
        run = _launcher(generator, record)
    else:
        function = generator.operator if way == OPERATOR else generator.call
        assert function is not None, f"{record.kernel} has no {way}"
        run = _caller(function)
    failed: list[tuple[int, int, str, bool]] = []
    refused = 0
    for number, example in enumerate(record.examples):
        told, raised = _run(run, record, generator, number)
        if raised and example.may_refuse:
            refused += 1
        elif told is not None:
            failed.append((example.size, number, told, raised))
    result: dict[str, Any] = {
        "examples": len(record.examples),
        "failed": len(failed),
        "raised": sum(raised for *_, raised in failed),
        "refused": refused,
        "smallest": None,
        "parameters": _other_parameters(generator, record) if way == LAUNCHED else None,
    }
    if failed:
        # An answer that is wrong says more than an error.
        _, number, told, raised = min(failed, key=lambda f: (f[3], f[0], f[1]))
        inputs = described(record.examples[number]).replace("\n", "\n    ")
        result["smallest"] = f"{told}\n  with (example {number}):\n    {inputs}"
    return result


def _run(
    run: Callable[[Placed, int], None], record: Record, generator: Generator, number: int
) -> tuple[str | None, bool]:
    placed = Placed(record.examples[number])
    try:
        run(placed, number)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:500]}", True
    example = record.examples[number]
    after = placed.contents()
    return difference(example, record.after[number], after, generator.tolerance), False


def _launcher(generator: Generator, record: Record) -> Callable[[Placed, int], None]:
    """Launch as sites do: all by name, or by place up to the first constant of the compiler's.

    vLLM's launchers do the former, a launch that is written out the latter; every other example
    is launched either way. A counterpart that does not say that it has the kernel's names is
    launched by place only: vLLM's launchers take its own names, in their order.
    """
    first = next(
        (at for at, name in enumerate(record.parameters) if name in record.constants),
        len(record.parameters),
    )
    placewise, rest = record.parameters[:first], record.parameters[first:]

    def run(placed: Placed, number: int) -> None:
        kernel = launched_kernel(generator.home)
        given = placed.arguments
        names = getattr(kernel, "arg_names", None)
        if number % 2 or names is None:
            by_name = {name: given[name] for name in rest}
            kernel[placed.example.grid](*(given[name] for name in placewise), **by_name)
        else:
            kernel[placed.example.grid](**given)

    return run


def _caller(
    function: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[[Placed, int], None]:
    def run(placed: Placed, number: int) -> None:
        function(placed.arguments, placed.example.extra)

    return run


def _other_parameters(generator: Generator, record: Record) -> str | None:
    """Say in which names or in which order a counterpart's parameters are not the kernel's."""
    try:
        kernel = launched_kernel(generator.home)
    except AttributeError as error:
        return f"there is nothing to launch: {error}"
    names = getattr(kernel, "arg_names", None)
    if names is None or tuple(names) == record.parameters:
        return None
    return f"a launch binds to {', '.join(names)}; the kernel takes {', '.join(record.parameters)}"
