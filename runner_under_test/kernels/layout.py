"""Index arithmetic that the kernel implementations share.

A Triton kernel gets a bare pointer and counts elements from it. The helpers here give torch
code the same view of a tensor, and turn "one program per request" into index tensors over all
requests at once.
"""

from __future__ import annotations

import torch


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 1-D tensor that a kernel sees behind the pointer of ``tensor``.

    Element ``i`` of the result is ``i`` elements of memory after the first element of
    ``tensor``, whatever the strides of ``tensor`` are. It shares memory with ``tensor``, so a
    store into it is a store into ``tensor``. A contiguous tensor gives exactly its own elements;
    another one gives memory up to the end of its storage.
    """
    if tensor.is_contiguous():
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    in_storage = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((in_storage - tensor.storage_offset(),), (1,))


def spans(ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split an inclusive running sum into where each request starts and how long it is.

    ``ends`` is ``[num_reqs]``, any integer dtype. Both results are ``[num_reqs]`` int64.
    """
    stops = elements(ends).to(torch.int64)
    starts = torch.zeros_like(stops)
    starts[1:] = stops[:-1]
    return starts, stops - starts


def ragged(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Number all items of rows of different lengths.

    ``lengths`` is ``[num_rows]`` int64, not negative. Returns two ``[sum(lengths)]`` int64
    tensors, rows in order: the row of each item, and its place in that row counted from 0.
    """
    row = torch.repeat_interleave(lengths)
    first = lengths.cumsum(0) - lengths
    return row, torch.arange(row.shape[0], device=lengths.device) - first[row]
