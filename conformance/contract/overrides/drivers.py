"""What an override does, held against what its base does or against what it must still guarantee.

A driver gets the override and the bench, and raises if something is wrong. Most run both methods,
under the subject's stand-ins, on the same poisoned memory. Where the base cannot run, or where the
two are to differ, it says why (`PURPOSE`) and checks what callers rely on all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

from conformance.contract.clause import require
from conformance.contract.overrides import construction, delegation
from conformance.contract.overrides.bench import (
    POISON,
    Bench,
    instance,
    outcome,
    replaced,
    told,
)
from conformance.contract.overrides.found import Override

Driver = Callable[[Override, Bench], None]

PURPOSE: Mapping[str, str] = MappingProxyType(
    {
        "worker.init_device": "the base asks for a CUDA device, and raises for any other",
        "worker.determine_available_memory": "the base measures a device's free memory around the "
        "run, and a host's free memory is every process's",
        "worker.compile_or_warm_up_model": "the base warms up kernels that only a GPU has",
        "worker.sleep": "there is no device whose memory sleeping would free",
        "worker.wake_up": "nothing sleeps",
        "worker.discard": "nothing sleeps",
        "runner._init_device_properties": "the base asks the device for its properties",
    }
)
"""Overrides that are to differ from their base, and why; their drivers check what stays true."""


def _to_list(override: Override, bench: Bench) -> None:
    """The rows that were sampled, and nothing of the staging buffer's tail."""
    import torch

    for rows in (0, 1, 3, 6):
        for dtype in (torch.int32, torch.int64):
            # A column of a wider, poisoned tensor: what is beside it and below it is not sampled.
            wide = torch.full((8, 3), POISON, dtype=dtype)
            sampled = wide[:rows, :1]
            sampled.copy_(torch.arange(11, 11 + rows, dtype=dtype).reshape(rows, 1))
            before = wide.clone()
            theirs = _on_pinned(override.base._to_list, override.base, sampled)
            mine = _on_pinned(override.cls._to_list, override.cls, sampled)
            require(
                mine == theirs,
                f"of {rows} sampled rows ({dtype}) the base makes {theirs}, and it makes {mine}",
            )
            require(torch.equal(wide, before), "it changes the sampled tokens that it was given")


def _on_pinned(method: Any, cls: type, sampled: Any) -> Any:
    """Call the method on a runner whose staging buffer holds an earlier step's tokens."""
    import torch

    pinned = torch.full((8, 1), POISON, dtype=torch.int64)
    event = SimpleNamespace(record=lambda *_: None, synchronize=lambda: None)
    runner = instance(cls, sampled_token_ids_pinned_cpu=pinned, transfer_event=event)
    how, rows = outcome(method, runner, sampled)
    if how == "raised":
        return f"raised {rows}"
    require(
        isinstance(rows, list) and all(isinstance(row, list) for row in rows),
        f"the base returns a list of tokens for each row, and it returned {rows!r}",
    )
    first = [list(row) for row in rows]
    pinned.fill_(POISON - 1)  # the next step stages its own
    require(
        [list(row) for row in rows] == first,
        "what it returned changes with the staging buffer's next use",
    )
    return rows


def _sync_device(override: Override, bench: Bench) -> None:
    mine, theirs = (instance(cls) for cls in (override.cls, override.base))
    expected = outcome(override.base._sync_device, theirs)
    got = outcome(override.cls._sync_device, mine)
    require(got == expected, f"of the base, {told(expected)}; here {told(got)}")
    require(not vars(mine), f"it set {sorted(vars(mine))}")


def _get_model(override: Override, bench: Bench) -> None:
    """The model that was loaded; before it is there, the base's ValueError, which says so."""
    import torch

    layer = torch.nn.Linear(2, 2)
    got = override.cls.get_model(instance(override.cls, model=layer))
    require(got is layer, f"the loaded model is {layer!r}, and it returned {got!r}")
    expected = outcome(override.base.get_model, instance(override.base))
    early = outcome(override.cls.get_model, instance(override.cls))
    require(
        early == expected,
        f"asked before the model is loaded, the base raises {expected[1]}, which callers can tell "
        f"from a fault of theirs; here {told(early)}",
    )


def _zero_block_ids(override: Override, bench: Bench) -> None:
    """The blocks' pages in every attention layer, and no other byte.

    The base launches a kernel here, which a subject that overrides the method need not replace, so
    what it does on a GPU is written out: `KVBlockZeroer` takes every group of an AttentionSpec.
    """
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape = {"block_size": 2, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
    specs = {
        "full attention": FullAttentionSpec(**shape),
        "sliding window": SlidingWindowSpec(**shape, sliding_window=4),
    }
    caches = {name: torch.full((5, 2, 1, 2, 2), float(POISON)) for name in specs}
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=[name]) for name, spec in specs.items()
    ]
    context = {name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
    runner = instance(
        override.cls,
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups, num_blocks=5),
        compilation_config=SimpleNamespace(static_forward_context=context),
        runner_only_attn_layers=set(),
    )
    returned = override.cls._zero_block_ids(runner, [3, 1])
    require(returned is None, f"it returned {returned!r}")
    for name, cache in caches.items():
        for block in range(5):
            value = 0.0 if block in (1, 3) else float(POISON)
            require(
                bool((cache[block] == value).all()),
                f"blocks 3 and 1 were to be zeroed, and no other: of the {name} layer's block "
                f"{block} the values are {sorted(set(cache[block].flatten().tolist()))}",
            )


