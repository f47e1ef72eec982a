"""Models of Mamba 1, for which the CPU build has no recurrence, and no product with their layout.

Its operator for a single token is Mamba 2's: it has a head's dimension, and one ``A`` for a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.kernels.selective_scan import selective_scan, selective_state_update
from runner_under_test.patches.patch import Patch

_OPERATORS = "vllm._custom_ops"


def _scan_is_missing() -> bool:
    """Whether this build of vLLM has no selective scan."""
    import vllm._custom_ops  # noqa: F401  loads the operators

    return not hasattr(torch.ops._C, "selective_scan_fwd")


def _scans(_: Any) -> Any:
    @functools.wraps(selective_scan)
    def stand_in_selective_scan_fwd(*args: Any, **kwargs: Any) -> None:
        selective_scan(*args, **kwargs)

    return stand_in_selective_scan_fwd


def _updates_without_heads(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def stand_in_selective_state_update(state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Update states ``[slots, dim, d_state]``; those with heads, as the original does."""
        update = selective_state_update if state.dim() == 3 else original
        return update(state, *args, **kwargs)

    return stand_in_selective_state_update


def _takes_any_layout(original: Callable[..., None]) -> Any:
    @functools.wraps(original)
    def stand_in_dispatch(layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Choose the layer's product, and give it rows of neighbouring elements only."""
        original(layer, *args, **kwargs)
        product: Any = getattr(layer, "cpu_linear", None)
        if product is not None:
            layer.cpu_linear = lambda x, weight, bias: product(_in_rows(x), weight, bias)

    return stand_in_dispatch


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


PATCHES = (
    Patch(
        target=f"{_OPERATORS}.selective_scan_fwd",
        build=_scans,
        why="the prompts of a Mamba 1 model are scanned by it; the CPU build has no such operator, "
        "and it raises AttributeError",
        remove_when="vLLM's CPU build has selective_scan_fwd",
        condition=_scan_is_missing,
    ),
    Patch(
        target=f"{_OPERATORS}.selective_state_update_cpu",
        build=_updates_without_heads,
        why="a Mamba 1 model moves its states on by a token with it; they have no heads, and it "
        "raises IndexError: it reads the dimensions, and the one A for a head, of Mamba 2",
        remove_when="vLLM's selective_state_update_cpu takes states without heads, and an A for "
        "each channel and state",
    ),
    Patch(
        target="vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm",
        build=_takes_any_layout,
        why="a layer of Mamba 1 gives its projection a transposed tensor, in a profile and after "
        "a scan; the CPU's matrix products raise RuntimeError (Expected a.stride(-1) == 1)",
        remove_when="vLLM's matrix products for the CPU take transposed tensors",
    ),
)
