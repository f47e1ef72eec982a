"""Attention sinks that are not bfloat16, for an operator that reads no others.

A sink ``s`` is one more score, without a value. With the sum ``Z`` of the tokens' exponentials it
leaves ``1 / (1 + exp(s) / Z)`` of what attention gives without it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.patches.patch import Patch


def _takes_any_sinks(original: Callable[..., None]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def stand_in_attention(*args: Any, **kwargs: Any) -> None:
        """Write ``output``, ``[tokens, heads, head_size]``; ``s_aux`` is ``[heads]``."""
        given = signature.bind(*args, **kwargs).arguments
        sinks, output = given["s_aux"], given["output"]
        if sinks is None or sinks.dtype == torch.bfloat16:
            original(**given)
            return
        rounded = sinks.to(torch.bfloat16)
        original(**given | {"s_aux": rounded})
        lost = sinks.float() - rounded.float()
        if lost.any():
            without = torch.empty_like(output)
            original(**given | {"output": without, "s_aux": None})
            output.copy_(_with_whole_sinks(output.float(), without.float(), lost))

    return stand_in_attention


def _with_whole_sinks(
    rounded: torch.Tensor, without: torch.Tensor, lost: torch.Tensor
) -> torch.Tensor:
    """What attention gives with sinks, from what it gives with rounded ones, and without any.

    All float32: both are ``[tokens, heads, head_size]``, and ``lost``, ``[heads]``, is how much
    rounding took from each sink.
    """
    norm = (without * without).sum(-1)
    share = torch.where(norm > 0, (rounded * without).sum(-1) / norm, 1.0)
    sink = (1 / share - 1).clamp(min=0) * lost.exp()
    return without / (1 + sink)[..., None]


PATCHES = (
    Patch(
        target="vllm._custom_ops.cpu_attention_with_kv_cache",
        build=_takes_any_sinks,
        why="attention with sinks, as gpt-oss has them, reads them as bfloat16, whatever dtype the "
        "model has, and raises RuntimeError (expected scalar type BFloat16 but found Float)",
        remove_when="vLLM 0.31 is the oldest that is supported: it takes sinks in float32",
        versions="<0.31",
    ),
)
