"""Sampling code that vLLM runs on the CPU only, where it fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runner_under_test.patches.patch import Patch


def _top_k_of_no_rows(original: Callable[..., torch.Tensor]) -> Any:
    @functools.wraps(original)
    def stand_in_apply_top_k_only(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Mask all but each row's k largest logits, shape [rows, vocabulary]; no rows stay none."""
        return original(logits, k) if logits.shape[0] else logits

    return stand_in_apply_top_k_only


def _draws_for_nothing(runner: Any) -> dict[int, torch.Generator]:
    """The generators, by row, of seeded requests whose prompt goes on: their draw is discarded."""
    discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
    generators = runner.input_batch.generators
    return {row: generators[row] for row in discarded if row in generators}


def _discarded_draws_are_taken_back(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def stand_in_sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample, and put generators back that drew for a request whose prompt goes on."""
        kept = [
            (generator, generator.get_state()) for generator in _draws_for_nothing(self).values()
        ]
        output = original(self, *args, **kwargs)
        for generator, state in kept:
            generator.set_state(state)
        return output

    return stand_in_sample


@contextmanager
def _hidden(generators: dict[int, Any], rows: dict[int, Any]) -> Iterator[None]:
    for row in rows:
        del generators[row]
    try:
        yield
    finally:
        generators.update(rows)


def _no_offsets_are_moved(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def stand_in_bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Do the bookkeeping, which would move the offsets of the generators put back already."""
        with _hidden(self.input_batch.generators, _draws_for_nothing(self)):
            return original(self, *args, **kwargs)

    return stand_in_bookkeeping_sync


_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
_TAKEN_BACK = "the runner takes discarded draws back without CUDA's generator offsets"

PATCHES = (
    Patch(
        target="vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only",
        build=_top_k_of_no_rows,
        why="a speculative step in which no request has a draft samples zero rows; the sort that "
        "the GPU takes accepts none, and this shortcut, taken on the CPU only, raises RuntimeError",
        remove_when="apply_top_k_only accepts logits of zero rows",
    ),
    Patch(
        target=f"{_RUNNER}._sample",
        build=_discarded_draws_are_taken_back,
        why="while a prompt is computed in parts, a token is drawn after each part and discarded; "
        "the GPU moves its generator back by an offset, and a CPU's has none: its state is kept",
        remove_when=_TAKEN_BACK,
    ),
    Patch(
        target=f"{_RUNNER}._bookkeeping_sync",
        build=_no_offsets_are_moved,
        why="it moves the generators' offsets, which raises RuntimeError for a generator on the "
        'CPU ("CPU Generator does not use offset")',
        remove_when=_TAKEN_BACK,
    ),
)