def _init_device_properties(override: Override, bench: Bench) -> None:
    """What the base sets is set, unless what reads it is turned off."""
    theirs = instance(override.base, device=bench.runner.device)
    override.base._init_device_properties(theirs)
    for name in vars(theirs).keys() - {"device"}:
        unread = name == "num_sms" and getattr(bench.runner, "cascade_attn_enabled", True) is False
        require(
            unread or hasattr(bench.runner, name),
            f"the base sets {name}; here it is missing, and what reads it is not turned off",
        )


def _device_state(override: Override, bench: Bench) -> None:
    import torch

    worker = bench.worker
    require(worker.device == torch.device("cpu"), f"the worker's device is {worker.device}")
    require(torch.distributed.is_initialized(), "torch.distributed is not initialized after it")
    runner = getattr(worker, "model_runner", None)
    require(runner is not None, "the worker has no model_runner after it")
    require(
        getattr(runner, "device", None) == worker.device,
        "the runner's device is not the worker's",
    )


def _workspace(override: Override, bench: Bench) -> None:
    from vllm.v1.worker import workspace

    require(bench.worker is not None, "there is no worker")
    require(
        workspace.is_workspace_manager_initialized(),
        "the base initializes the workspace manager, from which attention and mixture-of-experts "
        "layers take scratch memory; after this there is none, and current_workspace_manager() "
        "raises AssertionError. Call init_workspace_manager(self.device, 1) before the runner is "
        "made",
    )


def _the_size(override: Override, bench: Bench) -> None:
    """What the user asked for, as it is; else a number of bytes."""
    for sized in _sizings(bench):
        require(
            type(sized.size) is int and sized.size > 0,
            f"{sized.how} it returned {sized.size!r}, and not a number of bytes",
        )
        require(
            sized.explicit in (None, sized.size),
            f"{sized.how}, {sized.explicit}, it returned {sized.size}",
        )


def _the_run(override: Override, bench: Bench) -> None:
    """The model has run once before it is measured, or served."""
    for sized in _sizings(bench):
        # With a size given an eager model need not run: nothing is measured or compiled.
        require(
            sized.runs or (sized.explicit is not None and sized.mode == "NONE"),
            f"{sized.how} the base runs the model once first, so that it is compiled and its peak "
            "memory counts; here it does not run, and the KV cache gets the memory that the first "
            "large batch will need",
        )


def _the_configuration(override: Override, bench: Bench) -> None:
    """The model runs with vLLM's configuration in force, as code that asks for it expects."""
    for sized in _sizings(bench):
        require(
            all(config is bench.worker.vllm_config for config in sized.runs),
            f"{sized.how} the base runs the model inside set_current_vllm_config; here "
            "get_current_vllm_config() finds none while it runs",
        )


@dataclass(frozen=True)
class _Sizing:
    """One call of determine_available_memory: how, what it returned, and the model's runs."""

    explicit: int | None
    mode: str
    size: Any
    runs: tuple[Any, ...]

    @property
    def how(self) -> str:
        given = "no size given" if self.explicit is None else "a size given"
        return f"with compilation mode {self.mode} and {given}"


def _sizings(bench: Bench) -> list[_Sizing]:
    import torch
    from vllm.config import CompilationMode, get_current_vllm_config_or_none

    worker = bench.worker
    cache, compilation = worker.cache_config, worker.vllm_config.compilation_config
    runs: list[Any] = []

    def profile_run(*args: Any, **kwargs: Any) -> None:
        runs.append(get_current_vllm_config_or_none())

    made = []
    with (
        replaced(bench.runner, "profile_run", profile_run),
        # A share that the host can give, whatever else it has to do.
        replaced(cache, "gpu_memory_utilization", 0.3),
        replaced(worker, "requested_cpu_memory", _third_of_the_host()),
        torch.inference_mode(False),
    ):
        for explicit in (1 << 20, None):
            for mode in ("NONE", "DYNAMO_TRACE_ONCE"):
                runs.clear()
                with (
                    replaced(cache, "kv_cache_memory_bytes", explicit),
                    replaced(compilation, "mode", getattr(CompilationMode, mode)),
                ):
                    size = worker.determine_available_memory()
                made.append(_Sizing(explicit, mode, size, tuple(runs)))
    return made


def _third_of_the_host() -> int:
    import psutil

    return int(psutil.virtual_memory().total * 0.3)


