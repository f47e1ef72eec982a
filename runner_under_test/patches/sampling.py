"""Sampling code that vLLM runs on the CPU only, where it fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.patches.patch import Patch


def _top_k_of_no_rows(original: Callable[..., torch.Tensor]) -> Any:
    @functools.wraps(original)
    def stand_in_apply_top_k_only(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Mask all but each row's k largest logits, shape [rows, vocabulary]; no rows stay none."""
        return original(logits, k) if logits.shape[0] else logits

    return stand_in_apply_top_k_only


PATCHES = (
    Patch(
        target="vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only",
        build=_top_k_of_no_rows,
        why="a speculative step in which no request has a draft samples zero rows; the sort that "
        "the GPU takes accepts none, and this shortcut, taken on the CPU only, raises RuntimeError",
        remove_when="apply_top_k_only accepts logits of zero rows",
    ),
)
