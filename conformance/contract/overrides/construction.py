"""Overrides that build: what the base's construction and loading leave, they leave too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance.contract.clause import require
from conformance.contract.overrides.bench import POISON, Bench, outcome, replaced, told
from conformance.contract.overrides.found import Override


def runner_attributes(override: Override, bench: Bench) -> None:
    """Every attribute of the base's, of the same kind and shape."""
    problems = _differences(bench.made_runner(override.cls), bench.made_runner(override.base))
    require(not problems, "; ".join(problems))


def runner_buffers(override: Override, bench: Bench) -> None:
    """A buffer's host half and its device half are two, and the copy carries the values."""
    problems = _halves(bench.made_runner(override.cls))
    require(not problems, "; ".join(problems))


def worker(override: Override, bench: Bench) -> None:
    """Every attribute of the base's, and every argument where the base puts it."""
    mine, theirs = bench.made_worker(override.cls), bench.made_worker(override.base)
    problems = _differences(mine, theirs)
    for name, value in bench.worker_arguments.items():
        kept = getattr(theirs, name, None)
        if kept is value and getattr(mine, name, None) is not value:
            problems.append(f"the argument {name} is {value!r}, and kept as {vars(mine)[name]!r}")
    require(not problems, "; ".join(problems))


# What differs because the host is not a GPU, and why nobody misses it.
_MAY_DIFFER = {
    "use_cuda_graph": "there are no CUDA graphs",
    "cascade_attn_enabled": "the CPU's attention has no cascade",
    "num_sms": "read by cascade attention only",
}


def _differences(mine: Any, theirs: Any) -> list[str]:
    problems = []
    for name, value in vars(theirs).items():
        if name in _MAY_DIFFER:
            continue
        if name not in vars(mine):
            problems.append(f"the base sets {name}, and it is missing")
        elif (got := _shape(vars(mine)[name])) != _shape(value):
            problems.append(f"the base's {name} is {_shape(value)}, and here it is {got}")
    return problems


def _shape(value: Any) -> Any:
    """What of a value is the same in two objects that were made alike."""
    import torch

    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.device, value.stride())
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _halves(runner: Any) -> list[str]:
    """A value that is written to a buffer's host half is in the device half after the copy."""
    from vllm.v1.utils import CpuGpuBuffer

    shared, wrong = [], []
    for name, buffer in vars(runner).items():
        if not isinstance(buffer, CpuGpuBuffer) or not buffer.cpu.numel():
            continue
        buffer.cpu.zero_()
        buffer.gpu.zero_()
        buffer.cpu.fill_(POISON if buffer.cpu.is_signed() else 1)
        if bool((buffer.gpu != 0).any()):
            shared.append(name)
        buffer.copy_to_gpu()
        if not bool((buffer.gpu == buffer.cpu).all()):
            wrong.append(name)
        buffer.cpu.zero_()
        buffer.gpu.zero_()
    problems = []
    if shared:
        problems.append(
            f"the host and the device half of {', '.join(shared)} are one tensor: what the host "
            "writes is on the device before it is copied, also while a step still reads it"
        )
    if wrong:
        problems.append(f"after copy_to_gpu() the device half of {', '.join(wrong)} differs")
    return problems


def _loading(kind: str, features: dict[str, Any], mode: str) -> Any:
    """A driver: whatever the base sets when it loads such a model is set."""

    def load_model(override: Override, bench: Bench) -> None:
        ended, mine = _loaded(bench, override.cls, features, mode)
        expected, theirs = _loaded(bench, override.base, features, mode)
        require(ended == expected, f"{kind}: of the base, {told(expected)}; here {told(ended)}")
        for name in theirs.keys() - _UNREAD.keys():
            require(
                name in mine and mine[name] == theirs[name],
                f"{kind}: the base sets {name} to {theirs[name]}; here it is "
                f"{mine.get(name, 'left as it was')}",
            )

    return load_model


LOADING = {
    "plain": _loading("a model like most", {}, "NONE"),
    "videos": _loading(
        "a model that encodes videos one by one",
        {"requires_sequential_video_encoding": True},
        "NONE",
    ),
    "lookback": _loading(
        "a model that looks back at earlier tokens", {"token_lookback_depth": 3}, "NONE"
    ),
    "compiled": _loading("a model to be compiled by torch alone", {}, "STOCK_TORCH_COMPILE"),
}
"""Drivers by the kind of model: what makes it one, and the compilation mode."""

_UNREAD = {
    "model_memory_usage": "read by the GPU worker's own sizing of the KV cache only",
    "eplb_state": "experts are balanced between GPUs only",
}


def _loaded(
    bench: Bench, cls: type, features: dict[str, Any], mode: str
) -> tuple[tuple[str, Any], dict[str, Any]]:
    """Load a model with a runner of a class: how that ended, and the attributes that it set.

    The loader is replaced by one that gives a module of two weights, so what remains is the
    runner's own part.
    """
    import torch
    from vllm.config import CompilationMode, set_current_vllm_config

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.compiled = False

        def compile(self, *args: Any, **kwargs: Any) -> None:
            self.compiled = True

    module = Module()
    for name, value in features.items():
        setattr(module, name, value)
    runner = bench.made_runner(cls)
    before = dict(vars(runner))
    config = runner.vllm_config.compilation_config
    with (
        _loader(module),
        set_current_vllm_config(runner.vllm_config),
        replaced(config, "mode", getattr(CompilationMode, mode)),
    ):
        ended = outcome(runner.load_model)
    absent = object()
    was_set = {
        name: _shape(value)
        for name, value in vars(runner).items()
        if value is not before.get(name, absent)
    }
    if module.compiled:
        was_set["model.compile()"] = True
    return ended, was_set


@contextmanager
def _loader(module: Any) -> Iterator[None]:
    from vllm.model_executor.model_loader import base_loader

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        return module

    with replaced(base_loader.BaseModelLoader, "load_model", load_model):
        yield
