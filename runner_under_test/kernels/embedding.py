"""The kernel that looks tokens up in a quantized embedding."""

from __future__ import annotations

import torch

from .layout import elements


def dequant_gather(
    *,
    ids_ptr: torch.Tensor,
    packed_ptr: torch.Tensor,
    scale_ptr: torch.Tensor,
    out_ptr: torch.Tensor,
    hidden: int,
    packed_cols: int,
    num_groups: int,
    NUM_BITS: int,
    PACK_FACTOR: int,
    GROUP_SIZE: int,
    BLOCK: int = 1024,
) -> None:
    """Write the embedding of each token into ``out_ptr``, ``[tokens, hidden]``.

    ``ids_ptr`` is ``[tokens]``, any integer dtype. ``packed_ptr`` is ``[vocabulary, packed_cols]``
    int32: from the lowest bit up, a word has ``PACK_FACTOR`` values of ``NUM_BITS`` bits, each
    stored with half of their range added. ``scale_ptr`` is ``[vocabulary, num_groups]``, a scale
    for each ``GROUP_SIZE`` values of a row; with a ``GROUP_SIZE`` of 0 it has one for each row.
    The products are formed in float32. ``BLOCK`` is a tile size of the GPU launch and has no
    effect.
    """
    ids = elements(ids_ptr).to(torch.int64)[:, None]
    words = elements(packed_ptr)[ids * packed_cols + torch.arange(-(-hidden // PACK_FACTOR))]
    shifts = torch.arange(PACK_FACTOR, dtype=torch.int32) * NUM_BITS
    values = (words[..., None] >> shifts & (1 << NUM_BITS) - 1) - (1 << NUM_BITS - 1)
    if GROUP_SIZE == 0:
        scales = elements(scale_ptr)[ids]
    else:
        groups = torch.arange(-(-hidden // GROUP_SIZE))
        scales = elements(scale_ptr)[ids * num_groups + groups]
        scales = scales.repeat_interleave(GROUP_SIZE, dim=1)[:, :hidden]
    products = values.flatten(1)[:, :hidden].float() * scales.float()
    elements(out_ptr)[: products.numel()] = products.flatten().to(out_ptr.dtype)
