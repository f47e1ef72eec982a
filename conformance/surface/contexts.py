"""The phases of a runner's life: which entry point starts which, and what adds its own."""

from __future__ import annotations

import re

from conformance.surface.model import CONTEXTS
from conformance.surface.program import Class, Function

BIT = {name: 1 << index for index, name in enumerate(CONTEXTS)}

_ENTRY = {
    "__init__": "init",
    "capture_model": "profile",
    "compile_or_warm_up_model": "profile",
    "determine_available_memory": "profile",
    "ensure_kv_transfer_shutdown": "shutdown",
    "execute_dummy_batch": "execute",
    "get_kv_cache_spec": "profile",
    "init_device": "init",
    "initialize_cache": "profile",
    "initialize_from_config": "profile",
    "initialize_kv_cache": "profile",
    "initialize_kv_cache_tensors": "profile",
    "load_model": "load",
    "propose_draft_token_ids": "spec-decode",
    "take_draft_token_ids": "spec-decode",
    "profile_cudagraph_memory": "profile",
    "profile_run": "profile",
    "reload_weights": "load",
    "sample_tokens": "sample",
    "shutdown": "shutdown",
    "update_config": "load",
    "warming_up_model": "profile",
}
"""Entry points by name; the others count as ``execute``."""

_LOADS = re.compile(r"weight|lora|checkpoint|load|sleep|wake_up|save")
_SPECULATES = re.compile(r"(^|_)draft|spec_decode|rejection|propose")
_SPECULATIVE_MODULES = re.compile(r"spec_decode|rejection_sampler|speculat")
_ASYNC = re.compile(r"Async\w*Output$")


def is_async_output(cls: Class) -> bool:
    """Whether instances are outputs that are waited for later, outside of the runner."""
    return any(_ASYNC.search(base.qualname) for base in cls.mro)


def of_entry(function: Function) -> int:
    """The context that an entry point starts."""
    if function.cls is not None and is_async_output(function.cls):
        return BIT["async"]
    name = function.driven_as or function.name
    context = _ENTRY.get(name)
    if context is None:
        context = "load" if _LOADS.search(name) else "execute"
    return BIT[context]


def own(function: Function) -> int:
    """What a function adds to the contexts that it is called in."""
    added = 0
    if not function.is_module and (
        _SPECULATES.search(function.qualname) or _SPECULATIVE_MODULES.search(function.module.name)
    ):
        added |= BIT["spec-decode"]
    if function.cls is not None and is_async_output(function.cls):
        added |= BIT["async"]
    return added


def names(bits: int) -> tuple[str, ...]:
    """The contexts of a set of bits, in their order."""
    return tuple(name for name in CONTEXTS if bits & BIT[name])


def entry_names(cls: Class) -> list[str]:
    """The methods that drive a class from outside: public ones, and construction."""
    names = {name for base in cls.mro for name in base.methods}
    return sorted(name for name in names if name == "__init__" or not name.startswith("_"))
