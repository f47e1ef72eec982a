"""A real engine of the subject's, on a tiny model, and parts of it. Runs in child processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

POISON = -7777
"""What fills memory that a method has no business with."""


class Bench:
    """What the drivers work on. The engine is built when the first of them asks for it."""

    def __init__(self, subject: str, worker_cls: str | None, model: str) -> None:
        self._subject = subject
        self._worker_cls = worker_cls
        self._model = model
        self._workers: list[tuple[Any, dict[str, Any]]] = []

    @cached_property
    def engine(self) -> Any:
        """An engine that has served nothing yet."""
        from vllm import LLM

        from conformance.scenarios.engine import engine_defaults
        from conformance.scenarios.subjects import worker_argument

        with self._collecting():
            return LLM(
                model=self._model, **{**engine_defaults(), **worker_argument(self._worker_cls)}
            )

    @property
    def worker(self) -> Any:
        """The engine's worker: its device is initialized, the model loaded, the cache there."""
        assert self.engine is not None
        return self._workers[-1][0]

    @property
    def worker_arguments(self) -> dict[str, Any]:
        """What vLLM constructed the worker with."""
        assert self.engine is not None
        return self._workers[-1][1]

    @property
    def runner(self) -> Any:
        """The worker's model runner."""
        return self.worker.model_runner

    def made_runner(self, cls: type) -> Any:
        """A runner of the engine's own configuration, constructed and not loaded."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.runner.vllm_config):
            return cls(self.runner.vllm_config, self.runner.device)

    def made_worker(self, cls: type) -> Any:
        """A worker of the engine's own arguments, constructed and not initialized."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.worker.vllm_config):
            return cls(**self.worker_arguments)

    @contextmanager
    def _collecting(self) -> Iterator[None]:
        from vllm.v1.worker import worker_base

        build = worker_base.WorkerWrapperBase.init_worker

        def collected(wrapper: Any, all_kwargs: list[dict[str, Any]], *rest: Any) -> Any:
            given = dict(all_kwargs[wrapper.rpc_rank])
            built = build(wrapper, all_kwargs, *rest)
            # The wrapper takes some out for itself, and passes the others on.
            passed = {k: v for k, v in given.items() if k in all_kwargs[wrapper.rpc_rank]}
            self._workers.append((wrapper.worker, passed))
            return built

        worker_base.WorkerWrapperBase.init_worker = collected
        try:
            yield
        finally:
            worker_base.WorkerWrapperBase.init_worker = build


def instance(cls: type, **attributes: Any) -> Any:
    """An object of a class that was not constructed, with these attributes and no others."""
    made: Any = object.__new__(cls)
    vars(made).update(attributes)
    return made


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Bind an attribute to another object for a while; an inherited one is inherited again."""
    absent = object()
    own = vars(holder).get(name, absent)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if own is absent:
            delattr(holder, name)
        else:
            setattr(holder, name, own)


def outcome(call: Any, *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """What a call did: ``returned`` and the value, or ``raised`` and the exception's kind."""
    try:
        return "returned", call(*args, **kwargs)
    except Exception as error:
        return "raised", type(error).__name__


def told(result: tuple[str, Any]) -> str:
    """An outcome in words."""
    how, what = result
    return f"it {how} {what if how == 'raised' else repr(what)}"
