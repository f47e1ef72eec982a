"""Kernels that move the states of Mamba layers from block to block, given as addresses.

A request has, per group of layers, a row of block numbers. A state is a window of the last tokens
(a convolution's) or all that went before (a temporal state), and a page of the cache holds one of
each. Both kernels here decide, per request, from which column of its row to which one its states
go; the copying is the same.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from .layout import elements

_BYTES_PER_BLOCK_NUMBER = 4


@dataclass(frozen=True)
class _State:
    """Where the states of one layer and kind lie; lengths and distances in bytes, if not said."""

    base: int
    block_stride: int
    element: int
    inner: int
    """Elements of one token of a window; of the whole of a temporal state."""
    window: int
    """Tokens of a convolution's window; 0 for a temporal state."""
    group: int
    rows: int
    row_stride: int


@dataclass(frozen=True)
class _Cache:
    """The states of all layers, and the block numbers of all requests."""

    states: tuple[_State, ...]
    tables: list[int]
    """The address of each group's block table."""
    table_stride: int
    """From request to request, in block numbers."""
    dim_first: bool
    """Whether a window lies in rows, one for each dimension, and not token by token."""

    def move(self, request: int, source: int, target: int, bias: int) -> None:
        """Copy a request's states between two of its columns, ``bias`` accepted tokens on.

        A window loses its first ``bias`` tokens, and what they leave at its end stays as it is. Of
        temporal states there is one for each token, ``bias`` columns after the source.
        """
        for state in self.states:
            to = self._page(state, request, target)
            if state.window == 0:
                page = self._page(state, request, source + bias)
                _move(page, to, state.inner * state.element)
                continue
            page = self._page(state, request, source)
            if self.dim_first:
                length = (state.window - bias) * state.element
                _move_rows(page + bias * state.element, to, length, state.rows, state.row_stride)
            else:
                token = state.inner * state.element
                _move(page + bias * token, to, (state.window - bias) * token)

    def _page(self, state: _State, request: int, column: int) -> int:
        place = request * self.table_stride + column
        block = _int32_at(self.tables[state.group] + place * _BYTES_PER_BLOCK_NUMBER)
        return state.base + block * state.block_stride


def precopy_mamba_align_fused(
    *,
    mamba_state_idx_ptr: torch.Tensor,
    src_col_ptr: torch.Tensor,
    token_bias_ptr: torch.Tensor,
    block_table_ptrs_ptr: torch.Tensor,
    block_table_stride_req: int,
    state_base_addrs_ptr: torch.Tensor,
    state_block_strides_ptr: torch.Tensor,
    state_elem_sizes_ptr: torch.Tensor,
    state_inner_sizes_ptr: torch.Tensor,
    state_conv_widths_ptr: torch.Tensor,
    state_group_indices_ptr: torch.Tensor,
    state_dim_row_count_ptr: torch.Tensor,
    state_dim_row_stride_ptr: torch.Tensor,
    num_reqs: int,
    CONV_STATE_DIM_FIRST: bool,
    idx_mapping_ptr: torch.Tensor | None = None,
    HAS_IDX_MAPPING: bool = True,
    COPY_BLOCK_SIZE: int = 1024,
    TEMPORAL_TILES: int = 1,
) -> None:
    """Before a step, move each request's states to the block in which it will go on.

    Per request, ``[num_reqs]``: ``src_col_ptr`` is the column that it leaves (negative: it has no
    state yet), ``mamba_state_idx_ptr`` the one that it goes to, and ``token_bias_ptr`` how many of
    its drafts were accepted. A request that stays in its column is left alone. What describes the
    states is `_cache`'s. ``COPY_BLOCK_SIZE`` and ``TEMPORAL_TILES`` divide the GPU's work and have
    no effect.

    Raises:
        NotImplementedError: requests are numbered by a map, as the V2 runner's are.
    """
    if HAS_IDX_MAPPING:
        raise NotImplementedError("requests numbered by a map are the V2 runner's")
    cache = _cache(
        block_table_ptrs_ptr,
        block_table_stride_req,
        state_base_addrs_ptr,
        state_block_strides_ptr,
        state_elem_sizes_ptr,
        state_inner_sizes_ptr,
        state_conv_widths_ptr,
        state_group_indices_ptr,
        state_dim_row_count_ptr,
        state_dim_row_stride_ptr,
        dim_first=CONV_STATE_DIM_FIRST,
    )
    sources, targets = _first(num_reqs, src_col_ptr), _first(num_reqs, mamba_state_idx_ptr)
    biases = _first(num_reqs, token_bias_ptr)
    for request, (source, target, bias) in enumerate(zip(sources, targets, biases, strict=True)):
        if source >= 0 and source != target:
            cache.move(request, source, target, bias)


