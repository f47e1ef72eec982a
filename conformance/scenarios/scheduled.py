"""What an engine's scheduler did: read from its steps, its metrics and its block pool.

It runs in a child process, beside an engine whose core lives in that process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_METRICS = {
    "vllm:num_preemptions": "preempted",
    "vllm:prefix_cache_queries": "asked_of_cache",
    "vllm:prefix_cache_hits": "found_in_cache",
}
"""Counters of vLLM's (``vllm/v1/metrics/loggers.py``), and the names that they get here."""


class Schedule:
    """Counts what is scheduled, from now on: one for each engine, made before its first step.

    ``steps`` had tokens in them, ``largest`` is how many tokens the fullest had. ``split`` counts
    the steps that computed a part of a request's pending tokens and left some for later,
    ``joined`` those in which a request began while others were running.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._counts = {"steps": 0, "largest": 0, "split": 0, "joined": 0}
        self._scheduler.schedule = self._counted(self._scheduler.schedule)

    def summary(self) -> dict[str, Any]:
        """The counts, vLLM's own metrics by shorter names, and what the scheduler holds now.

        ``blocks`` are those of the KV cache that requests can have (one is set apart), and
        ``blocks_free`` those that no request holds. ``requests_left`` are not finished.
        """
        pool = self._scheduler.kv_cache_manager.block_pool
        return {
            **self._counts,
            **{
                _METRICS[metric.name]: int(metric.value)
                for metric in self._llm.get_metrics()
                if metric.name in _METRICS
            },
            "blocks": pool.num_gpu_blocks - 1,
            "blocks_free": pool.get_num_free_blocks(),
            "requests_left": sorted(self._scheduler.requests),
            "scheduler": type(self._scheduler).__name__,
        }

    def _counted(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            if output.total_num_scheduled_tokens:
                self._count(output)
            return output

        return counting

    def _count(self, output: Any) -> None:
        counts, requests = self._counts, self._scheduler.requests
        counts["steps"] += 1
        counts["largest"] = max(counts["largest"], output.total_num_scheduled_tokens)
        counts["joined"] += bool(output.scheduled_new_reqs and output.scheduled_cached_reqs.req_ids)
        # The scheduler has already counted what this step computes.
        counts["split"] += sum(
            requests[name].num_computed_tokens < requests[name].num_tokens
            for name in output.num_scheduled_tokens
        )
