"""The host as the device: which memory the worker uses, and how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import psutil
from vllm.utils.cpu_resource_utils import (
    get_allowed_cpu_list,
    get_memory_node_info,
    get_visible_memory_node,
)


@dataclass(frozen=True)
class HostMemory:
    """Memory of the node that the worker's threads run on, in bytes."""

    node: int
    total: int
    available: int

    @property
    def sentence(self) -> str:
        """The figures for a message."""
        return (
            f"memory node {self.node} has {_gib(self.available)} GiB available "
            f"of {_gib(self.total)} GiB"
        )


def worker_memory() -> HostMemory:
    """Return the memory node of the first CPU that this process may use.

    A CPU whose node is not visible to the process counts to the first visible one.
    """
    visible = get_visible_memory_node() or [0]
    node = get_allowed_cpu_list()[0].numa_node
    if node not in visible:
        node = visible[0]
    info = get_memory_node_info(node)
    return HostMemory(node, info.total_memory, info.available_memory)


def requested_bytes(memory: HostMemory, utilization: float) -> int:
    """Return the share of the node's memory that one worker may use, in bytes."""
    return math.ceil(memory.total * utilization)


def kv_cache_bytes(memory: HostMemory, utilization: float, explicit: int | None) -> int:
    """Return how many bytes the KV cache gets.

    ``explicit`` is what the user asked for; without it, the worker's share less what its process
    occupies now.

    Raises:
        ValueError: the node has not that much left; the message says what to change.
    """
    if explicit is not None:
        if explicit > memory.available:
            raise ValueError(
                f"The KV cache is to have {_gib(explicit)} GiB, but {memory.sentence}. "
                "Lower --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE."
            )
        return explicit
    share = requested_bytes(memory, utilization)
    left = share - int(psutil.Process().memory_info().rss)
    if not 0 < left <= memory.available:
        raise ValueError(
            f"--gpu-memory-utilization={utilization} gives the worker {_gib(share)} GiB, which "
            f"leaves {_gib(left)} GiB for the KV cache, but {memory.sentence}. "
            "Change that share, or set --kv-cache-memory-bytes."
        )
    return left


def unlink_shared_memory(name: str) -> None:
    """Remove the shared memory that vLLM's CPU communicator made under a name, and never removes.

    Whoever has it mapped keeps it; a file that another worker removed meanwhile is no error.
    """
    directory = Path("/dev/shm")
    if not name or not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.startswith(f"{name}-") and "-cpushm" in path.name:
            path.unlink(missing_ok=True)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"
