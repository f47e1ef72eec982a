"""Kernels that prepare a draft model's inputs from what the target model has sampled."""

from __future__ import annotations

from typing import Any

from conformance.kernels.example import Example
from conformance.kernels.generators.generator import Draw, Generator, boundaries

_LARGEST = 2**31 - 1


def _prepare_inputs(draw: Draw) -> Example:
    memory = draw.memory
    requests = draw.integer(0, 8)
    drafted = [draw.among(0, 0, 1, 2, 5) for _ in range(requests)]
    # A request that is discarded has 0 valid tokens, whether or not it had drafts.
    valid = [draw.integer(0, drafts + 1) for drafts in drafted]
    start = boundaries([draw.among(1, 2, 7) + drafts for drafts in drafted])
    if draw.rarely() and requests:
        start = start + (_LARGEST - int(start[-1]))
    counts = boundaries(drafted)[1:]
    return memory.example(
        {
            "cu_num_draft_tokens_ptr": memory.tensor("cu_num_draft_tokens_ptr", counts, "int32"),
            "valid_sampled_tokens_count_ptr": memory.tensor(
                "valid_sampled_tokens_count_ptr", valid, "int32"
            ),
            "query_start_loc_gpu_ptr": memory.tensor("query_start_loc_gpu_ptr", start, "int32"),
            "token_indices_to_sample_ptr": memory.output(
                "token_indices_to_sample_ptr", requests, "int32"
            ),
            "num_rejected_tokens_gpu_ptr": memory.output(
                "num_rejected_tokens_gpu_ptr", requests, "int32"
            ),
            "num_reqs": requests,
        },
        (requests,),
    )


