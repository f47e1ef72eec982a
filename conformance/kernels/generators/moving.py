"""Kernels that copy or clear memory by its address, and the one that looks embeddings up."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.kernels.example import Example
from conformance.kernels.generators.generator import Draw, Generator

_SIZES = (0, 1, 2, 7, 8, 9, 64, 1023, 1024, 1025, 3000)


def _memcpy(draw: Draw) -> Example:
    memory = draw.memory
    entries = draw.integer(0, 6)
    sizes = [draw.among(*_SIZES) for _ in range(entries)]
    sources, targets = [], []
    for number, size in enumerate(sizes):
        # Each entry has memory of its own, so that the order of programs makes no difference.
        kind = draw.among("apart", "apart", "down", "onto itself")
        shift = draw.integer(1, 9)
        length = 2 * size + shift + 24
        content = draw.rng.integers(0, 256, length)
        region = memory.region(f"memory of entry {number}", content, "uint8")
        origin = draw.integer(shift, shift + 8)
        target = {
            "apart": origin + size + draw.integer(0, 5),
            "down": origin - shift,
            "onto itself": origin,
        }[kind]
        sources.append((region, origin))
        targets.append((region, target))
    dtype = draw.among("uint64", "uint64", "int64")
    return memory.example(
        {
            "src_ptrs": memory.addresses("src_ptrs", sources, dtype),
            "dst_ptrs": memory.addresses("dst_ptrs", targets, dtype),
            "sizes": memory.tensor("sizes", sizes, "int32"),
            "BLOCK_SIZE": 1024,
        },
        (entries,),
    )


def _copied(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.worker.mamba_utils import batch_memcpy

    batch_memcpy(a["src_ptrs"], a["dst_ptrs"], a["sizes"])


def _zero(draw: Draw) -> Example:
    memory = draw.memory
    blocks = draw.integer(1, 5)
    strides, pages, addresses = [], [], []
    long = draw.rarely()
    for number in range(draw.integer(1, 2 if long else 4)):
        page = draw.among(1023, 1024, 1025, 2049) if long else draw.among(1, 2, 3, 8, 33)
        stride = page + draw.integer(0, 4)
        lead = draw.integer(0, 3)
        content = draw.rng.integers(1, 2**31, lead + blocks * stride)
        region = memory.region(f"memory of segment {number}", content, "int32")
        addresses.append((region, lead * 4))
        strides.append(stride)
        pages.append(page)
    # The pool never gives one block twice in a step.
    ids = draw.rng.permutation(blocks)[: draw.integer(1, blocks)]
    size = min(1 << (max(pages) - 1).bit_length(), 1024)
    chunks = -(-max(pages) // size)
    return memory.example(
        {
            "seg_addrs_ptr": memory.addresses("seg_addrs_ptr", addresses, "uint64"),
            "seg_block_strides_ptr": memory.tensor("seg_block_strides_ptr", strides, "int64"),
            "seg_page_sizes_ptr": memory.tensor("seg_page_sizes_ptr", pages, "int64"),
            "block_ids_ptr": memory.tensor("block_ids_ptr", ids, "int64"),
            "BLOCK_SIZE": size,
        },
        (len(ids), len(pages), chunks),
    )


def _zeroed(a: dict[str, Any], extra: dict[str, Any]) -> None:
    """Let a zeroer clear blocks, of which it is told what it finds out when it is made."""
    import torch
    from vllm.v1.worker.utils import KVBlockZeroer

    zeroer: Any = object.__new__(KVBlockZeroer)
    zeroer.device = torch.device("cpu")
    zeroer.pin_memory = False
    pages = a["seg_page_sizes_ptr"]
    zeroer._meta = (
        a["seg_addrs_ptr"],
        a["seg_block_strides_ptr"],
        pages,
        -(-int(pages.max()) // a["BLOCK_SIZE"]),
        a["BLOCK_SIZE"],
        pages.shape[0],
    )
    zeroer.zero_block_ids(a["block_ids_ptr"].tolist())


def _gather(draw: Draw) -> Example:
    memory = draw.memory
    bits = draw.integer(2, 8)
    factor = 32 // bits
    groups = draw.among(1, 1, 2, 3)
    # Whole words in each group; a few rows are longer than a block of 1024 values.
    hidden = groups * factor * draw.among(1, 3, 8, 70, 150)
    vocabulary = draw.among(1, 2, 9)
    tokens = draw.integer(0, 5)
    dtype = draw.among("float32", "float16", "bfloat16")
    words = draw.rng.integers(-(2**31), 2**31, (vocabulary, hidden // factor))
    words[draw.rng.random(words.shape) < 0.2] = draw.among(0, -1, 2**31 - 1, -(2**31))
    # Scales and products stay within the normal numbers of float16.
    scales = draw.rng.choice([-1, 1], (vocabulary, groups)) * draw.rng.uniform(
        0.01, 4.0, (vocabulary, groups)
    )
    if draw.rarely():
        scales[draw.integer(0, vocabulary - 1)] = draw.among(0.0, -0.0, np.inf, np.nan)
    ids = draw.ids(tokens, vocabulary)
    return memory.example(
        {
            "ids_ptr": memory.tensor("ids_ptr", ids, draw.among("int32", "int64")),
            "packed_ptr": memory.tensor("packed_ptr", words, "int32"),
            "scale_ptr": memory.tensor("scale_ptr", scales, dtype),
            "out_ptr": memory.output("out_ptr", (tokens, hidden), dtype),
            "hidden": hidden,
            "packed_cols": hidden // factor,
            "num_groups": groups,
            "NUM_BITS": bits,
            "PACK_FACTOR": factor,
            "GROUP_SIZE": 0 if groups == 1 else hidden // groups,
            "BLOCK": min(1 << (hidden - 1).bit_length(), 1024),
        },
        (tokens, -(-hidden // min(1 << (hidden - 1).bit_length(), 1024))),
    )


def _looked_up(a: dict[str, Any], extra: dict[str, Any]) -> None:
    """Look the tokens up as the layer does, and bring the result to where the launch has it."""
    from types import SimpleNamespace

    from vllm.model_executor.layers.quantization.compressed_tensors import (
        compressed_tensors_embedding as vllms,
    )

    method = vllms.CompressedTensorsEmbeddingWNA16Int(
        vllms.QuantizationArgs(num_bits=a["NUM_BITS"], strategy="channel")
    )
    layer = SimpleNamespace(
        hidden_size=a["hidden"], weight_packed=a["packed_ptr"], weight_scale=a["scale_ptr"]
    )
    a["out_ptr"].copy_(method.embedding(layer, a["ids_ptr"]))


_EMBEDDING = (
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_embedding"
)
GENERATORS = (
    Generator(
        kernel="triton:batch_memcpy_kernel",
        home="vllm.v1.worker.mamba_utils:batch_memcpy_kernel",
        build=_memcpy,
        through="batch_memcpy",
        call=_copied,
        left_out=(
            "copies up onto their own source, and entries that share memory: a GPU promises no "
            "order for them",
        ),
    ),
    Generator(
        kernel="triton:_zero_kv_blocks_kernel",
        home="vllm.v1.worker.utils:_zero_kv_blocks_kernel",
        build=_zero,
        through="KVBlockZeroer.zero_block_ids",
        call=_zeroed,
        left_out=("no block and no segment: nothing is launched",),
    ),
    Generator(
        kernel="triton:_dequant_gather_kernel",
        home=f"{_EMBEDDING}:_dequant_gather_kernel",
        build=_gather,
        through="CompressedTensorsEmbeddingWNA16Int.embedding",
        call=_looked_up,
        rounded=("out_ptr",),
        left_out=("products that float16 has no normal number for",),
    ),
)
