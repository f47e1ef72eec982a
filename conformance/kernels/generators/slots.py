"""Kernels that turn positions into slots of the KV cache."""

from __future__ import annotations

from typing import Any

from conformance.kernels.example import Example
from conformance.kernels.generators.generator import Draw, Generator, boundaries


def _slot_mapping(draw: Draw) -> Example:
    memory = draw.memory
    # A loop of the kernel takes 1024 tokens, or 1024 places of padding, at a time.
    long = draw.rarely()
    requests = draw.integer(0, 2 if long else 6)
    lengths = (
        [draw.among(1023, 1024, 1025, 2049) for _ in range(requests)]
        if long
        else [draw.among(0, 0, 1, 1, 2, 3, 5, 16, 17) for _ in range(requests)]
    )
    start = boundaries(lengths)
    tokens = int(start[-1])
    padding = draw.among(0, 1, 3, 1024, 1500) if long else draw.integer(0, 5)
    world = draw.among(1, 1, 1, 2, 3)
    rank = draw.integer(0, world - 1)
    entry = draw.among(1, 2, 4, 16, 128)
    divided = draw.among(1, 1, 2, 4) if "BLOCKS_PER_KV_BLOCK" in draw.names else 1
    block = entry * divided
    interleave = draw.among(1, entry) if world > 1 else draw.among(1, 1, 4)
    if world > 1 and block % interleave:
        interleave = 1
    width = -(-max([0, *lengths]) // entry) + divided * draw.integer(1, 3)
    # The last position for which every rank's table has a block.
    most = (width // divided) * block * world - 1
    positions = []
    for length in lengths:
        first = int(draw.rng.integers(0, max(most - length + 2, 1)))
        if draw.flag():  # a decode, or the next chunk, right at the beginning of a block
            first = min(first // block * block, max(most - length + 1, 0))
        positions += [min(first + at, most) for at in range(length)]
    largest = (2**31 - 1) if draw.flag() else 500
    table = draw.rng.integers(0, largest, (requests + draw.integer(1, 3), width))
    arguments: dict[str, Any] = {
        "num_tokens": tokens,
        "max_num_tokens": tokens + padding,
        "query_start_loc_ptr": memory.tensor("query_start_loc_ptr", start, "int32"),
        "positions_ptr": memory.tensor("positions_ptr", positions, "int64"),
        "block_table_ptr": memory.tensor("block_table_ptr", table, "int32"),
        "block_table_stride": width,
        "slot_mapping_ptr": memory.output("slot_mapping_ptr", tokens + padding, "int64"),
        "KV_CACHE_BLOCK_SIZE": block,
        "BLOCKS_PER_KV_BLOCK": divided,
        "block_size": entry,
        "TOTAL_CP_WORLD_SIZE": world,
        "TOTAL_CP_RANK": rank,
        "CP_KV_CACHE_INTERLEAVE_SIZE": interleave,
        "PAD_ID": -1,
        "BLOCK_SIZE": 1024,
    }
    return memory.example(
        {name: arguments[name] for name in draw.names},
        (requests + 1,),
        extra={"requests": requests, "block": block, "entry": entry, "divided": divided},
        # Context parallelism is refused for a CPU long before a slot is asked for.
        may_refuse=world > 1,
    )


def _compute_slot_mapping(arguments: dict[str, Any], extra: dict[str, Any]) -> None:
    """Let a block table compute the slots, with our memory in place of its buffers."""
    import inspect

    import torch
    from vllm.v1.worker.block_table import BlockTable

    table, slots = arguments["block_table_ptr"], arguments["slot_mapping_ptr"]
    options: dict[str, Any] = {
        "block_size": extra["block"],
        "max_num_reqs": table.shape[0],
        "max_num_blocks_per_req": table.shape[1],
        "max_num_batched_tokens": slots.shape[0],
        "pin_memory": False,
        "device": torch.device("cpu"),
        "cp_kv_cache_interleave_size": arguments["CP_KV_CACHE_INTERLEAVE_SIZE"],
    }
    if "kernel_block_size" in inspect.signature(BlockTable).parameters:  # up to vLLM 0.31
        options["kernel_block_size"] = extra["entry"]
    blocks = BlockTable(**options)
    blocks.dcp_world_size = arguments["TOTAL_CP_WORLD_SIZE"]
    blocks.dcp_rank = arguments["TOTAL_CP_RANK"]
    blocks.block_table.gpu = table
    blocks.slot_mapping.gpu = slots
    blocks.compute_slot_mapping(
        extra["requests"], arguments["query_start_loc_ptr"], arguments["positions_ptr"]
    )


def _eagle_step(draw: Draw) -> Example:
    memory = draw.memory
    batch = draw.integer(0, 7)
    padded = batch + draw.integer(0, 3)
    block = draw.among(1, 4, 16, 128)
    width = draw.integer(1, 6)
    # A model may end before its last block does, and one entry may serve more than it should.
    limit = draw.among(width * block, max(width * block - 1, 1), width * block + 3)
    positions = draw.rng.integers(0, limit + 1, batch)
    for at in range(batch):
        if draw.flag():
            positions[at] = draw.among(0, limit - 1, max(limit - 2, 0), limit, block - 1)
    lengths = positions + 1 + draw.rng.integers(0, 3, batch)
    if draw.rarely():
        lengths[:] = 2**31 - 2
    table = draw.rng.integers(0, (2**31 - 1) // block, (batch, width))
    kept = memory.tensor("positions_ptr", positions, "int64")
    output = kept if draw.flag() else memory.output("out_clamped_positions_ptr", batch, "int64")
    stride = width + draw.integer(0, 2)
    return memory.example(
        {
            "positions_ptr": kept,
            "block_table_ptr": memory.tensor("block_table_ptr", table, "int32", gap=stride - width),
            "block_table_stride": stride,
            "seq_lens_ptr": memory.tensor("seq_lens_ptr", lengths, "int32"),
            "out_clamped_positions_ptr": output,
            "out_slot_mapping_ptr": memory.output("out_slot_mapping_ptr", padded, "int64"),
            "block_size": block,
            "max_model_len": int(limit),
            "n_blocks_per_req": width,
            "PAD_ID": -1,
            "batch_size": batch,
        },
        (padded,),
    )


def _step(arguments: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.spec_decode.utils import eagle_step_update_slot_mapping_and_metadata

    eagle_step_update_slot_mapping_and_metadata(
        positions_1d=arguments["positions_ptr"],
        block_table_tensor=arguments["block_table_ptr"],
        seq_lens=arguments["seq_lens_ptr"],
        block_size=arguments["block_size"],
        max_model_len=arguments["max_model_len"],
        out_clamped_positions=arguments["out_clamped_positions_ptr"],
        out_slot_mapping=arguments["out_slot_mapping_ptr"],
        input_batch_size=arguments["out_slot_mapping_ptr"].shape[0],
    )


GENERATORS = (
    Generator(
        kernel="triton:ComputeSlotMappingKernel.kernel",
        home="vllm.v1.worker.block_table:_COMPUTE_SLOT_MAPPING_KERNEL.kernel",
        build=_slot_mapping,
        through="BlockTable.compute_slot_mapping",
        call=_compute_slot_mapping,
        left_out=("positions beyond the block table: the kernel reads past its row",),
    ),
    Generator(
        kernel="triton:eagle_step_slot_mapping_metadata_kernel",
        home="vllm.v1.spec_decode.utils:_eagle_step_slot_mapping_metadata.kernel",
        build=_eagle_step,
        through="eagle_step_update_slot_mapping_and_metadata",
        call=_step,
        left_out=("slots of 2**31 and more: the kernel multiplies block numbers in int32",),
    ),
)