def _prepared_inputs(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.spec_decode.utils import _eagle_prepare_inputs_padded

    _eagle_prepare_inputs_padded(
        a["cu_num_draft_tokens_ptr"],
        a["valid_sampled_tokens_count_ptr"],
        a["query_start_loc_gpu_ptr"],
        a["token_indices_to_sample_ptr"],
        a["num_rejected_tokens_gpu_ptr"],
        a["num_reqs"],
    )


def _next_token(draw: Draw) -> Example:
    memory = draw.memory
    requests, width = draw.integer(0, 7), draw.among(1, 2, 3, 4, 5, 8, 9)
    vocabulary = draw.among(1, 50, 128_256, _LARGEST)
    sampled = draw.rng.integers(0, vocabulary, (requests, width))
    sampled[draw.rng.random(sampled.shape) < draw.among(0.0, 0.4, 1.0)] = -1
    # An id at the end of the vocabulary, and beyond it, where a GPU counts it for none.
    sampled[draw.rng.random(sampled.shape) < 0.1] = vocabulary - 1
    sampled[draw.rng.random(sampled.shape) < 0.1] = min(vocabulary, _LARGEST)
    gap = draw.integer(0, 3)
    block = 1 << (width - 1).bit_length()
    discarded = draw.rng.random(requests) < draw.among(0.0, 0.3, 1.0)
    return memory.example(
        {
            "sampled_token_ids_ptr": memory.tensor(
                "sampled_token_ids_ptr", sampled, "int32", gap=gap
            ),
            "discard_request_mask_ptr": memory.tensor(
                "discard_request_mask_ptr", discarded, "bool"
            ),
            "backup_next_token_ids_ptr": memory.tensor(
                # The buffer has room for more requests than there are.
                "backup_next_token_ids_ptr",
                draw.ids(requests + draw.integer(0, 4), vocabulary),
                "int32",
            ),
            "next_token_ids_ptr": memory.output("next_token_ids_ptr", requests, "int32"),
            "valid_sampled_tokens_count_ptr": memory.output(
                "valid_sampled_tokens_count_ptr", requests, "int32"
            ),
            "vocab_size": vocabulary,
            "num_sampled_tokens_per_req": width,
            "num_reqs": requests,
            "stride_sampled_token_ids": width + gap,
            "BLOCK_SIZE_TOKENS": block,
        },
        (requests,),
    )


def _prepared_next_token(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.spec_decode.utils import _eagle_prepare_next_token_padded

    _eagle_prepare_next_token_padded(
        a["sampled_token_ids_ptr"],
        a["discard_request_mask_ptr"],
        a["backup_next_token_ids_ptr"],
        a["next_token_ids_ptr"],
        a["valid_sampled_tokens_count_ptr"],
        a["vocab_size"],
        a["num_sampled_tokens_per_req"],
        a["num_reqs"],
        a["sampled_token_ids_ptr"].stride(0),
        BLOCK_SIZE_TOKENS=a["BLOCK_SIZE_TOKENS"],
    )


def _queries(draw: Draw) -> tuple[list[int], list[int]]:
    """Query lengths, and how many of each request's tokens were rejected: never all of them."""
    lengths = [draw.among(1, 1, 2, 3, 6, 15, 16, 17) for _ in range(draw.integer(1, 5))]
    if draw.rarely():
        lengths[0] = draw.among(255, 256, 257, 600)
    return lengths, [draw.among(0, 0, length - 1, (length - 1) // 2) for length in lengths]


def _expand_for_eagle(draw: Draw) -> Example:
    memory = draw.memory
    lengths, rejected = _queries(draw)
    requests, slots = len(lengths), draw.integer(1, 4)
    shift = draw.flag()
    start = boundaries(lengths)
    tokens = int(start[-1])
    ends = start[1:] - 1 - rejected
    positions = draw.rng.integers(0, 100_000, tokens)
    if draw.rarely():
        positions[:] = 2**40
    new_slots = slots - 1 if shift else slots
    longest = max(lengths) + new_slots
    block = min(256, 1 << (longest - 1).bit_length())
    # The runner's buffers are longer than what a step needs.
    places = tokens + requests * new_slots + draw.integer(0, 5)
    vocabulary = draw.among(50, 128_256)
    return memory.example(
        {
            "target_token_ids_ptr": memory.tensor(
                "target_token_ids_ptr", draw.ids(tokens, vocabulary), "int32"
            ),
            "target_positions_ptr": memory.tensor("target_positions_ptr", positions, "int64"),
            "next_token_ids_ptr": memory.tensor(
                "next_token_ids_ptr", draw.ids(requests, vocabulary), "int32"
            ),
            "out_input_ids_ptr": memory.output("out_input_ids_ptr", places, "int32"),
            "out_positions_ptr": memory.output("out_positions_ptr", places, "int64"),
            "out_is_rejected_token_mask_ptr": memory.output(
                "out_is_rejected_token_mask_ptr", places, "bool"
            ),
            "out_is_masked_token_mask_ptr": memory.output(
                "out_is_masked_token_mask_ptr", places, "bool"
            ),
            "out_new_token_indices_ptr": memory.output(
                "out_new_token_indices_ptr", requests * slots, "int32"
            ),
            "out_hidden_state_mapping_ptr": memory.output(
                "out_hidden_state_mapping_ptr", tokens, "int32"
            ),
            "query_start_loc_ptr": memory.tensor("query_start_loc_ptr", start, "int32"),
            "query_end_loc_ptr": memory.tensor("query_end_loc_ptr", ends, "int32"),
            "padding_token_id": 0,
            "parallel_drafting_token_id": draw.among(0, vocabulary - 1, _LARGEST),
            "total_input_tokens": tokens,
            "num_padding_slots_per_request": slots,
            "shift_input_ids": shift,
            "BLOCK_SIZE_TOKENS": block,
        },
        (requests, -(-longest // block)),
    )


def _expanded_for_eagle(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.spec_decode.utils import _copy_and_expand_eagle_inputs

    lengths = a["query_start_loc_ptr"].diff()
    slots = a["num_padding_slots_per_request"] - (1 if a["shift_input_ids"] else 0)
    longest = int(lengths.max()) + slots
    _copy_and_expand_eagle_inputs(
        **a,
        batch_size=a["query_end_loc_ptr"].shape[0],
        num_blocks=-(-longest // a["BLOCK_SIZE_TOKENS"]),
    )


def _expand_for_dflash(draw: Draw) -> Example:
    memory = draw.memory
    lengths, rejected = _queries(draw)
    requests, drafts = len(lengths), draw.integer(1, 5)
    start = boundaries(lengths)
    tokens = int(start[-1])
    block = draw.among(1, 4, 16, 128)
    width = draw.integer(1, 8)
    stride = width
    # Some positions lie past the end of a row, whose last entry serves them.
    last = width * block
    positions = []
    for length in lengths:
        first = int(draw.rng.integers(0, last + 3))
        positions += list(range(first, first + length))
    table = draw.rng.integers(0, draw.among(500, 2**31 - 1), (requests + 1, width))
    has_rejected = draw.flag()
    longest = max(lengths) + drafts + 1
    launch = min(256, 1 << (longest - 1).bit_length())
    queries = requests * (drafts + 1)
    room, more = draw.integer(0, 4), draw.integer(0, 4)
    return memory.example(
        {
            "next_token_ids_ptr": memory.tensor(
                "next_token_ids_ptr", draw.ids(requests, 50), "int32"
            ),
            "target_positions_ptr": memory.tensor("target_positions_ptr", positions, "int64"),
            "out_input_ids_ptr": memory.output("out_input_ids_ptr", queries + room, "int32"),
            "out_context_positions_ptr": memory.output(
                "out_context_positions_ptr", tokens + more, "int64"
            ),
            "out_query_positions_ptr": memory.output(
                "out_query_positions_ptr", queries + room, "int64"
            ),
            "out_context_slot_mapping_ptr": memory.output(
                "out_context_slot_mapping_ptr", tokens + more, "int64"
            ),
            "out_query_slot_mapping_ptr": memory.output(
                "out_query_slot_mapping_ptr", queries + room, "int64"
            ),
            "out_token_indices_ptr": memory.output(
                "out_token_indices_ptr", requests * drafts, "int32"
            ),
            "block_table_ptr": memory.tensor("block_table_ptr", table, "int32"),
            "block_table_stride": stride,
            "query_start_loc_ptr": memory.tensor("query_start_loc_ptr", start, "int32"),
            "num_rejected_tokens_ptr": memory.tensor("num_rejected_tokens_ptr", rejected, "int32")
            if has_rejected
            else 0,
            "parallel_drafting_token_id": draw.among(0, 49, _LARGEST),
            "block_size": block,
            "num_query_per_req": drafts + 1,
            "num_speculative_tokens": drafts,
            "total_input_tokens": tokens,
            "BLOCK_SIZE": launch,
            "HAS_NUM_REJECTED": has_rejected,
        },
        (requests, -(-longest // launch)),
    )


def _expanded_for_dflash(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.spec_decode.utils import _copy_and_expand_dflash_inputs

    given = {name: a[name] for name in a if name not in ("BLOCK_SIZE", "HAS_NUM_REJECTED")}
    longest = int(a["query_start_loc_ptr"].diff().max()) + a["num_query_per_req"]
    _copy_and_expand_dflash_inputs(
        **given,
        max_tokens_per_req=longest,
        triton_block_size=a["BLOCK_SIZE"],
        has_num_rejected=a["HAS_NUM_REJECTED"],
    )


GENERATORS = (
    Generator(
        kernel="triton:eagle_prepare_inputs_padded_kernel",
        home="vllm.v1.spec_decode.utils:_eagle_prepare_inputs_padded.kernel",
        build=_prepare_inputs,
        through="_eagle_prepare_inputs_padded",
        call=_prepared_inputs,
    ),
    Generator(
        kernel="triton:eagle_prepare_next_token_padded_kernel",
        home="vllm.v1.spec_decode.utils:_eagle_prepare_next_token_padded.kernel",
        build=_next_token,
        through="_eagle_prepare_next_token_padded",
        call=_prepared_next_token,
        left_out=("ids below -1, which no sampler gives",),
    ),
    Generator(
        kernel="triton:copy_and_expand_eagle_inputs_kernel",
        home="vllm.v1.spec_decode.utils:_copy_and_expand_eagle_inputs.kernel",
        build=_expand_for_eagle,
        through="_copy_and_expand_eagle_inputs",
        call=_expanded_for_eagle,
        left_out=(
            "requests without a token, and batches without a request: no step has them, and the "
            "kernel reads past its input",
            "requests all of whose tokens were rejected: the target's own token never is",
        ),
    ),
    Generator(
        kernel="triton:copy_and_expand_dflash_inputs_kernel",
        home="vllm.v1.spec_decode.utils:_copy_and_expand_dflash_inputs.kernel",
        build=_expand_for_dflash,
        through="_copy_and_expand_dflash_inputs",
        call=_expanded_for_dflash,
        left_out=(
            "requests without a token, and batches without a request: no step has them, and the "
            "kernel reads past its input",
            "requests all of whose tokens were rejected: the target's own token never is",
        ),
    ),
)
