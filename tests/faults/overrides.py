"""Faults in what a CPU runner overrides, planted on ours in a child process.

Nothing is imported at module level that a test process must not import.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.faults.fault import Fault

_TAKES = "overrides::an_override_takes_what_its_base_takes"
_DOES = "overrides::an_override_does_what_its_base_does"


def _worker() -> Any:
    from runner_under_test.worker import CPUWorker

    return CPUWorker


def _runner() -> Any:
    from runner_under_test.model_runner import CPUModelRunner

    return CPUModelRunner


def copies_the_stale_tail() -> None:
    def _to_list(self: Any, sampled_token_ids: Any) -> Any:
        pinned = self.sampled_token_ids_pinned_cpu
        pinned[: sampled_token_ids.shape[0]].copy_(sampled_token_ids)
        return pinned.tolist()

    _runner()._to_list = _to_list


def reads_the_buffer_before_it_is_written() -> None:
    def _to_list(self: Any, sampled_token_ids: Any) -> Any:
        rows = self.sampled_token_ids_pinned_cpu[: sampled_token_ids.shape[0]].tolist()
        self.sampled_token_ids_pinned_cpu[: sampled_token_ids.shape[0]].copy_(sampled_token_ids)
        return rows

    _runner()._to_list = _to_list


def flattens_the_rows() -> None:
    def _to_list(self: Any, sampled_token_ids: Any) -> Any:
        return sampled_token_ids.flatten().tolist()

    _runner()._to_list = _to_list


def changes_what_it_is_given() -> None:
    def _to_list(self: Any, sampled_token_ids: Any) -> Any:
        rows = sampled_token_ids.tolist()
        sampled_token_ids.zero_()
        return rows

    _runner()._to_list = _to_list


def returns_rows_that_the_next_step_overwrites() -> None:
    class Staged(list):  # a list whose rows are read when they are asked for
        def __init__(self, tensor: Any) -> None:
            super().__init__(tensor.tolist())
            self.tensor = tensor

        def __iter__(self) -> Any:
            return iter(self.tensor.tolist())

    def _to_list(self: Any, sampled_token_ids: Any) -> Any:
        pinned = self.sampled_token_ids_pinned_cpu[: sampled_token_ids.shape[0]]
        pinned.copy_(sampled_token_ids)
        return Staged(pinned)

    _runner()._to_list = _to_list


def lacks_a_keyword() -> None:
    def sleep(self: Any) -> None:
        return None

    _worker().sleep = sleep


def has_another_default() -> None:
    def sleep(self: Any, level: int = 2) -> None:
        return None

    _worker().sleep = sleep


def renames_a_parameter() -> None:
    def wake_up(self: Any, names: Any = None) -> None:
        return None

    _worker().wake_up = wake_up


def needs_one_more_argument() -> None:
    def wake_up(self: Any, tags: Any, timeout: float) -> None:
        return None

    _worker().wake_up = wake_up


def became_a_coroutine() -> None:
    async def determine_available_memory(self: Any) -> int:
        return 1

    _worker().determine_available_memory = determine_available_memory


def became_static() -> None:
    _worker().init_device = staticmethod(lambda: None)


def overrides_what_is_gone() -> None:
    def _copy_no_such_thing_to_cpu(self: Any, zeros_only: bool = False) -> None:
        return None

    _runner()._copy_no_such_thing_to_cpu = _copy_no_such_thing_to_cpu


def overrides_without_a_driver() -> None:
    def execute_model(self: Any, scheduler_output: Any) -> Any:
        return None

    _worker().execute_model = execute_model


def a_wrapper_loses_the_result() -> None:
    method = _worker().execute_model.__wrapped__

    @functools.wraps(method)
    def execute_model(*args: Any, **kwargs: Any) -> Any:
        method(*args, **kwargs)

    _worker().execute_model = execute_model


def a_wrapper_swallows_exceptions() -> None:
    method = _worker().sample_tokens.__wrapped__

    @functools.wraps(method)
    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            return None

    _worker().sample_tokens = sample_tokens


def shutdown_swallows_exceptions() -> None:
    whole = _worker().shutdown

    def shutdown(self: Any) -> None:
        try:
            whole(self)
        except Exception:
            return

    _worker().shutdown = shutdown


def shutdown_forgets_its_base() -> None:
    def shutdown(self: Any) -> None:
        self._release_patches()

    _worker().shutdown = shutdown


def construction_forgets_an_attribute() -> None:
    whole = _runner().__init__

    def __init__(self: Any, vllm_config: Any, device: Any) -> None:
        whole(self, vllm_config, device)
        del self.input_batch

    _runner().__init__ = __init__


def two_halves_are_one_tensor() -> None:
    whole = _runner().__init__

    def __init__(self: Any, vllm_config: Any, device: Any) -> None:
        whole(self, vllm_config, device)
        self.input_ids.gpu = self.input_ids.cpu

    _runner().__init__ = __init__


def the_copy_does_nothing() -> None:
    from vllm.v1.utils import CpuGpuBuffer

    CpuGpuBuffer.copy_to_gpu = lambda self, n=None: self.gpu


def construction_drops_an_argument() -> None:
    whole = _worker().__init__

    def __init__(
        self: Any,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        whole(self, vllm_config, local_rank, rank, distributed_init_method)

    _worker().__init__ = __init__


def no_workspace() -> None:
    import runner_under_test.worker

    runner_under_test.worker.init_workspace_manager = lambda *args: None


def the_cache_is_sized_without_a_run() -> None:
    from runner_under_test import host

    def determine_available_memory(self: Any) -> int:
        return host.kv_cache_bytes(
            host.worker_memory(),
            self.cache_config.gpu_memory_utilization,
            self.cache_config.kv_cache_memory_bytes,
        )

    _worker().determine_available_memory = determine_available_memory


def a_size_that_was_given_is_ignored() -> None:
    def determine_available_memory(self: Any) -> int:
        self.model_runner.profile_run()
        return 1 << 30

    _worker().determine_available_memory = determine_available_memory


def the_run_has_no_configuration() -> None:
    import contextlib

    import runner_under_test.worker

    runner_under_test.worker.set_current_vllm_config = lambda *_: contextlib.nullcontext()


def the_seed_is_forgotten() -> None:
    _worker()._seed = lambda self: None


def the_warm_up_returns_nothing() -> None:
    whole = _worker().compile_or_warm_up_model

    def compile_or_warm_up_model(self: Any) -> Any:
        whole(self)

    _worker().compile_or_warm_up_model = compile_or_warm_up_model


def sleeping_loses_the_weights() -> None:
    import torch

    def sleep(self: Any, level: int = 1) -> None:
        with torch.no_grad():
            for weight in self.model_runner.model.parameters():
                weight.zero_()

    _worker().sleep = sleep


def _does(name: str, row: str, says: str) -> Fault:
    return Fault(
        name.replace("_", " "),
        f"{__name__}:{name}",
        f"{_DOES}[{row}]",
        says,
        (f"equivalence/{row}",),
    )


def _takes(name: str, row: str, says: str) -> Fault:
    return Fault(
        name.replace("_", " "),
        f"{__name__}:{name}",
        f"{_TAKES}[{row}]",
        says,
        (f"signature/{row}",),
    )


def _other(name: str, check: str, only: str, says: str) -> Fault:
    return Fault(name.replace("_", " "), f"{__name__}:{name}", f"{check}[others]", says, (only,))


FAULTS: tuple[Fault, ...] = (
    _does("copies_the_stale_tail", "runner._to_list", "-7777"),
    _does("reads_the_buffer_before_it_is_written", "runner._to_list", "-7777"),
    _does("flattens_the_rows", "runner._to_list", "a list of tokens for each row"),
    _does("changes_what_it_is_given", "runner._to_list", "changes the sampled tokens"),
    _does("returns_rows_that_the_next_step_overwrites", "runner._to_list", "next use"),
    _takes("lacks_a_keyword", "worker.sleep", "does not take 'level'"),
    _takes("has_another_default", "worker.sleep", "left out is 1, and here 2"),
    _takes("renames_a_parameter", "worker.wake_up", "does not take 'tags' by name"),
    _takes("needs_one_more_argument", "worker.wake_up", "needs 'timeout'"),
    _takes("became_a_coroutine", "worker.determine_available_memory", "coroutine function"),
    _takes("became_static", "worker.init_device", "staticmethod"),
    _other(
        "overrides_what_is_gone",
        _TAKES,
        "signature/runner._copy_no_such_thing_to_cpu",
        "nothing calls it",
    ),
    _other("overrides_without_a_driver", _DOES, "equivalence/worker.execute_model", "add a driver"),
    _other(
        "a_wrapper_loses_the_result", _DOES, "equivalence/worker.execute_model", "result is lost"
    ),
    _other("a_wrapper_swallows_exceptions", _DOES, "equivalence/worker.sample_tokens", "swallowed"),
    _does("shutdown_swallows_exceptions", "worker.shutdown", "swallowed"),
    _does("shutdown_forgets_its_base", "worker.shutdown", "0 times"),
    _does("construction_forgets_an_attribute", "runner.__init__/attributes", "input_batch"),
    _does("two_halves_are_one_tensor", "runner.__init__/buffers", "input_ids are one tensor"),
    _does("the_copy_does_nothing", "runner.__init__/buffers", "after copy_to_gpu()"),
    _does("construction_drops_an_argument", "worker.__init__", "is_driver_worker"),
    _does("no_workspace", "worker.init_device/workspace", "workspace manager"),
    _does(
        "the_cache_is_sized_without_a_run",
        "worker.determine_available_memory/run",
        "here it does not run",
    ),
    _does(
        "a_size_that_was_given_is_ignored",
        "worker.determine_available_memory/size",
        "a size given, 1048576",
    ),
    _does(
        "the_run_has_no_configuration",
        "worker.determine_available_memory/configuration",
        "finds none",
    ),
    _does("the_seed_is_forgotten", "worker.compile_or_warm_up_model", "random state"),
    _does("the_warm_up_returns_nothing", "worker.compile_or_warm_up_model", "language_model"),
    _does("sleeping_loses_the_weights", "worker.sleep", "changed the model's weights"),
)
