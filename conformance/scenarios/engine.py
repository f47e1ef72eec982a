"""An engine run inside a child process, watched phase by phase."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from conformance.scenarios import extension
from conformance.scenarios.child import Journal
from conformance.scenarios.driving import drive
from conformance.scenarios.garbage import collect_garbage
from conformance.scenarios.scheduled import Schedule
from conformance.scenarios.subjects import asked_class, worker_argument
from conformance.surface.recorder import Recorder, held_copies

_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 64,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
    "seed": 0,
}

WORKER_PHASES = {
    "init_device": "init",
    "load_model": "load",
    "determine_available_memory": "profile",
    "initialize_from_config": "init",
    "compile_or_warm_up_model": "warm-up",
    "execute_model": "execute",
    "sample_tokens": "sample",
    "take_draft_token_ids": "spec-decode",
    "shutdown": "shutdown",
}
"""The worker's entry points and the phase that each of them is."""

UPSTREAM_PATCH_MODULES = (
    "vllm.v1.worker.cpu.shm",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
)

LIBRARY_THREADS = {"tqdm_monitor"}
"""Threads that no runner starts: tqdm keeps one until the process exits, once it drew a bar."""

_PATCHABLE = (
    "torch",
    "torch.cuda",
    "torch.cuda.streams",
    "torch.accelerator",
    "vllm.utils.torch_utils",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.utils",
)
"""Where runners rebind names. Modules of kernels are left out: vLLM itself rebinds those."""


def run(
    journal: Journal,
    scenario: dict[str, Any],
    model: str,
    draft: str | None,
    worker_cls: str | None,
    adapters: dict[str, str] | None = None,
    fault: dict[str, Any] | None = None,
) -> None:
    """Run a scenario's engines one after the other, and report what each of them shows.

    ``model``, ``draft`` and ``adapters`` (by recipe) are the paths of checkpoints.
    ``fault`` plants one: ``{"phase": ..., "signal": ...}`` ends the process in the named phase, and
    ``{"phase": ..., "sleep": seconds}`` holds it there.
    """
    import torch

    before = _torch_names()
    threads = {thread.ident for thread in threading.enumerate()}
    worker = worker_argument(worker_cls)
    journal.result("asked", asked_class(worker_cls))
    torch.set_num_threads(scenario["threads"])
    recorder = Recorder()
    journal.enter_hooks.append(lambda phase: setattr(recorder, "phase", phase))
    # Dynamo knows torch by its modules' classes, so nothing is recorded where it compiles.
    eager = {**_DEFAULTS, **scenario["engine"]}["enforce_eager"]
    journal.result("held_copies", held_copies())
    try:
        with recorder.recording() if eager else nullcontext():
            for variant in scenario["variants"]:
                arguments = _arguments(scenario, variant, draft) | worker
                _run_engine(journal, scenario, model, arguments, adapters or {}, fault, variant)
    finally:
        journal.result("touches", [asdict(touch) for touch in recorder.touches])
    journal.result("torch_threads", [scenario["threads"], torch.get_num_threads()])
    journal.result("upstream_modules", [m for m in UPSTREAM_PATCH_MODULES if m in sys.modules])
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread.ident not in threads and thread.name not in LIBRARY_THREADS
    ]
    journal.result("threads_left", left)
    journal.result("patches_left", _changed(before, _torch_names()))


def engine_defaults() -> dict[str, Any]:
    """The arguments of ``LLM`` that every engine here is given, with the worker in this process."""
    from packaging.version import Version
    from vllm import __version__

    if Version(__version__) >= Version("0.23"):
        return {**_DEFAULTS, "distributed_executor_backend": "uni"}
    # Before, vLLM takes "uni" for "mp" on the CPU, and a class for what it is.
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return {**_DEFAULTS, "distributed_executor_backend": UniProcExecutor}


def _arguments(scenario: dict[str, Any], variant: str, draft: str | None) -> dict[str, Any]:
    """The arguments of ``LLM`` for one of a scenario's engines, but for the model and the worker.

    A draft model is named where there is one; a variant may have no speculation at all.
    """
    arguments = {**engine_defaults(), "worker_extension_cls": extension.PATH, **scenario["engine"]}
    if scenario["speculative"]:
        arguments["speculative_config"] = scenario["speculative"]
    arguments |= scenario["variants"][variant]
    if arguments.get("speculative_config") and draft:
        arguments["speculative_config"] = {**arguments["speculative_config"], "model": draft}
    return arguments


