"""The slot mapping kernels against token-by-token references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.kernel_checks import POISONS, Arguments, differences, lengths, poisoned, undetected

SEEDS = range(12)


def table_case(rng: np.random.Generator, rows: int, columns: int) -> tuple[Any, int]:
    """A block table, in half of the cases a view of a wider one. Returns it and its stride."""
    import torch

    stride = columns + int(rng.integers(0, 2)) * 3
    table = torch.from_numpy(rng.integers(0, 500, (rows, stride)).astype(np.int32))
    return table[:, :columns], stride


def slot_mapping_case(seed: int, poison: int, *, world_size: int = 1) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs = int(rng.integers(0, 7))
    block_size = int(rng.choice([1, 4, 16]))
    entries_per_block = int(rng.choice([1, 2, 3]))
    kv_block_size = block_size * entries_per_block
    counts = lengths(rng, num_reqs, 40)
    query_start_loc = np.concatenate([[0], counts.cumsum()])
    num_tokens = int(query_start_loc[-1])
    starts = rng.integers(0, 100, num_reqs)
    positions = [p + i for p, n in zip(starts, counts, strict=True) for i in range(n)]
    columns = (140 // (kv_block_size * world_size) + 1) * entries_per_block
    table, stride = table_case(rng, num_reqs + 2, columns)
    max_num_tokens = num_tokens + int(rng.integers(0, 9))
    arguments: Arguments = {
        "num_tokens": num_tokens,
        "max_num_tokens": max_num_tokens,
        "query_start_loc_ptr": torch.tensor(query_start_loc, dtype=torch.int32),
        "positions_ptr": torch.tensor(positions, dtype=torch.int64),
        "block_table_ptr": table,
        "block_table_stride": stride,
        "slot_mapping_ptr": poisoned(max_num_tokens + 5, torch.int64, poison),
        "KV_CACHE_BLOCK_SIZE": kv_block_size,
        "TOTAL_CP_WORLD_SIZE": world_size,
        "TOTAL_CP_RANK": int(rng.integers(0, world_size)),
        "CP_KV_CACHE_INTERLEAVE_SIZE": int(rng.choice([1, block_size])),
        "PAD_ID": -1,
        "BLOCK_SIZE": 1024,
    }
    if entries_per_block > 1 or seed % 2:
        arguments |= {"block_size": block_size, "BLOCKS_PER_KV_BLOCK": entries_per_block}
    return arguments


def slot_mapping_reference(
    *,
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: np.ndarray,
    positions_ptr: np.ndarray,
    block_table_ptr: np.ndarray,
    block_table_stride: int,
    slot_mapping_ptr: np.ndarray,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
    block_size: int | None = None,
    BLOCKS_PER_KV_BLOCK: int = 1,
) -> None:
    """Deal the tokens of one shared block out to the ranks like cards, then look places up."""
    entry_size = block_size or KV_CACHE_BLOCK_SIZE
    held = [0] * TOTAL_CP_WORLD_SIZE
    dealt = []
    for i in range(KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE):
        rank = i // CP_KV_CACHE_INTERLEAVE_SIZE % TOTAL_CP_WORLD_SIZE
        dealt.append((rank, held[rank]))
        held[rank] += 1
    for request in range(len(query_start_loc_ptr) - 1):
        for token in range(query_start_loc_ptr[request], query_start_loc_ptr[request + 1]):
            shared_block, inside = divmod(int(positions_ptr[token]), len(dealt))
            rank, place = dealt[inside]
            if rank != TOTAL_CP_RANK:
                slot_mapping_ptr[token] = PAD_ID
                continue
            entry = shared_block * BLOCKS_PER_KV_BLOCK + place // entry_size
            block = int(block_table_ptr[request * block_table_stride + entry])
            slot_mapping_ptr[token] = block * entry_size + place % entry_size
    for token in range(num_tokens, max_num_tokens):
        slot_mapping_ptr[token] = PAD_ID


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_slot_mapping_gives_every_token_its_slot(seed: int, poison: int, world_size: int) -> None:
    from runner_under_test.kernels.slot_mapping import compute_slot_mapping

    case = slot_mapping_case(seed, poison, world_size=world_size)
    assert differences(compute_slot_mapping, slot_mapping_reference, case) == []


def eagle_step_case(seed: int, poison: int) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    batch_size = int(rng.integers(0, 7))
    block_size = int(rng.choice([1, 4, 16]))
    max_model_len = int(rng.integers(1, 60))
    columns = max(1, -(-max_model_len // block_size) - int(rng.integers(0, 2)))
    table, stride = table_case(rng, batch_size + 1, columns)
    positions = torch.from_numpy(rng.integers(0, max_model_len + 3, batch_size))
    in_place = seed % 3 == 0
    return {
        "positions_ptr": positions,
        "block_table_ptr": table,
        "block_table_stride": stride,
        "seq_lens_ptr": torch.from_numpy(
            rng.integers(1, max_model_len + 2, batch_size + 2).astype(np.int32)
        ),
        "out_clamped_positions_ptr": positions
        if in_place
        else poisoned(batch_size + 3, torch.int64, poison),
        # As the proposer passes it: a buffer cut to the padded batch.
        "out_slot_mapping_ptr": poisoned(batch_size + 8, torch.int64, poison)[
            : batch_size + int(rng.integers(0, 5))
        ],
        "block_size": block_size,
        "max_model_len": max_model_len,
        "n_blocks_per_req": columns,
        "PAD_ID": -1,
        "batch_size": batch_size,
    }


def eagle_step_reference(programs: int, /, **a: Any) -> None:
    for r in range(programs):
        if r >= a["batch_size"]:
            a["out_slot_mapping_ptr"][r] = a["PAD_ID"]
            continue
        position = int(a["positions_ptr"][r]) + 1
        if position >= a["max_model_len"]:
            a["out_clamped_positions_ptr"][r] = 0
            a["out_slot_mapping_ptr"][r] = a["PAD_ID"]
            a["seq_lens_ptr"][r] = min(1, a["max_model_len"])
            continue
        entry = min(position // a["block_size"], a["n_blocks_per_req"] - 1)
        block = int(a["block_table_ptr"][r * a["block_table_stride"] + entry])
        a["out_clamped_positions_ptr"][r] = position
        a["out_slot_mapping_ptr"][r] = block * a["block_size"] + position % a["block_size"]
        a["seq_lens_ptr"][r] = min(int(a["seq_lens_ptr"][r]) + 1, a["max_model_len"])


def eagle_step_reference_for(case: Arguments) -> Any:
    """The reference, launched with one program per entry of the slot mapping."""
    programs = case["out_slot_mapping_ptr"].shape[0]
    return lambda **arguments: eagle_step_reference(programs, **arguments)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", range(30))
def test_eagle_step_moves_every_request_on_by_one_token(seed: int, poison: int) -> None:
    from runner_under_test.kernels.slot_mapping import eagle_step_slot_mapping_metadata

    case = eagle_step_case(seed, poison)
    reference = eagle_step_reference_for(case)
    assert differences(eagle_step_slot_mapping_metadata, reference, case) == []


def test_slots_beyond_int32_are_right() -> None:
    import torch

    from runner_under_test.kernels.slot_mapping import compute_slot_mapping

    slots = torch.zeros(1, dtype=torch.int64)
    compute_slot_mapping(
        num_tokens=1,
        max_num_tokens=1,
        query_start_loc_ptr=torch.tensor([0, 1], dtype=torch.int32),
        positions_ptr=torch.tensor([3]),
        block_table_ptr=torch.tensor([[2**30]], dtype=torch.int32),
        block_table_stride=1,
        slot_mapping_ptr=slots,
        KV_CACHE_BLOCK_SIZE=16,
        PAD_ID=-1,
    )
    assert slots.tolist() == [2**34 + 3]


def slot_mapping_cases() -> Iterator[Arguments]:
    for seed in SEEDS:
        yield slot_mapping_case(seed, POISONS[0], world_size=1 + seed % 2)


def test_planted_faults_in_slot_mapping_are_found() -> None:
    from runner_under_test.kernels.slot_mapping import compute_slot_mapping

    missed = undetected(
        compute_slot_mapping, slot_mapping_reference, slot_mapping_cases(), ["slot_mapping_ptr"]
    )
    assert missed == []


def test_planted_faults_in_eagle_step_are_found() -> None:
    from runner_under_test.kernels.slot_mapping import eagle_step_slot_mapping_metadata

    apart = [eagle_step_case(seed, POISONS[0]) for seed in range(30) if seed % 3]
    case = next(case for case in apart if case["batch_size"] > 3)
    outputs = ["seq_lens_ptr", "out_clamped_positions_ptr", "out_slot_mapping_ptr"]
    reference = eagle_step_reference_for(case)
    assert undetected(eagle_step_slot_mapping_metadata, reference, [case], outputs) == []
