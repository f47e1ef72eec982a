"""Kernels that move the states of Mamba layers from block to block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.kernels.example import Example, Value
from conformance.kernels.generators.generator import Draw, Generator

_TILES = (1, 1, 2, 16)
"""The site divides temporal states among 16 programs; fewer give the same, and sooner."""


@dataclass(frozen=True)
class _Cache:
    """The arguments that describe the states, how many states there are, and their windows."""

    arguments: dict[str, Value]
    dim_first: bool
    states: int
    narrowest: int


def _cache(draw: Draw, requests: int, columns: int) -> _Cache:
    """Draw the memory of all states.

    Every entry of a group's table names a block of its own, as the pool's do.
    """
    memory = draw.memory
    dim_first = draw.flag()
    groups = draw.integer(1, 2)
    blocks = requests * columns + 2
    base, stride, element, inner, window, group_of, rows, row_stride = ([] for _ in range(8))
    tables = []
    # Requests lie further apart than the columns they use.
    table_stride = columns + draw.integer(0, 2)
    for group in range(groups):
        numbers = draw.rng.permutation(blocks)[: requests * columns].reshape(requests, columns)
        table = memory.tensor(f"block table {group}", numbers, "int32", gap=table_stride - columns)
        tables.append((table.region, table.offset * 4))
        for kind in ("window", "temporal")[: draw.integer(1, 2)]:
            size = draw.among(1, 2, 4, 8)
            if kind == "window":
                width, dims = draw.integer(1, 4), draw.among(1, 3, 8)
                length = width * dims * size
            else:
                width, dims = 0, draw.among(1, 3, 16, 130)
                length = dims * size
            # The page of a block is longer than the state in it, a whole number of elements.
            page = length + size * draw.integer(0, 3)
            lead = size * draw.integer(0, 9)
            content = draw.rng.integers(0, 256, lead + blocks * page)
            region = memory.region(f"{kind} states of group {group}", content, "uint8")
            base.append((region, lead))
            stride.append(page)
            element.append(size)
            window.append(width)
            group_of.append(group)
            by_rows = dim_first and kind == "window"
            inner.append(1 if by_rows else dims)
            rows.append(dims if by_rows else 0)
            row_stride.append(width * size if by_rows else 0)
    described: dict[str, tuple[Sequence[int], str]] = {
        "state_block_strides_ptr": (stride, "int64"),
        "state_elem_sizes_ptr": (element, "int32"),
        "state_inner_sizes_ptr": (inner, "int64"),
        "state_conv_widths_ptr": (window, "int32"),
        "state_group_indices_ptr": (group_of, "int32"),
        "state_dim_row_count_ptr": (rows, "int32"),
        "state_dim_row_stride_ptr": (row_stride, "int64"),
    }
    arguments: dict[str, Value] = {
        "block_table_ptrs_ptr": memory.addresses("block_table_ptrs_ptr", tables, "int64"),
        "block_table_stride_req": table_stride,
        "state_base_addrs_ptr": memory.addresses("state_base_addrs_ptr", base, "int64"),
    }
    for name, (values, dtype) in described.items():
        arguments[name] = memory.tensor(name, values, dtype)
    return _Cache(arguments, dim_first, len(stride), min([w for w in window if w] or [9]))


def _precopy(draw: Draw) -> Example:
    memory = draw.memory
    requests, columns = draw.integer(1, 4), draw.integer(2, 4)
    cache = _cache(draw, requests, columns)
    sources = [draw.integer(-1, columns - 1) for _ in range(requests)]
    targets = [draw.integer(0, columns - 1) for _ in range(requests)]
    # No more drafts than a window has tokens and the row has columns.
    biases = [
        draw.integer(0, max(min(cache.narrowest, columns - 1 - source), 0)) for source in sources
    ]
    room = draw.integer(0, 2)
    tiles = draw.among(*_TILES)

    def padded(values: list[int]) -> np.ndarray:
        return np.array(values + [7] * room)

    arguments: dict[str, Value] = {
        "mamba_state_idx_ptr": memory.tensor("mamba_state_idx_ptr", padded(targets), "int32"),
        "src_col_ptr": memory.tensor("src_col_ptr", padded(sources), "int32"),
        "token_bias_ptr": memory.tensor("token_bias_ptr", padded(biases), "int32"),
        **cache.arguments,
        "idx_mapping_ptr": None,
        "num_reqs": requests,
        "COPY_BLOCK_SIZE": 1024,
        "CONV_STATE_DIM_FIRST": cache.dim_first,
        "HAS_IDX_MAPPING": False,
        "TEMPORAL_TILES": tiles,
    }
    return memory.example(arguments, (requests, cache.states, tiles))


def _postprocess(draw: Draw) -> Example:
    memory = draw.memory
    requests, columns = draw.integer(1, 4), draw.integer(3, 5)
    cache = _cache(draw, requests, columns)
    block = draw.among(2, 3, 4)
    most = min(cache.narrowest, block - 1, columns - 2)
    accepted, sources, scheduled, computed, drafts = ([] for _ in range(5))
    for _ in range(requests):
        drafted = draw.integer(0, most)
        kept = draw.among(0, 1, drafted, drafted + 1, drafted + 1)
        last = block * (columns - 1 - most)
        running = draw.integer(1, last)
        if kept and draw.integer(0, 3):
            # What was accepted reaches the end of a block, or goes beyond it.
            running = max(draw.integer(1, last // block) * block - draw.integer(0, kept - 1), 1)
        sure = draw.integer(1, min(2, running))
        accepted.append(kept)
        drafts.append(drafted)
        computed.append(running - sure)
        scheduled.append(drafted + sure)
        filled = (running + kept - 1) // block
        # The column of the tokens that are sure, that of the filled block, and the one after it.
        columns_here = [(running - 1) // block, max(filled - 1, 0), filled, filled]
        sources.append(min(draw.among(*columns_here), columns - 1 - most))
    room = draw.integer(1, 2)
    output = np.array(accepted + [memory.poison] * room)
    tiles = draw.among(*_TILES)
    arguments: dict[str, Value] = {
        "num_accepted_tokens_ptr": memory.tensor("num_accepted_tokens_ptr", accepted, "int32"),
        "mamba_state_idx_ptr": memory.tensor("mamba_state_idx_ptr", sources, "int32"),
        "num_scheduled_tokens_ptr": memory.tensor("num_scheduled_tokens_ptr", scheduled, "int32"),
        "num_computed_tokens_ptr": memory.tensor("num_computed_tokens_ptr", computed, "int32"),
        "num_draft_tokens_ptr": memory.tensor("num_draft_tokens_ptr", drafts, "int32"),
        **cache.arguments,
        # The function above the launch has copied the counts there.
        "num_accepted_tokens_out_ptr": memory.tensor(
            "num_accepted_tokens_out_ptr", output, "int32"
        ),
        "idx_mapping_ptr": None,
        "num_reqs": requests,
        "block_size": block,
        "COPY_BLOCK_SIZE": 1024,
        "CONV_STATE_DIM_FIRST": cache.dim_first,
        "HAS_IDX_MAPPING": False,
        "PRECOMPUTED_NEW_COMPUTED": False,
        "TEMPORAL_TILES": tiles,
    }
    return memory.example(arguments, (requests, cache.states, tiles))


def _context(a: dict[str, Any]) -> Any:
    """What the runner keeps of the states, with our memory in place of its own."""
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

    context: Any = object.__new__(MambaSpecDecodeGPUContext)
    context.is_initialized = True
    context.num_states = a["state_base_addrs_ptr"].shape[0]
    context.block_table_ptrs = a["block_table_ptrs_ptr"]
    context.block_table_stride_req = a["block_table_stride_req"]
    for name in (
        "state_base_addrs",
        "state_block_strides",
        "state_elem_sizes",
        "state_inner_sizes",
        "state_conv_widths",
        "state_group_indices",
        "state_dim_row_count",
        "state_dim_row_stride",
    ):
        setattr(context, name, a[f"{name}_ptr"])
    return context


def _precopied(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from unittest import mock

    from vllm.v1.worker import mamba_utils

    with mock.patch.object(
        mamba_utils, "is_conv_state_dim_first", lambda: a["CONV_STATE_DIM_FIRST"]
    ):
        _context(a).run_fused_precopy(
            num_reqs=a["num_reqs"],
            state_idx_gpu=a["mamba_state_idx_ptr"],
            src_col_gpu=a["src_col_ptr"],
            token_bias_gpu=a["token_bias_ptr"],
            idx_mapping=None,
        )


def _postprocessed(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from unittest import mock

    from vllm.v1.worker import mamba_utils

    context = _context(a)
    context.block_size = a["block_size"]
    context.num_accepted_tokens_out = a["num_accepted_tokens_out_ptr"]
    with mock.patch.object(
        mamba_utils, "is_conv_state_dim_first", lambda: a["CONV_STATE_DIM_FIRST"]
    ):
        context.run_fused_postprocess(
            num_reqs=a["num_reqs"],
            num_accepted_tokens_gpu=a["num_accepted_tokens_ptr"],
            mamba_state_idx_gpu=a["mamba_state_idx_ptr"],
            num_scheduled_tokens_gpu=a["num_scheduled_tokens_ptr"],
            num_computed_tokens_gpu=a["num_computed_tokens_ptr"],
            num_draft_tokens_gpu=a["num_draft_tokens_ptr"],
        )


_LEFT_OUT = (
    "requests that share a block: a GPU promises no order for their copies",
    "requests numbered by a map, which only the V2 runner has",
    "temporal states of more than 1024 words; a clause of the contract has one",
)
GENERATORS = (
    Generator(
        kernel="triton:precopy_mamba_align_fused_kernel",
        home="vllm.v1.worker.mamba_utils:precopy_mamba_align_fused_kernel",
        build=_precopy,
        through="MambaSpecDecodeGPUContext.run_fused_precopy",
        call=_precopied,
        left_out=_LEFT_OUT,
    ),
    Generator(
        kernel="triton:postprocess_mamba_fused_kernel",
        home="vllm.v1.worker.mamba_utils:postprocess_mamba_fused_kernel",
        build=_postprocess,
        through="MambaSpecDecodeGPUContext.run_fused_postprocess",
        call=_postprocessed,
        left_out=_LEFT_OUT,
    ),
)
