"""Rows of the contract, checked where they are about: in an import, in the phases of an engine.

An engine with a draft model is started, and the first time that it enters a phase the rows of
that context are checked there, with what its runner has in force at that very moment.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from conformance.contract.batch import put_in_place
from conformance.contract.checking import outcome_of
from conformance.contract.installed import contract_of_installed
from conformance.contract.rows import ContractRow
from conformance.scenarios.child import Journal
from conformance.scenarios.engine import engine_defaults, watched_worker
from conformance.scenarios.subjects import worker_argument
from conformance.surface.upstream import calls_super

_PHASES = {"load": "load", "profile": "profile", "execute": "execute", "sample": "sample"}
_PHASES |= {"spec-decode": "spec-decode", "shutdown": "shutdown"}
"""The worker's phases in which a context's rows are checked; init and stream are entered below."""

AT = "checking"
"""The result that names the row that is being checked, for when it ends the process."""


def plain(journal: Journal, skip: list[str], generation: str = "v1") -> None:
    """Check the rows with nothing in force: the context makes no difference, so each once."""
    import torch

    torch.set_num_threads(1)
    seen: dict[str, Any] = {}
    rows = contract_of_installed(generation).rows
    ended = {_same(row) for row in rows if key(row) in skip}
    for row in rows:
        same = _same(row)
        if same in ended:
            continue  # a row that was not checked has no result; None would say that it holds
        if same not in seen:
            journal.result(AT, key(row))
            seen[same] = outcome_of(row)
        journal.result(key(row), seen[same])


def _same(row: ContractRow) -> str:
    """What a row asks, in whatever context."""
    return f"{row.tier}|{row.name}{row.shape or ''}|{row.is_certain()}"


def held(
    journal: Journal, names: list[str], plant: str | None = None, generation: str = "v1"
) -> None:
    """Check the named rows where the stand-ins of ours are in force, and no engine is.

    ``plant`` is ``module:function``, which is called first: a fault, to see what it turns red.
    """
    import torch

    torch.set_num_threads(1)
    put_in_place("ours")
    rows = [row for row in contract_of_installed(generation).rows if key(row) in names]
    journal.result("cut", sorted(_replaced(generation)))
    if plant is not None:
        module, _, function = plant.partition(":")
        getattr(importlib.import_module(module), function)()
    for row in rows:
        journal.result(key(row), outcome_of(row))


def imported(journal: Journal, modules: list[str], skip: list[str], generation: str = "v1") -> None:
    """Check the rows of the context ``import`` where a runner's modules have just been imported."""
    for module in modules:
        with journal.phase_of(f"import {module}"):
            importlib.import_module(module)
    _check(journal, "import", skip, generation)


def engine(
    journal: Journal,
    worker_cls: str | None,
    model: str,
    draft: str | None,
    skip: list[str],
    generation: str = "v1",
) -> None:
    """Check the rows of every context that an engine comes through, which speculates with a draft.

    Without a draft model it does not speculate, and that context's rows are not checked.
    """
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    worker = worker_argument(worker_cls)
    arguments = {**engine_defaults(), **worker}
    if draft is not None:
        arguments["speculative_config"] = {
            "method": "draft_model",
            "model": draft,
            "num_speculative_tokens": 2,
        }
    pending = {*_PHASES.values(), "init", "stream"}

    def reach(context: str) -> None:
        if context in pending:
            pending.discard(context)
            _check(journal, context, skip, generation)

    def enter(phase: str) -> None:
        reach(_PHASES.get(phase, ""))
        if phase == "execute" and "stream" in pending:
            reach("stream")

    journal.enter_hooks.append(enter)
    with _before_construction(lambda: reach("init")), watched_worker(journal, None) as workers:
        try:
            with journal.phase_of("engine"):
                llm = LLM(model=model, **arguments)
        finally:
            # Of an engine that could not be made too: what was checked until then is judged by it.
            journal.result("cut", sorted({*_overridden(workers), *_replaced(generation)}))
        with ExitStack() as stack:
            stack.callback(lambda: llm.llm_engine.engine_core.shutdown())
            with journal.phase_of("generate"):
                llm.generate(
                    [{"prompt_token_ids": [61, 62, 63, 61, 62, 63, 61, 62]}],
                    SamplingParams(temperature=0.0, max_tokens=6, detokenize=False),
                    use_tqdm=False,
                )


def key(row: ContractRow) -> str:
    """The name of a row's result in the child's journal."""
    return f"{row.tier}|{row.id}"


def _check(journal: Journal, context: str, skip: Iterable[str], generation: str) -> None:
    rows = [row for row in contract_of_installed(generation).rows if row.context == context]
    try:
        with _stream() if context == "stream" else nullcontext():
            for row in rows:
                if key(row) not in skip:
                    journal.result(AT, key(row))
                    journal.result(key(row), outcome_of(row))
    except Exception as error:  # the stream's context, which every row of it needs
        wrong = {"kind": "raises", "type": type(error).__name__, "message": str(error)}
        for row in rows:
            journal.result(key(row), {**wrong, "traceback": ""})


@contextmanager
def _stream() -> Iterator[None]:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@contextmanager
def _before_construction(reach: Callable[[], None]) -> Iterator[None]:
    """Call back where vLLM's GPU runner begins to be made: what a subclass wraps is in force."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner.__init__

    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        reach()
        original(self, *args, **kwargs)

    GPUModelRunner.__init__ = watched
    try:
        yield
    finally:
        GPUModelRunner.__init__ = original


def _overridden(workers: list[Any]) -> Iterator[str]:
    """Methods of vLLM's GPU worker and runner that the subject's classes replace outright."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    for worker in workers:
        for value, base in (
            (worker, Worker),
            (getattr(worker, "model_runner", None), GPUModelRunner),
        ):
            if not isinstance(value, base):
                continue
            mro = type(value).__mro__
            for cls in mro[: mro.index(base)]:
                for name, member in vars(cls).items():
                    inherited = getattr(base, name, None)
                    own = inspect.unwrap(member) if callable(member) else None
                    if inherited is None or own is None or own is inspect.unwrap(inherited):
                        continue
                    if not _calls_super(own, name):
                        yield from (
                            f"{b.__qualname__}.{name}" for b in base.__mro__ if name in vars(b)
                        )


def _replaced(generation: str) -> Iterator[str]:
    """Functions and methods of the chains that something else stands in for, by their place."""
    steps = {
        tuple(step.split(":")[:2])
        for row in contract_of_installed(generation).rows
        for use in row.uses
        for site in use.sites
        if site.on_cpu == "true"
        for step in site.chain
    }
    for name, function in sorted(steps):
        module = sys.modules.get(name)
        bound = _defined(module, function)
        if module is not None and callable(bound) and _is_elsewhere(bound, module.__file__):
            yield f"{name}:{function}"


def _defined(module: Any, path: str) -> Any:
    """What a module has under ``function`` or ``Class.method``; of a class, what is its own."""
    value = module
    for part in path.split("."):
        value = vars(value).get(part) if isinstance(value, type) else getattr(value, part, None)
    if isinstance(value, property):
        value = value.fget
    return getattr(value, "__func__", value)


def _is_elsewhere(function: Any, file: str | None) -> bool:
    """Whether its code is in another file, and it wraps nothing whose code is in this one.

    A decorator may leave no trace of what it wraps (``support_torch_compile``) but in its closure.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename == file:
        return False
    wrapped = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    return all(getattr(value, "__code__", code).co_filename != file for value in wrapped.values())


def _calls_super(function: Any, name: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    return calls_super(tree, name)