def _run_engine(
    journal: Journal,
    scenario: dict[str, Any],
    model: str,
    arguments: dict[str, Any],
    adapters: dict[str, str],
    fault: dict[str, Any] | None,
    variant: str,
) -> None:
    from vllm import LLM

    suffix = f"#{variant}" if variant else ""
    with watched_worker(journal, fault) as workers:
        with journal.phase_of("engine"):
            llm = LLM(model=model, **arguments)
        schedule = Schedule(llm)
        for step in scenario["steps"]:
            with journal.phase_of("generate"), _stream_context(journal, step):
                journal.result(step["name"] + suffix, drive(llm, step, adapters))
        journal.result("acceptance" + suffix, _acceptance(llm))
        journal.result("scheduling" + suffix, schedule.summary())
        memory = llm.collective_rpc("conformance_memory_info")
        journal.result("memory_info" + suffix, memory)
        tensors = _device_tensors(workers)
        with journal.phase_of("shutdown engine"):
            llm.llm_engine.engine_core.shutdown()
        del llm, schedule
        collect_garbage()
        journal.result("tensors_left" + suffix, _alive(tensors))
        journal.result(
            "built" + suffix,
            [
                [_class_name(worker), _class_name(getattr(worker, "model_runner", None))]
                for worker in workers
            ],
        )


@contextmanager
def _stream_context(journal: Journal, step: dict[str, Any]) -> Iterator[None]:
    """Open the stream context that the step asks for, and report which stream was current when."""
    if not step["inside_stream"]:
        yield
        return
    import torch

    stream, outer = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        entered = torch.cuda.current_stream() == stream
        yield
        stayed = torch.cuda.current_stream() == stream
    left = torch.cuda.current_stream() == outer
    journal.result("current_stream", {"entered": entered, "stayed": stayed, "left": left})


def _acceptance(llm: Any) -> dict[str, float]:
    """Drafted and accepted tokens of the engine so far; empty without speculation."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    return {
        names[metric.name]: metric.value for metric in llm.get_metrics() if metric.name in names
    }


@contextmanager
def watched_worker(journal: Journal, fault: dict[str, Any] | None) -> Iterator[list[Any]]:
    """Make a phase of every worker entry point, for workers built in this process."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    workers: list[Any] = []
    build = WorkerWrapperBase.init_worker

    @functools.wraps(build)
    def watched_build(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        with journal.phase_of("construct"):
            built = build(wrapper, *args, **kwargs)
        workers.append(wrapper.worker)
        for method, phase in WORKER_PHASES.items():
            bound = getattr(wrapper.worker, method, None)
            if bound is not None:
                setattr(wrapper.worker, method, _as_phase(journal, phase, bound, fault))
        return built

    WorkerWrapperBase.init_worker = watched_build
    try:
        yield workers
    finally:
        WorkerWrapperBase.init_worker = build


def _as_phase(
    journal: Journal, phase: str, method: Callable[..., Any], fault: dict[str, Any] | None
) -> Callable[..., Any]:
    @functools.wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with journal.phase_of(phase):
            if fault is not None and fault["phase"] == phase:
                _suffer(fault)
            return method(*args, **kwargs)

    return watched


def _suffer(fault: dict[str, Any]) -> None:
    if "signal" in fault:
        os.kill(os.getpid(), signal.Signals[fault["signal"]])
    if "sleep" in fault:
        threading.Event().wait(fault["sleep"])


@dataclass(frozen=True)
class _Held:
    """The memory of a tensor, held weakly: a view of it that is kept elsewhere keeps it alive."""

    kind: str
    memory: Any
    bytes: int

    @classmethod
    def of(cls, kind: str, tensor: Any) -> _Held:
        from torch.multiprocessing.reductions import StorageWeakRef

        return cls(kind, StorageWeakRef(tensor.untyped_storage()), tensor.nbytes)


def _device_tensors(workers: list[Any]) -> list[_Held]:
    """The memory of the weights and KV caches of the workers in this process."""
    tensors = []
    for worker in workers:
        runner: Any = getattr(worker, "model_runner", None)
        if runner is None or runner.model is None:
            continue
        for weight in runner.model.parameters():
            tensors.append(_Held.of("weights", weight))
        for cache in _tensors_in(runner.kv_caches):
            tensors.append(_Held.of("KV cache", cache))
    return tensors


def _tensors_in(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


def _alive(tensors: list[_Held]) -> dict[str, dict[str, int]]:
    """By kind: how many there were, how many are still alive, and how many bytes those hold."""
    kinds: dict[str, dict[str, int]] = {}
    for held in tensors:
        row = kinds.setdefault(held.kind, {"had": 0, "alive": 0, "bytes": 0})
        row["had"] += 1
        if not held.memory.expired():
            row["alive"] += 1
            row["bytes"] += held.bytes
    return kinds


def _torch_names() -> dict[str, Any]:
    """What is bound to every name that runners are known to rebind, in what is loaded."""
    import torch

    names = {
        f"{module}.{name}": value
        for module in _PATCHABLE
        if module in sys.modules
        for name, value in vars(sys.modules[module]).items()
        if callable(value)
    }
    names.update({f"torch.Tensor.{name}": value for name, value in vars(torch.Tensor).items()})
    return names


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    absent = object()
    loaded_since = {name for name in after.keys() - before.keys() if name.startswith("vllm.")}
    return sorted(
        name
        for name in (before.keys() | after.keys()) - loaded_since
        if before.get(name, absent) is not after.get(name, absent)
    )


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
