"""Threads: a GPU worker gives its CPU threads up once it serves; on the CPU they do the work."""

from __future__ import annotations

from typing import Any

from runner_under_test.patches.patch import Patch


def _keep_threads(_: Any) -> Any:
    def stand_in_set_torch_threads_for_runtime() -> None:
        """Keep the number of threads that the process was started with."""

    return stand_in_set_torch_threads_for_runtime


PATCHES = (
    Patch(
        target="vllm.utils.torch_utils.set_torch_threads_for_runtime",
        build=_keep_threads,
        why="the GPU worker reduces torch to one thread before it serves, "
        "which on the CPU leaves one core to compute the model",
        versions=">=0.31",  # 0.30 calls it in a warm-up that the CPU worker does not inherit
        remove_when="vLLM keeps torch's threads where the platform is the CPU",
    ),
)