def _compile_or_warm_up_model(override: Override, bench: Bench) -> None:
    """CompilationTimes, and a random state that the warm-up left no trace in."""
    import torch
    from vllm.utils.torch_utils import set_random_seed
    from vllm.v1.worker.worker_base import CompilationTimes

    worker = bench.worker
    takes_index = "data_parallel_index" in inspect.signature(set_random_seed).parameters
    for index in (0, 3) if takes_index else (0,):
        with replaced(worker.parallel_config, "data_parallel_index", index):
            torch.rand(5)
            times = worker.compile_or_warm_up_model()
            state = torch.get_rng_state()
        set_random_seed(worker.model_config.seed, *([index] if takes_index else []))
        require(
            torch.equal(state, torch.get_rng_state()),
            f"afterwards the random state is not that of the configured seed, as it is after the "
            f"base's (data-parallel index {index})",
        )
        require(isinstance(times, CompilationTimes), f"it returned {times!r}, no CompilationTimes")


def _sleeping(override: Override, bench: Bench) -> None:
    """Weights and KV cache are what they were; nothing is returned."""
    import torch

    worker, name = bench.worker, override.method.method
    tensors = [*bench.runner.model.parameters(), *bench.runner.model.buffers()]
    with torch.no_grad():
        before = [tensor.clone() for tensor in tensors]
    calls: tuple[tuple[Any, ...], ...] = {
        "sleep": ((), (1,), (2,)),
        "wake_up": ((), (["weights"],), (["kv_cache"],)),
        "discard": ((("kv_cache",),),),
    }[name]
    for arguments in calls:
        how, what = outcome(getattr(worker, name), *arguments)
        # To refuse is honest where there is nothing to discard; to sleep and wake is a switch that
        # engines flip around a pause, and must pass.
        if how == "returned" or name != "discard":
            require((how, what) == ("returned", None), f"{name}{arguments}: it {how} {what!r}")
        require(
            all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True)),
            f"{name}{arguments} changed the model's weights",
        )


def _profile(override: Override, bench: Bench) -> None:
    """Refused where no profiler is configured, and the trace is named after the prefix."""
    off = SimpleNamespace(profiler=None)
    for start in (True, False):
        results = [
            outcome(cls.profile, instance(cls, profiler_config=off, profiler=None), start)
            for cls in (override.base, override.cls)
        ]
        require(
            results[0] == results[1],
            f"with no profiler configured the base's profile({start}): {told(results[0])}; "
            f"here {told(results[1])}",
        )
    module = inspect.getmodule(override.cls)
    names: dict[str, list[str]] = {}
    for cls, where in ((override.base, inspect.getmodule(override.base)), (override.cls, module)):
        made: list[str] = names.setdefault(cls.__name__, [])

        def profiler(*_: Any, made: list[str] = made, worker_name: str, **__: Any) -> Any:
            made.append(worker_name)
            return SimpleNamespace(start=lambda: None, stop=lambda: None)

        with replaced(where, "TorchProfilerWrapper", profiler):
            worker = instance(
                cls,
                profiler_config=SimpleNamespace(profiler="torch"),
                # Its construction makes one; what it is called has been decided by then.
                profiler=None if cls is override.base else profiler(worker_name="at construction"),
                rank=0,
                local_rank=0,
                vllm_config=bench.worker.vllm_config,
            )
            outcome(worker.profile, True, "prefix")
    theirs, mine = names[override.base.__name__], names[override.cls.__name__]
    require(
        [name.startswith("prefix") for name in mine]
        == [name.startswith("prefix") for name in theirs],
        f"profile(True, 'prefix') names the base's trace {theirs}, and here {mine}",
    )


DRIVERS: Mapping[str, Mapping[str, Driver]] = MappingProxyType(
    {
        "runner.__init__": {
            "attributes": construction.runner_attributes,
            "buffers": construction.runner_buffers,
        },
        "runner.load_model": construction.LOADING,
        "runner.get_model": {"": _get_model},
        "runner.initialize_kv_cache": {"": delegation.initialize_kv_cache},
        "runner._sync_device": {"": _sync_device},
        "runner._zero_block_ids": {"": _zero_block_ids},
        "runner._to_list": {"": _to_list},
        "runner._init_device_properties": {"": _init_device_properties},
        "worker.__init__": {"": construction.worker},
        "worker.init_device": {"state": _device_state, "workspace": _workspace},
        "worker.determine_available_memory": {
            "size": _the_size,
            "run": _the_run,
            "configuration": _the_configuration,
        },
        "worker.compile_or_warm_up_model": {"": _compile_or_warm_up_model},
        "worker.sleep": {"": _sleeping},
        "worker.wake_up": {"": _sleeping},
        "worker.discard": {"": _sleeping},
        "worker.profile": {"": _profile},
        "worker.shutdown": {"": delegation.shutdown},
    }
)
"""How each override is driven, by role and name, and by the part of what it does."""


def parts_of(method: str) -> tuple[str, ...]:
    """The names of the rows in which what a method does is compared with its base."""
    return tuple(f"{method}/{part}" if part else method for part in DRIVERS.get(method, {"": None}))
