"""Putting a subject's stand-ins in force, ending them, and the worker that does so in earnest."""

from __future__ import annotations

from typing import Any

from conformance.contract.batch import put_in_place
from conformance.contract.overrides.bench import Bench, replaced
from conformance.contract.overrides.found import classes_of
from conformance.contract.rebinding.snapshot import Key, Place, Rebound, rebound, snapshot


class NotApplicable(Exception):
    """The claim says nothing about this subject; the message says why."""


class Force:
    """One subject in one process.

    ``ours`` and ``upstream`` bring a way to put their stand-ins in force without an engine; any
    other class does it in its own construction, so an engine is built.
    """

    def __init__(self, subject: str, worker_cls: str | None, model: str, vllm: str) -> None:
        self.subject = subject
        self.vllm = vllm
        self.before: dict[Key, Place] = {}
        self._worker_cls = worker_cls
        self._bench = Bench(subject, worker_cls, model)
        self._found: tuple[Rebound, ...] | None = None
        self._workers = 0
        self._second: Any = None

    @property
    def is_class(self) -> bool:
        """Whether the subject is a class that somebody named."""
        return ":" in self.subject

    def prepare(self) -> None:
        """Look at what is bound, and let vLLM's platform replace kernels as for every worker.

        For upstream these replacements count as its own; for the others they were there before.
        """
        if self.subject == "upstream":
            self.before = snapshot()
        self.replace_kernels()
        if self.subject != "upstream":
            self.before = snapshot()

    def replace_kernels(self) -> None:
        """What vLLM does before it builds any worker."""
        register = getattr(_platform(), "register_triton_kernel_overrides", None)
        if register is not None:  # vLLM 0.30 has none
            register()

    def in_force(self) -> tuple[Rebound, ...]:
        """Prepare, put the stand-ins in force unless they are, and return what was rebound.

        Raises:
            AssertionError: nothing is rebound, so there is nothing to check.
        """
        if self._found is None:
            self.prepare()
            self._found = self.put()
        if not self._found:
            raise AssertionError("nothing is rebound while its stand-ins are in force")
        return self._found

    def put(self) -> tuple[Rebound, ...]:
        """Put the stand-ins in force, and return what is rebound."""
        self._workers += 1
        if self.is_class:
            assert self._bench.engine is not None
            return self.rebound()
        platform = type(_platform())
        if hasattr(platform, "register_triton_kernel_overrides"):
            # The preparation has done it, and what was imported since is to be looked at as it is.
            done = classmethod(lambda cls: None)
            with replaced(platform, "register_triton_kernel_overrides", done):
                put_in_place(self.subject)
        else:
            put_in_place(self.subject)
        return self.rebound()

    def put_again(self) -> tuple[Rebound, ...]:
        """Do what a second worker of the process does, and return what is rebound then."""
        if self.is_class:
            if self._second is not None:
                self._second.shutdown()
            self._second = self._bench.made_worker(type(self._bench.worker))
            self._bench.made_runner(type(self._bench.runner))
        else:
            self._workers += 1
            put_in_place(self.subject)
        return self.rebound()

    def rebound(self) -> tuple[Rebound, ...]:
        """What is rebound now, compared with the preparation."""
        return rebound(self.before, snapshot())

    def end(self) -> None:
        """End all that put the stand-ins in force, by the way that the subject has for it."""
        if self.subject == "ours":
            from runner_under_test.patches import REGISTER

            for _ in range(self._workers):
                REGISTER.release()
        elif self.is_class:
            if self._second is not None:
                self._second.shutdown()
                self._second = None
            self._bench.engine.llm_engine.engine_core.shutdown()
        # Upstream has no way.

    def fail_to_construct(self) -> None:
        """Construct the subject's worker with a configuration that its base cannot take."""
        worker = classes_of(self.subject, self._worker_cls).get("worker")
        if worker is None:
            raise NotApplicable("a runner without a worker of its own constructs none")
        try:
            worker[0](_Broken(), 0, 0, "", True)
        except Exception:
            return
        raise AssertionError(f"{worker[0].__qualname__} takes a broken configuration")


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


class _Broken:
    """A configuration that fails at whatever is asked of it, as late as the worker's own base."""

    def __getattr__(self, name: str) -> Any:
        if name == "cache_config":  # what upstream's worker looks at before its base's turn
            return _Cache()
        raise RuntimeError("planted: the configuration has nothing")


class _Cache:
    kv_cache_memory_bytes = 1
    gpu_memory_utilization = 0.1