def postprocess_mamba_fused(
    *,
    num_accepted_tokens_ptr: torch.Tensor,
    mamba_state_idx_ptr: torch.Tensor,
    num_scheduled_tokens_ptr: torch.Tensor | None,
    num_computed_tokens_ptr: torch.Tensor,
    num_draft_tokens_ptr: torch.Tensor | None,
    block_table_ptrs_ptr: torch.Tensor,
    block_table_stride_req: int,
    state_base_addrs_ptr: torch.Tensor,
    state_block_strides_ptr: torch.Tensor,
    state_elem_sizes_ptr: torch.Tensor,
    state_inner_sizes_ptr: torch.Tensor,
    state_conv_widths_ptr: torch.Tensor,
    state_group_indices_ptr: torch.Tensor,
    state_dim_row_count_ptr: torch.Tensor,
    state_dim_row_stride_ptr: torch.Tensor,
    num_accepted_tokens_out_ptr: torch.Tensor,
    num_reqs: int,
    block_size: int,
    CONV_STATE_DIM_FIRST: bool,
    idx_mapping_ptr: torch.Tensor | None = None,
    HAS_IDX_MAPPING: bool = False,
    PRECOMPUTED_NEW_COMPUTED: bool = False,
    COPY_BLOCK_SIZE: int = 1024,
    TEMPORAL_TILES: int = 1,
) -> None:
    """After a step, save the states of each request whose accepted tokens fill a block.

    Per request, ``[num_reqs]``: the tokens that were computed before the step, the scheduled ones
    of the step and the drafts among them, how many of the step's tokens were accepted (one more
    than its drafts), and the column that holds its state. Where that is the column of the block
    that is filled, ``num_accepted_tokens_out_ptr`` becomes 1: the state there is moved on by what
    was accepted. What describes the states is `_cache`'s. ``COPY_BLOCK_SIZE`` and
    ``TEMPORAL_TILES`` divide the GPU's work and have no effect.

    Raises:
        NotImplementedError: requests are numbered by a map, or their computed tokens are those
            after the step, as the V2 runner has it.
    """
    if HAS_IDX_MAPPING or PRECOMPUTED_NEW_COMPUTED:
        raise NotImplementedError("requests numbered by a map are the V2 runner's")
    assert num_scheduled_tokens_ptr is not None and num_draft_tokens_ptr is not None
    cache = _cache(
        block_table_ptrs_ptr,
        block_table_stride_req,
        state_base_addrs_ptr,
        state_block_strides_ptr,
        state_elem_sizes_ptr,
        state_inner_sizes_ptr,
        state_conv_widths_ptr,
        state_group_indices_ptr,
        state_dim_row_count_ptr,
        state_dim_row_stride_ptr,
        dim_first=CONV_STATE_DIM_FIRST,
    )
    steps = zip(
        _first(num_reqs, num_accepted_tokens_ptr),
        _first(num_reqs, mamba_state_idx_ptr),
        _first(num_reqs, num_scheduled_tokens_ptr),
        _first(num_reqs, num_computed_tokens_ptr),
        _first(num_reqs, num_draft_tokens_ptr),
        strict=True,
    )
    counts = elements(num_accepted_tokens_out_ptr)
    for request, (accepted, source, scheduled, computed, drafts) in enumerate(steps):
        # The state at the source is that of so many tokens; those that follow are drafts.
        running = computed + scheduled - drafts
        filled = (running + accepted - 1) // block_size
        bias = filled * block_size - running
        if bias < 0:
            continue
        target = filled - 1
        if source == target:
            counts[request] = 1
        if source != target or bias != 0:
            cache.move(request, source, target, bias)


def _cache(
    table_addresses: torch.Tensor, table_stride: int, *states: torch.Tensor, dim_first: bool
) -> _Cache:
    """Read what describes the states.

    ``table_addresses`` has the address of each group's block table, ``[requests, columns]`` int32,
    with ``table_stride`` numbers from row to row. ``states`` are columns of `_State`, in its order,
    ``[num_states]`` each.
    """
    columns = (column.tolist() for column in states)
    return _Cache(
        tuple(_State(*values) for values in zip(*columns, strict=True)),
        table_addresses.tolist(),
        int(table_stride),
        bool(dim_first),
    )


def _first(count: int, values: torch.Tensor) -> list[Any]:
    return elements(values)[:count].tolist()


def _int32_at(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _move(source: int, target: int, size: int) -> None:
    if size > 0:
        ctypes.memmove(target, source, size)


def _move_rows(source: int, target: int, size: int, rows: int, stride: int) -> None:
    """Move ``size`` bytes of each row; rows lie ``stride`` bytes apart, here and there."""
    if size > 0 and rows > 0:
        # Through a copy, as the two may be one page.
        _rows_at(target, size, rows, stride).copy_(_rows_at(source, size, rows, stride).clone())


def _rows_at(address: int, size: int, rows: int, stride: int) -> torch.Tensor:
    memory = (ctypes.c_uint8 * ((rows - 1) * stride + size)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).as_strided((rows, size), (stride, 1))
