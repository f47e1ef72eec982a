"""Faults of caching, scheduling, drafts and adapters: one worker class for each.

Some of them lie in the scheduler, which lives in the engine's process as the worker does: a worker
that changes the configuration before the scheduler is made, or one of its classes, plants them.
`tests/test_scheduling_faults.py` names the scenario for each, and the check that must find it.
"""

from __future__ import annotations

from typing import Any

import torch

from runner_under_test.worker import CPUWorker

_kept: list[Any] = []


class NeverCaches(CPUWorker):
    """Serves without the prefix cache, whatever was asked for."""

    def init_device(self) -> None:
        """Turn it off."""
        self.vllm_config.cache_config.enable_prefix_caching = False
        super().init_device()


class AlwaysCaches(CPUWorker):
    """Serves with the prefix cache, whatever was asked for."""

    def init_device(self) -> None:
        """Turn it on."""
        self.vllm_config.cache_config.enable_prefix_caching = True
        super().init_device()


class ReadsAnotherBlock(CPUWorker):
    """Takes the last of a request's blocks for the first that was found in the cache."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Put one in the other's place, and run the step."""
        for request in scheduler_output.scheduled_new_reqs:
            for blocks in request.block_ids:
                if request.num_computed_tokens and len(blocks) > 1:
                    blocks[0] = blocks[-1]
        return super().execute_model(scheduler_output)


class ComputesPromptsAtOnce(CPUWorker):
    """Lets a step have more tokens than was asked for."""

    def init_device(self) -> None:
        """Raise the budget before buffers and the scheduler are made."""
        self.vllm_config.scheduler_config.max_num_batched_tokens = 1024
        super().init_device()


class ComputesPromptsInParts(CPUWorker):
    """Lets a step have fewer tokens than was asked for."""

    def init_device(self) -> None:
        """Lower the budget."""
        self.vllm_config.scheduler_config.max_num_batched_tokens = 16
        super().init_device()


class HasRoomForAll(CPUWorker):
    """Has a larger KV cache than was asked for."""

    def init_device(self) -> None:
        """Set its size before it is made."""
        self.vllm_config.cache_config.num_gpu_blocks_override = 64
        super().init_device()


class ResumesOneTokenLater(CPUWorker):
    """Takes a request up again as if one token more had been computed."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Count one more for requests that were put off, and run the step."""
        cached = scheduler_output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids:
                cached.num_computed_tokens[index] += 1
        return super().execute_model(scheduler_output)


class KeepsTheBlocksOfAborted(CPUWorker):
    """Frees the blocks of requests that end by themselves only."""

    def init_device(self) -> None:
        """Have the KV cache's manager leave out the aborted."""
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.request import RequestStatus

        free = KVCacheManager.free

        def freeing(manager: Any, request: Any) -> None:
            if request.status != RequestStatus.FINISHED_ABORTED:
                free(manager, request)

        KVCacheManager.free = freeing
        super().init_device()


class MixesRowsWhenOneLeaves(CPUWorker):
    """Moves a request to a row that became free, and leaves its tokens behind."""

    def compile_or_warm_up_model(self) -> Any:
        """Have the batch keep its rows' tokens where they were."""
        batch = self.model_runner.input_batch
        condense = batch.condense

        def condensing(*args: Any) -> None:
            tokens = batch.token_ids_cpu.copy()
            condense(*args)
            batch.token_ids_cpu[:] = tokens

        batch.condense = condensing
        return super().compile_or_warm_up_model()


class JoinsNoBatch(CPUWorker):
    """Serves one request after the other."""

    def init_device(self) -> None:
        """Have room for one."""
        self.vllm_config.scheduler_config.max_num_seqs = 1
        super().init_device()


class AcceptsEveryDraft(CPUWorker):
    """Takes drafts for what the model says."""

    def compile_or_warm_up_model(self) -> Any:
        """Have the rejection sampler's verdict overwritten, where there is one."""
        sampler = getattr(self.model_runner, "rejection_sampler", None)
        if sampler is None:
            return super().compile_or_warm_up_model()
        judge = sampler.forward

        def accepting(metadata: Any, *args: Any, **kwargs: Any) -> Any:
            output, start = judge(metadata, *args, **kwargs), 0
            for row, count in enumerate(metadata.num_draft_tokens):
                drafts = metadata.draft_token_ids[start : start + count]
                last = output.sampled_token_ids[row, count]
                output.sampled_token_ids[row, :count] = drafts
                if count and last < 0:
                    output.sampled_token_ids[row, count] = drafts[-1]
                start += count
            return output

        sampler.forward = accepting
        return super().compile_or_warm_up_model()


class GuessesBadly(CPUWorker):
    """Proposes token 0 always, so that nothing is accepted."""

    def take_draft_token_ids(self) -> Any:
        """Take the drafts, and put token 0 in their place."""
        drafts = super().take_draft_token_ids()
        if drafts is not None:
            drafts.draft_token_ids = [[0 for _ in row] for row in drafts.draft_token_ids]
        return drafts


class SchedulesAhead(CPUWorker):
    """Has the engine schedule a step before the last one is done."""

    def init_device(self) -> None:
        """Turn it on, after the platform has turned it off."""
        self.vllm_config.scheduler_config.async_scheduling = True
        super().init_device()


class _Maps(CPUWorker):
    """Gives requests other adapters than theirs."""

    def compile_or_warm_up_model(self) -> Any:
        """Have the mapping of rows and tokens to adapters changed."""
        runner = self.model_runner
        activate = runner._set_active_loras

        def activating(rows: Any, tokens: Any, requests: Any, *args: Any, **kwargs: Any) -> None:
            activate(self.mapped(rows), self.mapped(tokens), requests, *args, **kwargs)

        runner._set_active_loras = activating
        return super().compile_or_warm_up_model()

    def mapped(self, adapters: tuple[int, ...]) -> tuple[int, ...]:
        """Return other adapters, by their numbers; 0 is none."""
        raise NotImplementedError


class IgnoresAdapters(_Maps):
    """Serves the base model to everyone."""

    def mapped(self, adapters: tuple[int, ...]) -> tuple[int, ...]:
        """No adapter."""
        return tuple(0 for _ in adapters)


class AppliesTheNeighboursAdapter(_Maps):
    """Gives each request the adapter of the one at the other end of the batch."""

    def mapped(self, adapters: tuple[int, ...]) -> tuple[int, ...]:
        """The adapters, backwards."""
        return tuple(reversed(adapters))


class SharesTheCacheAmongAdapters(CPUWorker):
    """Finds in the prefix cache what another adapter computed."""

    def init_device(self) -> None:
        """Have blocks' hashes leave the adapter out."""
        from vllm.v1.core import kv_cache_utils

        kv_cache_utils._gen_lora_extra_hash_keys = lambda request: []
        super().init_device()


class KeepsATensor(CPUWorker):
    """Keeps the last logits of each step."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and keep a tensor."""
        _kept.append(torch.zeros(4))
        return super().sample_tokens(grammar_output)


class KeepsMemory(CPUWorker):
    """Takes memory in each step that neither Python nor torch knows of."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and take some."""
        import ctypes

        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        ctypes.memset(libc.malloc(ctypes.c_size_t(4096)), 1, 4096)
        return super().sample_tokens(grammar_output)
