"""The same requests over and over, with a look at what the process holds.

Options: ``rounds``, how often, and ``settled``, the round from which on nothing may grow.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

from conformance.scenarios.driving import generate
from conformance.scenarios.garbage import collect_garbage


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> list[dict[str, Any]]:
    """What the requests got in the last round; the first of them also has ``usage``.

    ``usage`` is a list of looks: before round ``settled``, half-way, and at the end.
    """
    options = dict(step["options"])
    rounds, settled = options["rounds"], options["settled"]
    looks = {settled, (settled + rounds) // 2}
    usage = []
    for number in range(rounds):
        if number in looks:
            usage.append(usage_of_process())
        answers = generate.drive(llm, step, adapters)
    usage.append(usage_of_process())
    answers[0]["usage"] = usage
    return answers


def usage_of_process() -> dict[str, int]:
    """What this process holds, after a collection of garbage.

    Of Python's objects those are counted that came since vLLM froze its heap, at the engine's
    start (``freeze_gc_heap``): what was there then is there to stay.

    ``tensors`` and ``tensor_bytes``: live torch tensors, and their memory, a memory that several
    share once. ``objects``: what Python's collector tracks. ``descriptors``: open files.
    ``resident_bytes``: memory by the kernel's count (``/proc/self/statm``).
    """
    import torch

    collect_garbage()
    objects = gc.get_objects()
    tensors = [item for item in objects if issubclass(type(item), torch.Tensor)]
    memories = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.layout == torch.strided and tensor.device.type == "cpu"
    }
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "tensors": len(tensors),
        "tensor_bytes": sum(memories.values()),
        "objects": len(objects),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }
