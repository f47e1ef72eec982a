"""Kernels that move or clear raw memory, given as addresses.

The addresses are numbers in tensors, so there is no torch operation for them: each region is one
C library call.
"""

from __future__ import annotations

import ctypes

import torch

_BYTES_PER_WORD = 4


def batch_memcpy(
    *,
    src_ptrs: torch.Tensor,
    dst_ptrs: torch.Tensor,
    sizes: torch.Tensor,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Copy one memory region per entry.

    ``src_ptrs`` and ``dst_ptrs`` are ``[n]`` byte addresses (any 64-bit integer dtype),
    ``sizes`` is ``[n]`` in bytes. The two regions of one entry may overlap, either way round.
    ``BLOCK_SIZE`` is a tile size of the GPU launch and has no effect.
    """
    for source, target, size in zip(
        src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True
    ):
        if size > 0:
            ctypes.memmove(target, source, size)


def zero_kv_blocks(
    *,
    seg_addrs_ptr: torch.Tensor,
    seg_page_sizes_ptr: torch.Tensor,
    block_ids_ptr: torch.Tensor,
    seg_block_strides_ptr: torch.Tensor | None = None,
    n_blocks: int | None = None,
    N_SEGS: int | None = None,
    MAX_CHUNKS: int | None = None,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Set the pages of some KV-cache blocks to zero bytes, in every segment.

    Per segment, ``[num_segments]``: ``seg_addrs_ptr`` is the byte address of block 0 (uint64 or
    int64), ``seg_block_strides_ptr`` the distance from block to block and ``seg_page_sizes_ptr``
    the length to clear, both in 4-byte words. ``block_ids_ptr`` is ``[num_blocks]``. What lies
    between a page and the next block is left alone. The kernel of vLLM 0.27 has no strides, as a
    block is its page there, and says how many blocks and segments count: the first ``n_blocks`` and
    ``N_SEGS``. ``MAX_CHUNKS`` and ``BLOCK_SIZE`` are tiles of the GPU launch and have no effect.
    """
    blocks = block_ids_ptr[:n_blocks].tolist()
    pages = seg_page_sizes_ptr[:N_SEGS].tolist()
    strides = pages if seg_block_strides_ptr is None else seg_block_strides_ptr.tolist()
    for address, stride, page in zip(seg_addrs_ptr[:N_SEGS].tolist(), strides, pages, strict=True):
        if page > 0:
            for block in blocks:
                ctypes.memset(address + block * stride * _BYTES_PER_WORD, 0, page * _BYTES_PER_WORD)
