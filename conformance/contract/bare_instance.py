"""The runner's shutdown on an instance that was never initialized. Runs in child processes.

Only what the shutdown path frees is there, so that what the path itself reaches is all that counts.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from conformance.contract.batch import put_in_place
from conformance.scenarios.child import Journal
from conformance.scenarios.garbage import collect_garbage

RUNNERS = {
    "bare": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "upstream": "vllm.v1.worker.cpu_model_runner:CPUModelRunner",
    "ours": "runner_under_test.model_runner:CPUModelRunner",
}
"""The runner class of each subject whose stand-ins can be put in force without a worker."""


def run(journal: Journal, subject: str) -> None:
    """Shut an instance down and report, by kind, how many tensors it had and how many live on."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    put_in_place(subject)
    module, _, name = RUNNERS[subject].partition(":")
    runner: Any = object.__new__(getattr(importlib.import_module(module), name))
    cache, weight = torch.zeros(2, 4), torch.zeros(3)
    held = {"KV cache": StorageWeakRef(cache.untyped_storage())}
    held["weights"] = StorageWeakRef(weight.untyped_storage())
    runner.model = SimpleNamespace(weight=weight)
    runner.kv_caches = [cache]
    runner.attn_groups = [[SimpleNamespace(cache=cache)]]
    runner.cache_config = SimpleNamespace(num_gpu_blocks=2)
    layers = {"layer": SimpleNamespace(kv_cache=cache)}
    runner.compilation_config = SimpleNamespace(static_forward_context=layers)
    del cache, weight, layers
    with journal.phase_of("shutdown"):
        runner.shutdown()
    collect_garbage()
    journal.result("alive", [kind for kind, memory in held.items() if not memory.expired()])
