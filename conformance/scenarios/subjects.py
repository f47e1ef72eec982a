"""From a subject's name to the worker class that vLLM is told to use. Runs in child processes."""

from __future__ import annotations

import importlib
import os
from typing import Any

from conformance.scenarios.child import Journal
from conformance.target import BARE_WORKER, RUNNER_WORKER


class NoRunner(Exception):
    """The class that was named is no worker and no runner of vLLM's."""


def worker_argument(worker_cls: str | None) -> dict[str, str]:
    """Return what to pass to ``LLM`` for a subject: its worker class, or nothing for upstream's.

    A runner class is served through `conformance.scenarios.bare.RunnerWorker`.

    Raises:
        NoRunner: there is no such class, or it is neither a worker nor a GPU runner.
    """
    if worker_cls is None:
        return {}
    if worker_cls == BARE_WORKER or is_worker(worker_cls):
        return {"worker_cls": worker_cls}
    from conformance.scenarios.bare import RUNNER_VARIABLE

    os.environ[RUNNER_VARIABLE] = worker_cls
    return {"worker_cls": RUNNER_WORKER}


def asked_class(worker_cls: str | None) -> str | None:
    """Return the class that a subject's name leads to, by the name that it has where it is made."""
    if worker_cls is None:
        return None
    cls = _load(worker_cls)
    return f"{cls.__module__}.{cls.__qualname__}"


def _load(dotted: str) -> Any:
    """Import a class; NoRunner, in one sentence, if that fails for whatever reason."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise NoRunner(f"{module} has no {name}") from error
    except Exception as error:
        raise NoRunner(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def is_worker(dotted: str) -> bool:
    """Whether the class is a worker (True) or a runner (False); NoRunner if it is neither."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

    cls = _load(dotted)
    if isinstance(cls, type) and issubclass(cls, WorkerBase):
        return True
    if isinstance(cls, type) and issubclass(cls, GPUModelRunner):
        return False
    raise NoRunner(f"{dotted} is neither a vLLM worker nor a subclass of vLLM's GPUModelRunner")


def probe(journal: Journal, worker_cls: str) -> None:
    """Report why a class cannot be a subject, or None."""
    problem: Any = None
    try:
        worker_argument(worker_cls)
    except NoRunner as error:
        problem = str(error)
    journal.result("problem", problem)
