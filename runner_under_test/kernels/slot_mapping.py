"""Kernels that turn token positions into KV-cache slots.

Parameter names are those of the Triton kernels, since launches bind by name. Positions are not
negative. Slots are computed in int64 throughout, and stored in the dtype of the output tensor.
"""

from __future__ import annotations

import torch

from .layout import elements


def compute_slot_mapping(
    *,
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    slot_mapping_ptr: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    PAD_ID: int,
    TOTAL_CP_WORLD_SIZE: int = 1,
    TOTAL_CP_RANK: int = 0,
    CP_KV_CACHE_INTERLEAVE_SIZE: int = 1,
    block_size: int | None = None,
    BLOCKS_PER_KV_BLOCK: int = 1,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Write the KV-cache slot of every scheduled token.

    ``query_start_loc_ptr`` is ``[num_reqs + 1]``, not decreasing: request ``r`` owns the tokens
    from its entry up to the next one. ``positions_ptr`` is ``[num_tokens]`` (position of the
    token in its sequence, in tokens); ``block_table_ptr`` is ``[rows, blocks]`` with
    ``block_table_stride`` elements from row to row. ``slot_mapping_ptr`` is
    ``[max_num_tokens]``: the slots of the requests' tokens and ``PAD_ID`` from ``num_tokens`` to
    ``max_num_tokens`` are written, nothing else.

    ``KV_CACHE_BLOCK_SIZE`` is in tokens. Up to vLLM 0.31 an attention kernel may divide such a
    block into ``BLOCKS_PER_KV_BLOCK`` table entries of ``block_size`` tokens; from 0.32 on one
    entry is one block. With context parallelism, tokens that another rank stores get ``PAD_ID``.
    ``BLOCK_SIZE`` is a tile size of the GPU launch and has no effect.
    """
    entry_size = KV_CACHE_BLOCK_SIZE if block_size is None else block_size
    num_reqs = query_start_loc_ptr.shape[0] - 1
    if num_reqs > 0:
        first, last = int(query_start_loc_ptr[0]), int(query_start_loc_ptr[-1])
        position = positions_ptr[first:last]
        row = torch.repeat_interleave(query_start_loc_ptr.diff())
        whole_cache_here = TOTAL_CP_WORLD_SIZE == 1 and TOTAL_CP_RANK == 0
        if whole_cache_here and entry_size * BLOCKS_PER_KV_BLOCK == KV_CACHE_BLOCK_SIZE:
            # The usual case, at every decode step: blocks and entries tile the sequence alike.
            entry, offset, here = position // entry_size, position % entry_size, None
        else:
            entry, offset, here = _locate_with_context_parallelism(
                position,
                kv_block_size=KV_CACHE_BLOCK_SIZE,
                entry_size=entry_size,
                entries_per_kv_block=BLOCKS_PER_KV_BLOCK,
                world_size=TOTAL_CP_WORLD_SIZE,
                rank=TOTAL_CP_RANK,
                interleave=CP_KV_CACHE_INTERLEAVE_SIZE,
            )
        index = row * block_table_stride + entry
        if here is not None:
            # The table need not reach as far as the blocks that other ranks hold.
            index = index.where(here, 0)
        slot = elements(block_table_ptr)[index].to(torch.int64) * entry_size + offset
        if here is not None:
            slot = slot.where(here, PAD_ID)
        slot_mapping_ptr[first:last] = slot
    slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID


def _locate_with_context_parallelism(
    position: torch.Tensor,
    *,
    kv_block_size: int,
    entry_size: int,
    entries_per_kv_block: int,
    world_size: int,
    rank: int,
    interleave: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the table entry, the offset in it, and whether this rank stores the token.

    The ranks together hold a block of ``kv_block_size * world_size`` tokens, dealt out in runs
    of ``interleave`` tokens, rank after rank.
    """
    shared_block = kv_block_size * world_size
    in_shared = position % shared_block
    run, in_run = in_shared // interleave, in_shared % interleave
    here = run % world_size == rank
    in_block = run // world_size * interleave + in_run
    entry = position // shared_block * entries_per_kv_block + in_block // entry_size
    return entry, in_block % entry_size, here


def eagle_step_slot_mapping_metadata(
    *,
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    seq_lens_ptr: torch.Tensor,
    out_clamped_positions_ptr: torch.Tensor,
    out_slot_mapping_ptr: torch.Tensor,
    block_size: int,
    max_model_len: int,
    n_blocks_per_req: int,
    PAD_ID: int,
    batch_size: int,
) -> None:
    """Move every request of a draft step on by one token.

    The first ``batch_size`` entries of ``positions_ptr``, ``seq_lens_ptr`` (read and written)
    and ``out_clamped_positions_ptr`` (written) belong to requests; all in tokens.
    ``out_slot_mapping_ptr`` has one entry per launched program: entries from ``batch_size`` on
    pad the batch and get ``PAD_ID``. A request that would leave ``max_model_len`` is parked at
    position 0 with length 1 and slot ``PAD_ID``. ``out_clamped_positions_ptr`` may be the same
    memory as ``positions_ptr``.
    """
    stepped = elements(positions_ptr)[:batch_size].to(torch.int64) + 1
    beyond = stepped >= max_model_len
    position = stepped.masked_fill(beyond, 0)

    entry = (position // block_size).clamp(max=n_blocks_per_req - 1)
    row = torch.arange(batch_size, device=position.device)
    block = elements(block_table_ptr)[row * block_table_stride + entry].to(torch.int64)
    slot = (block * block_size + position % block_size).masked_fill(beyond, PAD_ID)

    seq_lens = elements(seq_lens_ptr)[:batch_size]
    seq_lens.copy_((seq_lens + 1).masked_fill(beyond, 1).clamp(max=max_model_len))
    elements(out_clamped_positions_ptr)[:batch_size] = position
    out_slot_mapping_ptr[:batch_size] = slot
    out_slot_mapping_ptr[batch_size:] = PAD_ID
