"""``torch.accelerator`` where there is none: waiting, the allocator's cache, memory."""

from __future__ import annotations

from typing import Any

from runner_under_test.patches.devices import host_device
from runner_under_test.patches.patch import Patch


def _synchronize(_: Any) -> Any:
    def stand_in_synchronize(device: Any = None, /) -> None:
        """Wait for the device: CPU operators have finished when they return."""
        host_device(device)

    return stand_in_synchronize


def _empty_cache(_: Any) -> Any:
    def stand_in_empty_cache() -> None:
        """Give cached device memory back: the host's allocator keeps none for a device."""

    return stand_in_empty_cache


def _get_memory_info(_: Any) -> Any:
    def stand_in_get_memory_info(device: Any = None, /) -> tuple[int, int]:
        """Return the host's (free, total) memory in bytes, with 0 < free <= total.

        Free is what a new allocation can use: reclaimable caches count, and a control group's
        limit bounds both.
        """
        host_device(device)
        from vllm.utils.cpu_resource_utils import get_memory_node_info, get_visible_memory_node

        nodes = [get_memory_node_info(node) for node in get_visible_memory_node() or [0]]
        total = sum(node.total_memory for node in nodes)
        free = sum(node.available_memory for node in nodes)
        return max(1, min(free, total)), total

    return stand_in_get_memory_info


def _current_device_index(_: Any) -> Any:
    def stand_in_current_device_index() -> int:
        """Return the index of the current device: the host's CPU is device 0."""
        return 0

    return stand_in_current_device_index


_HOST_ANSWERS = "torch.accelerator answers on hosts without an accelerator"

PATCHES = (
    Patch(
        target="torch.accelerator.synchronize",
        build=_synchronize,
        why="shutdown, profiling and every place where the runner waits for its device call it; "
        "without an accelerator it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/issues/41033",
        remove_when=_HOST_ANSWERS,
    ),
    Patch(
        target="torch.accelerator.empty_cache",
        build=_empty_cache,
        why="shutdown and profiling call it; without an accelerator it raises RuntimeError, "
        "where torch.cuda.empty_cache did nothing",
        link="https://github.com/vllm-project/vllm/issues/30679",
        remove_when=_HOST_ANSWERS,
    ),
    Patch(
        target="torch.accelerator.get_memory_info",
        build=_get_memory_info,
        why="sleeping and the sizing of device memory ask it; "
        "without an accelerator it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/pull/47016",
        remove_when=_HOST_ANSWERS,
    ),
    Patch(
        target="torch.accelerator.current_device_index",
        build=_current_device_index,
        why="the loader of tensorized models asks it where to put the weights; "
        "without an accelerator it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/issues/30679",
        remove_when=_HOST_ANSWERS,
    ),
)
