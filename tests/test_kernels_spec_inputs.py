"""The kernels that prepare draft model inputs, against references that build lists per request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernel_checks import POISONS, Arguments, differences, lengths, poisoned, undetected

SEEDS = range(24)
VOCABULARY = 50


def prepare_inputs_case(seed: int, poison: int) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs = int(rng.integers(0, 8))
    drafted = lengths(rng, num_reqs, 5)
    valid = rng.integers(0, drafted + 2)
    queries = rng.integers(1, 9, num_reqs)
    dtype = torch.int64 if seed % 3 == 0 else torch.int32
    return {
        "cu_num_draft_tokens_ptr": torch.tensor([*drafted.cumsum(), 0, 0], dtype=torch.int32),
        "valid_sampled_tokens_count_ptr": torch.tensor([*valid, 1], dtype=dtype),
        "query_start_loc_gpu_ptr": torch.tensor([0, *queries.cumsum()], dtype=torch.int32),
        "token_indices_to_sample_ptr": poisoned(num_reqs + 2, torch.int32, poison),
        "num_rejected_tokens_gpu_ptr": poisoned(num_reqs + 1, dtype, poison),
        "num_reqs": num_reqs,
    }


def prepare_inputs_reference(**a: Any) -> None:
    drafts_before = 0
    for r in range(a["num_reqs"]):
        drafted = int(a["cu_num_draft_tokens_ptr"][r]) - drafts_before
        drafts_before += drafted
        sampled = int(a["valid_sampled_tokens_count_ptr"][r])
        rejected = drafted + 1 - sampled if drafted > 0 else 0
        a["num_rejected_tokens_gpu_ptr"][r] = rejected
        a["token_indices_to_sample_ptr"][r] = a["query_start_loc_gpu_ptr"][r + 1] - 1 - rejected


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_drafting_starts_from_the_last_token_not_rejected(seed: int, poison: int) -> None:
    from runner_under_test.kernels.spec_inputs import eagle_prepare_inputs_padded

    case = prepare_inputs_case(seed, poison)
    assert differences(eagle_prepare_inputs_padded, prepare_inputs_reference, case) == []


def next_token_case(seed: int, poison: int) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs, width = int(rng.integers(0, 8)), int(rng.integers(1, 6))
    stride = width + int(rng.integers(0, 3))
    sampled = rng.integers(0, VOCABULARY + 3, (num_reqs, stride))
    sampled[rng.random(sampled.shape) < 0.5] = -1
    ids_dtype = torch.int64 if seed % 3 == 0 else torch.int32
    return {
        "sampled_token_ids_ptr": torch.from_numpy(sampled).to(ids_dtype)[:, :width],
        "discard_request_mask_ptr": torch.from_numpy(rng.random(num_reqs + 1) < 0.3),
        "backup_next_token_ids_ptr": torch.from_numpy(
            rng.integers(0, VOCABULARY, num_reqs + 4).astype(np.int32)
        ),
        "next_token_ids_ptr": poisoned(num_reqs + 1, torch.int32, poison),
        "valid_sampled_tokens_count_ptr": poisoned(num_reqs + 1, torch.int32, poison),
        "vocab_size": VOCABULARY,
        "num_sampled_tokens_per_req": width,
        "num_reqs": num_reqs,
        "stride_sampled_token_ids": stride,
        "BLOCK_SIZE_TOKENS": 8,
    }


def next_token_reference(**a: Any) -> None:
    for r in range(a["num_reqs"]):
        first = r * a["stride_sampled_token_ids"]
        row = a["sampled_token_ids_ptr"][first : first + a["num_sampled_tokens_per_req"]]
        valid = [int(t) for t in row if t != -1 and t < a["vocab_size"]]
        if a["discard_request_mask_ptr"][r]:
            valid = []
        backup = int(a["backup_next_token_ids_ptr"][r])
        a["next_token_ids_ptr"][r] = valid[-1] if valid else backup
        a["valid_sampled_tokens_count_ptr"][r] = len(valid)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_token_is_the_last_valid_one_or_the_backup(seed: int, poison: int) -> None:
    from runner_under_test.kernels.spec_inputs import eagle_prepare_next_token_padded

    case = next_token_case(seed, poison)
    assert differences(eagle_prepare_next_token_padded, next_token_reference, case) == []


def expand_inputs_case(seed: int, poison: int) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs, slots = int(rng.integers(0, 6)), int(rng.integers(1, 5))
    shift = bool(seed % 2)
    queries = rng.integers(1, 12, num_reqs)
    rejected = rng.integers(0, queries)
    start = np.concatenate([[0], queries.cumsum()])
    tokens = int(start[-1])
    total = tokens + num_reqs * slots + 7
    ids_dtype = torch.int64 if seed % 3 == 0 else torch.int32
    return {
        "target_token_ids_ptr": torch.from_numpy(rng.integers(0, VOCABULARY, tokens)).to(ids_dtype),
        "target_positions_ptr": torch.from_numpy(rng.integers(0, 1000, tokens)),
        "next_token_ids_ptr": torch.from_numpy(
            rng.integers(0, VOCABULARY, num_reqs).astype(np.int32)
        ),
        "out_input_ids_ptr": poisoned(total, ids_dtype, poison),
        "out_positions_ptr": poisoned(total, torch.int64, poison),
        "out_is_rejected_token_mask_ptr": poisoned(total, torch.bool, poison),
        "out_is_masked_token_mask_ptr": poisoned(total, torch.bool, poison),
        "out_new_token_indices_ptr": poisoned(num_reqs * slots + 1, torch.int32, poison),
        "out_hidden_state_mapping_ptr": poisoned(tokens + 1, torch.int32, poison),
        "query_start_loc_ptr": torch.tensor(start, dtype=torch.int32),
        "query_end_loc_ptr": torch.tensor(start[1:] - 1 - rejected, dtype=torch.int32),
        "padding_token_id": 0,
        "parallel_drafting_token_id": VOCABULARY + 9,
        "total_input_tokens": tokens,
        "num_padding_slots_per_request": slots,
        "shift_input_ids": shift,
        "BLOCK_SIZE_TOKENS": 16,
    }


def expand_inputs_reference(**a: Any) -> None:
    place = 0
    new_tokens = []
    slots = a["num_padding_slots_per_request"]
    for r in range(len(a["query_end_loc_ptr"])):
        first, after = int(a["query_start_loc_ptr"][r]), int(a["query_start_loc_ptr"][r + 1])
        last_valid = int(a["query_end_loc_ptr"][r])
        if a["shift_input_ids"]:
            for i in range(after - first):
                a["out_hidden_state_mapping_ptr"][first + i] = place + i
        kept = range(first + (1 if a["shift_input_ids"] else 0), last_valid + 1)
        part = [(int(a["target_token_ids_ptr"][t]), "valid") for t in kept]
        part.append((int(a["next_token_ids_ptr"][r]), "new"))
        part += [(a["parallel_drafting_token_id"], "drafting")] * (slots - 1)
        part += [(a["padding_token_id"], "rejected")] * (after - 1 - last_valid)
        for i, (token, kind) in enumerate(part):
            position = int(a["target_positions_ptr"][first]) + i
            a["out_input_ids_ptr"][place] = token
            a["out_positions_ptr"][place] = 0 if kind == "rejected" else position
            a["out_is_rejected_token_mask_ptr"][place] = kind == "rejected"
            a["out_is_masked_token_mask_ptr"][place] = kind == "drafting"
            if kind in ("new", "drafting"):
                new_tokens.append(place)
            place += 1
    for i, at in enumerate(new_tokens):
        a["out_new_token_indices_ptr"][i] = at


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_gets_room_for_its_new_tokens(seed: int, poison: int) -> None:
    from runner_under_test.kernels.spec_inputs import copy_and_expand_eagle_inputs

    case = expand_inputs_case(seed, poison)
    assert differences(copy_and_expand_eagle_inputs, expand_inputs_reference, case) == []


def dflash_case(seed: int, poison: int) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs, drafts = int(rng.integers(0, 6)), int(rng.integers(1, 5))
    block_size = int(rng.choice([1, 4, 16]))
    queries = rng.integers(1, 12, num_reqs)
    rejected = rng.integers(0, queries)
    start = np.concatenate([[0], queries.cumsum()])
    tokens = int(start[-1])
    stride = int(rng.integers(1, 9))
    with_rejected = bool(seed % 2)
    return {
        "next_token_ids_ptr": torch.from_numpy(
            rng.integers(0, VOCABULARY, num_reqs).astype(np.int32)
        ),
        "target_positions_ptr": torch.from_numpy(rng.integers(0, 100, tokens)),
        "out_input_ids_ptr": poisoned(num_reqs * (drafts + 1) + 2, torch.int32, poison),
        "out_context_positions_ptr": poisoned(tokens + 2, torch.int64, poison),
        "out_query_positions_ptr": poisoned(num_reqs * (drafts + 1) + 2, torch.int64, poison),
        "out_context_slot_mapping_ptr": poisoned(tokens + 2, torch.int64, poison),
        "out_query_slot_mapping_ptr": poisoned(num_reqs * (drafts + 1) + 2, torch.int64, poison),
        "out_token_indices_ptr": poisoned(num_reqs * drafts + 1, torch.int32, poison),
        "block_table_ptr": torch.from_numpy(
            rng.integers(0, 500, (num_reqs + 1, stride)).astype(np.int32)
        ),
        "block_table_stride": stride,
        "query_start_loc_ptr": torch.tensor(start, dtype=torch.int32),
        "num_rejected_tokens_ptr": torch.tensor(rejected, dtype=torch.int32)
        if with_rejected
        else 0,
        "parallel_drafting_token_id": VOCABULARY + 9,
        "block_size": block_size,
        "num_query_per_req": drafts + 1,
        "num_speculative_tokens": drafts,
        "total_input_tokens": tokens,
        "BLOCK_SIZE": 16,
        "HAS_NUM_REJECTED": with_rejected,
    }


def dflash_reference(**a: Any) -> None:
    size, stride = a["block_size"], a["block_table_stride"]
    listed = 0

    def slot(request: int, position: int) -> int:
        entry = min(position // size, stride - 1)
        return int(a["block_table_ptr"][request * stride + entry]) * size + position % size

    for r in range(len(a["query_start_loc_ptr"]) - 1):
        first, after = int(a["query_start_loc_ptr"][r]), int(a["query_start_loc_ptr"][r + 1])
        for t in range(first, after):
            position = int(a["target_positions_ptr"][t])
            a["out_context_positions_ptr"][t] = position
            a["out_context_slot_mapping_ptr"][t] = slot(r, position)
        rejected = int(a["num_rejected_tokens_ptr"][r]) if a["HAS_NUM_REJECTED"] else 0
        position = int(a["target_positions_ptr"][after - rejected - 1])
        for query in range(a["num_query_per_req"]):
            position += 1
            at = r * a["num_query_per_req"] + query
            a["out_query_positions_ptr"][at] = position
            a["out_query_slot_mapping_ptr"][at] = slot(r, position)
            if query == 0:
                a["out_input_ids_ptr"][at] = a["next_token_ids_ptr"][r]
            else:
                a["out_input_ids_ptr"][at] = a["parallel_drafting_token_id"]
                a["out_token_indices_ptr"][listed] = at
                listed += 1


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_dflash_splits_the_pass_into_context_and_queries(seed: int, poison: int) -> None:
    from runner_under_test.kernels.spec_inputs import copy_and_expand_dflash_inputs

    case = dflash_case(seed, poison)
    assert differences(copy_and_expand_dflash_inputs, dflash_reference, case) == []


@pytest.mark.parametrize("kernel", ["inputs", "next_token", "expand", "dflash"])
def test_planted_faults_in_draft_inputs_are_found(kernel: str) -> None:
    from runner_under_test.kernels import spec_inputs

    implementation, reference, make = {
        "inputs": (
            spec_inputs.eagle_prepare_inputs_padded,
            prepare_inputs_reference,
            prepare_inputs_case,
        ),
        "next_token": (
            spec_inputs.eagle_prepare_next_token_padded,
            next_token_reference,
            next_token_case,
        ),
        "expand": (
            spec_inputs.copy_and_expand_eagle_inputs,
            expand_inputs_reference,
            expand_inputs_case,
        ),
        "dflash": (spec_inputs.copy_and_expand_dflash_inputs, dflash_reference, dflash_case),
    }[kernel]
    cases = [make(seed, poison) for seed in SEEDS for poison in POISONS]
    written = {
        "inputs": ["token_indices_to_sample_ptr", "num_rejected_tokens_gpu_ptr"],
        "next_token": ["next_token_ids_ptr", "valid_sampled_tokens_count_ptr"],
    }
    outputs = written.get(kernel) or [name for name in cases[0] if name.startswith("out_")]
    assert undetected(implementation, reference, cases, outputs) == []
