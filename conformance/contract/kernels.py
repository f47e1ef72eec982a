"""Kernels: what a launch of each Triton kernel of vLLM's runner leaves in memory.

Every clause launches through the function or dispatcher that the runner itself calls, or as its
call sites do (see `launches`), with the dtypes that it passes, and compares all of the outputs with
literals. The literals were worked out by hand from the Triton source (the same in vLLM 0.20.2 to
0.32.0 for what is asked here, but where a clause names versions), not taken from a run; a line
beside each of them says how. Triton's own interpreter, given the kernels of 0.30.0, 0.31.0 and
0.32.0, agrees with all of them but one: to bfloat16 it cuts float32 off, where a GPU rounds it.
Before the launch, outputs and, where they are part of a larger buffer, what lies around them hold a
poison that no kernel writes, so a missing store shows, and one too many.

All values are exact in binary, and no case hangs on the order of an addition or on a tie, so any
right implementation gives these very numbers and there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance.contract import launches
from conformance.contract.clause import clause, clauses_of, require, the_device

# What outputs hold before a launch: bool ones hold True.
_POISON = -77

_SLOTS = ("triton:ComputeSlotMappingKernel.kernel", "triton:_compute_slot_mapping_kernel")
_EAGLE_STEP = "triton:eagle_step_slot_mapping_metadata_kernel"
_EAGLE_INPUTS = "triton:eagle_prepare_inputs_padded_kernel"
_EAGLE_NEXT = "triton:eagle_prepare_next_token_padded_kernel"
_EAGLE_EXPAND = "triton:copy_and_expand_eagle_inputs_kernel"
_DFLASH_EXPAND = "triton:copy_and_expand_dflash_inputs_kernel"
_GREEDY = "triton:rejection_greedy_sample_kernel"
_RANDOM = "triton:rejection_random_sample_kernel"
_EXPAND = "triton:expand_kernel"
_RECOVER = "triton:sample_recovered_tokens_kernel"
_MEMCPY = "triton:batch_memcpy_kernel"
_ZERO = "triton:_zero_kv_blocks_kernel"
_PRECOPY = "triton:precopy_mamba_align_fused_kernel"
_POSTPROCESS = "triton:postprocess_mamba_fused_kernel"
_GATHER = "triton:_dequant_gather_kernel"
# No kernel, and on no surface: the kernels that it launches are captured on a GPU, and replayed.
_CENTROIDS = "vllm.v1.spec_decode.gemma4.Gemma4Proposer"


def _poisoned(*shape: int, dtype: str = "int32") -> Any:
    import torch

    return torch.full(shape, True if dtype == "bool" else _POISON, dtype=getattr(torch, dtype))


def _int32(*values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32)


def _int64(*values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int64)


def _float32(*values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float32)


def _float64(*values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float64)


def _bool(*values: bool) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.bool)


def _holds(what: str, got: Any, want: list[Any]) -> None:
    values = got.tolist()
    require(values == want, f"{what}: {values}, not {want}")


def _slot_mapping(
    rows: list[list[int]],
    starts: list[int],
    positions: list[int],
    padding: int = 0,
    kernel_block_size: int = 4,
) -> Any:
    """Fill a block table of blocks of 4 tokens, and let it map positions to slots."""
    import inspect

    import torch
    from vllm.v1.worker.block_table import BlockTable

    options: dict[str, Any] = {
        "block_size": 4,
        "max_num_reqs": 3,
        "max_num_blocks_per_req": 3,
        "max_num_batched_tokens": len(positions) + padding,
        "pin_memory": False,
        "device": torch.device("cpu"),
        "cp_kv_cache_interleave_size": 1,
    }
    if "kernel_block_size" in inspect.signature(BlockTable).parameters:  # up to vLLM 0.31
        options["kernel_block_size"] = kernel_block_size
    table = BlockTable(**options)
    for number, row in enumerate(rows):
        table.add_row(row, number)
    table.commit_block_table(len(rows))
    table.slot_mapping.gpu.fill_(_POISON)
    table.compute_slot_mapping(len(rows), _int32(*starts), _int64(*positions))
    return table.slot_mapping.gpu


@clause(*_SLOTS, gpu="slot = table[position // block size] * block size + position % block size")
def tokens_get_the_slots_of_their_blocks() -> None:
    slots = _slot_mapping([[5, 2, 9], [7, 3]], [0, 3, 5], [3, 4, 5, 0, 6])
    # 5*4+3, 2*4+0, 2*4+1; 7*4+0, 3*4+2.
    _holds("slots", slots, [23, 8, 9, 28, 14])


@clause(*_SLOTS, gpu="a request without tokens takes no slot, and the next one its own row")
def a_request_without_tokens_takes_no_slot() -> None:
    slots = _slot_mapping([[5], [7], [3]], [0, 1, 1, 3], [1, 2, 3])
    # 5*4+1; nothing of block 7; 3*4+2, 3*4+3.
    _holds("slots", slots, [21, 14, 15])


@clause(*_SLOTS, gpu="the block number is widened to int64 before it is multiplied")
def slots_beyond_32_bits_are_right() -> None:
    slots = _slot_mapping([[600_000_000], [1]], [0, 1, 2], [2, 1])
    # 600000000*4+2; 1*4+1.
    _holds("slots", slots, [2_400_000_002, 5])


@clause(*_SLOTS, gpu="a block may be divided into several entries of the table", versions="<0.32")
def tokens_get_the_slots_of_divided_blocks() -> None:
    slots = _slot_mapping([[5, 2], [7]], [0, 3, 4], [1, 3, 6, 2], kernel_block_size=2)
    # Block b has entries 2b and 2b+1 of 2 tokens: 10*2+1, 11*2+1, 5*2+0; 15*2+0.
    _holds("slots", slots, [21, 23, 10, 30])


@clause(
    *_SLOTS, gpu="the last program stores -1 from the number of tokens to the end of the buffer"
)
def slots_of_no_token_are_padding() -> None:
    slots = _slot_mapping([[5], [7]], [0, 2, 3], [0, 1, 2], padding=3)
    # 5*4+0, 5*4+1; 7*4+2; three more belong to no token.
    _holds("slots", slots, [20, 21, 30, -1, -1, -1])


@clause(_EAGLE_STEP, gpu="position and length go up by one; the slot is that of the new position")
def a_draft_step_moves_every_request_on() -> None:
    from vllm.v1.spec_decode.utils import eagle_step_update_slot_mapping_and_metadata

    positions, seq_lens = _int64(2, 7, 5), _int32(3, 8, 6)
    clamped, slots = _poisoned(4, dtype="int64"), _poisoned(6, dtype="int64")
    eagle_step_update_slot_mapping_and_metadata(
        positions_1d=positions,
        block_table_tensor=_int32([5, 2], [7, 3], [9, 4]),
        seq_lens=seq_lens,
        block_size=4,
        max_model_len=8,
        out_clamped_positions=clamped[:3],
        out_slot_mapping=slots[:5],
        input_batch_size=5,
    )
    # 2+1; 7+1 is at the model's end, so 0; 5+1. The second's length is 1 then.
    _holds("positions", clamped, [3, 0, 6, _POISON])
    _holds("lengths", seq_lens, [4, 1, 7])
    # 5*4+3; the second has none; 4*4+2; two more pad the batch.
    _holds("slots", slots, [23, -1, 18, -1, -1, _POISON])
    _holds("the positions it read", positions, [2, 7, 5])


@clause(_EAGLE_STEP, gpu="the new positions may go where the old ones are")
def a_draft_step_may_update_positions_in_place() -> None:
    from vllm.v1.spec_decode.utils import eagle_step_update_slot_mapping_and_metadata

    positions, seq_lens = _int64(2, 3, _POISON), _int32(3, 4)
    slots = _poisoned(3, dtype="int64")
    eagle_step_update_slot_mapping_and_metadata(
        positions_1d=positions[:2],
        block_table_tensor=_int32([5, 2], [7, 3]),
        seq_lens=seq_lens,
        block_size=4,
        max_model_len=8,
        out_clamped_positions=positions[:2],
        out_slot_mapping=slots[:2],
        input_batch_size=2,
    )
    # 2+1 in block 5: 5*4+3; 3+1 begins block 3: 3*4+0.
    _holds("positions", positions, [3, 4, _POISON])
    _holds("slots", slots, [23, 12, _POISON])
    _holds("lengths", seq_lens, [4, 5])


@clause(_EAGLE_INPUTS, gpu="rejected = drafts + 1 - valid, 0 without drafts; last token less them")
def a_draft_starts_from_the_last_accepted_token() -> None:
    indices, rejected = _poisoned(5), _poisoned(5)
    launches.eagle_prepare_inputs_padded(
        _int32(2, 2, 5), _int32(1, 0, 3), _int32(0, 3, 4, 8), indices[1:4], rejected[1:4], 3
    )
    # 2+1-1; no drafts, so 0 (not 0+1-0); 3+1-3.
    _holds("rejected tokens", rejected, [_POISON, 2, 0, 1, _POISON])
    # Last tokens 2, 3 and 7, less those.
    _holds("token indices", indices, [_POISON, 0, 3, 6, _POISON])


@clause(_EAGLE_NEXT, gpu="the last id that is not -1 and in the vocabulary, else the backup")
def the_next_token_is_the_last_valid_one() -> None:
    sampled = _int32([10, 11, -1], [12, 60, -1], [-1, -1, -1], [13, 14, 15], [16, 17, 18])
    tokens, counts = _poisoned(7), _poisoned(7)
    launches.eagle_prepare_next_token_padded(
        sampled,
        _bool(False, False, False, True, False),
        _int32(20, 21, 22, 23, 24, 25),
        tokens[1:6],
        counts[1:6],
        50,
        3,
        5,
        3,
        BLOCK_SIZE_TOKENS=4,
    )
    # 60 is not in the vocabulary; the third has no valid id; the fourth is discarded.
    _holds("next tokens", tokens, [_POISON, 11, 12, 22, 23, 18, _POISON])
    _holds("valid counts", counts, [_POISON, 2, 1, 0, 0, 3, _POISON])


def _expanded_for_eagle(shift: bool, slots: int) -> tuple[Any, ...]:
    """Lay out a batch of 3 and 2 tokens, of which the third is rejected; 8 places of output."""
    outputs = (
        _poisoned(8),
        _poisoned(8, dtype="int64"),
        _poisoned(8, dtype="bool"),
        _poisoned(8, dtype="bool"),
    )
    new, hidden = _poisoned(2 * slots + 2), _poisoned(7)
    launches.copy_and_expand_eagle_inputs(
        target_token_ids_ptr=_int32(10, 11, 12, 20, 21),
        target_positions_ptr=_int64(5, 6, 7, 0, 1),
        next_token_ids_ptr=_int32(90, 91),
        out_input_ids_ptr=outputs[0],
        out_positions_ptr=outputs[1],
        out_is_rejected_token_mask_ptr=outputs[2],
        out_is_masked_token_mask_ptr=outputs[3],
        out_new_token_indices_ptr=new[1:-1],
        out_hidden_state_mapping_ptr=hidden[1:-1],
        query_start_loc_ptr=_int32(0, 3, 5),
        query_end_loc_ptr=_int32(1, 4),
        padding_token_id=0,
        parallel_drafting_token_id=77,
        total_input_tokens=5,
        num_padding_slots_per_request=slots,
        shift_input_ids=shift,
        BLOCK_SIZE_TOKENS=4,
        batch_size=2,
        num_blocks=1,
    )
    return (*outputs, new, hidden)


@clause(_EAGLE_EXPAND, gpu="per request: valid tokens, the next token, rejected ones as padding")
def a_draft_model_gets_room_for_the_next_token() -> None:
    ids, positions, rejected, masked, new, hidden = _expanded_for_eagle(shift=False, slots=1)
    # Request 0 has places 0 to 3: two valid tokens, 90, one rejected. Request 1 has 4 to 6.
    _holds("token ids", ids, [10, 11, 90, 0, 20, 21, 91, _POISON])
    # They count up from 5 and from 0; a rejected token has 0.
    _holds("positions", positions, [5, 6, 7, 0, 0, 1, 2, _POISON])
    _holds("rejected mask", rejected, [False, False, False, True, False, False, False, True])
    # Nothing is drafted in parallel; the last place is as it was.
    _holds("masked tokens", masked, [False] * 7 + [True])
    _holds("new token indices", new, [_POISON, 2, 6, _POISON])
    # Without the shift no hidden state is mapped.
    _holds("hidden states", hidden, [_POISON] * 7)


@clause(_EAGLE_EXPAND, gpu="shifted: without the first token; then the next and parallel drafts")
def parallel_drafts_follow_the_shifted_tokens() -> None:
    ids, positions, rejected, masked, new, hidden = _expanded_for_eagle(shift=True, slots=2)
    # Request 0 has places 0 to 3: 11, 90, a parallel draft, one rejected. Request 1 has 4 to 6.
    _holds("token ids", ids, [11, 90, 77, 0, 21, 91, 77, _POISON])
    # Positions are not shifted: they count up from 5 and from 0.
    _holds("positions", positions, [5, 6, 7, 0, 0, 1, 2, _POISON])
    _holds("rejected mask", rejected, [False, False, False, True, False, False, False, True])
    # Places 2 and 6 are parallel drafts; the last place is as it was.
    _holds("masked tokens", masked, [False, False, True, False, False, False, True, True])
    _holds("new token indices", new, [_POISON, 1, 2, 5, 6, _POISON])
    # Input token t of request r goes to where the output of r begins, and on: 0 and 4.
    _holds("hidden states", hidden, [_POISON, 0, 1, 2, 4, 5, _POISON])


def _expanded_for_dflash(rejected: Any) -> tuple[Any, ...]:
    """Lay out contexts of 3 and 2 tokens and 3 queries each, in blocks of 4 tokens."""
    ids, indices = _poisoned(7), _poisoned(6)
    context, queries = _poisoned(6, dtype="int64"), _poisoned(7, dtype="int64")
    context_slots, query_slots = _poisoned(6, dtype="int64"), _poisoned(7, dtype="int64")
    table = _int32([5, 2, 9], [7, 3, 6])
    launches.copy_and_expand_dflash_inputs(
        next_token_ids_ptr=_int32(90, 91),
        target_positions_ptr=_int64(5, 6, 7, 0, 1),
        out_input_ids_ptr=ids,
        out_context_positions_ptr=context,
        out_query_positions_ptr=queries,
        out_context_slot_mapping_ptr=context_slots,
        out_query_slot_mapping_ptr=query_slots,
        out_token_indices_ptr=indices[1:-1],
        block_table_ptr=table,
        block_table_stride=table.stride(0),
        query_start_loc_ptr=_int32(0, 3, 5),
        num_rejected_tokens_ptr=0 if rejected is None else rejected,
        parallel_drafting_token_id=77,
        block_size=4,
        num_query_per_req=3,
        num_speculative_tokens=2,
        total_input_tokens=5,
        max_tokens_per_req=6,
        triton_block_size=8,
        has_num_rejected=rejected is not None,
    )
    # What does not hang on the rejected tokens: positions are copied, and slots are
    # 2*4+1, 2*4+2, 2*4+3; 7*4+0, 7*4+1.
    _holds("context positions", context, [5, 6, 7, 0, 1, _POISON])
    _holds("context slots", context_slots, [9, 10, 11, 28, 29, _POISON])
    # The next token and two drafts per request; places 1, 2, 4 and 5 are the drafts'.
    _holds("token ids", ids, [90, 77, 77, 91, 77, 77, _POISON])
    _holds("token indices", indices, [_POISON, 1, 2, 4, 5, _POISON])
    return queries, query_slots


@clause(_DFLASH_EXPAND, gpu="queries follow the context's last position; both get their slots")
def dflash_queries_follow_their_context() -> None:
    positions, slots = _expanded_for_dflash(None)
    # After 7 and after 1.
    _holds("query positions", positions, [8, 9, 10, 2, 3, 4, _POISON])
    # 9*4+0 and on; 7*4+2, 7*4+3, 3*4+0.
    _holds("query slots", slots, [36, 37, 38, 30, 31, 12, _POISON])


@clause(_DFLASH_EXPAND, gpu="with rejected tokens, queries follow the last valid position")
def dflash_queries_follow_the_last_valid_token() -> None:
    positions, slots = _expanded_for_dflash(_int32(1, 0))
    # After 6, as 7 was rejected, and after 1.
    _holds("query positions", positions, [7, 8, 9, 2, 3, 4, _POISON])
    # 2*4+3, 9*4+0, 9*4+1; 7*4+2, 7*4+3, 3*4+0.
    _holds("query slots", slots, [11, 36, 37, 30, 31, 12, _POISON])


@clause(_GREEDY, gpu="the target's tokens up to the first that differs; the bonus if none does")
def greedy_drafts_stay_until_the_target_differs() -> None:
    output = _poisoned(5, 3)
    launches.rejection_greedy_sample(
        output[:4],
        _int32(2, 2, 4, 6),
        _int32(3, 4, 5, 6, 7, 8),
        _int64(1, 4, 5, 6, 7, 8),
        _int32([90], [91], [92], [93]),
        None,
        2,
        None,
        None,
    )
    # Rejected at once; no drafts; both accepted, twice; the last row is no request's.
    want = [[1, _POISON, _POISON], [91, _POISON, _POISON], [5, 6, 92], [7, 8, 93], [_POISON] * 3]
    _holds("output tokens", output, want)


@clause(_GREEDY, gpu="rows whose is_greedy is false stay as they are")
def the_greedy_kernel_leaves_sampled_requests_alone() -> None:
    output = _poisoned(3, 3)
    launches.rejection_greedy_sample(
        output,
        _int32(2, 4, 6),
        _int32(3, 4, 5, 6, 7, 8),
        _int64(3, 1, 5, 6, 7, 8),
        _int32([90], [91], [92]),
        _bool(True, False, True),
        2,
        _float64(0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
        None,
    )
    # The second draft of the first is rejected; the second is a sampled one; all accepted.
    _holds("output tokens", output, [[3, 1, _POISON], [_POISON] * 3, [7, 8, 92]])


def _rejection_random(
    counts: Any,
    drafts: Any,
    draft_probs: Any,
    target_probs: Any,
    uniform: Any,
    is_greedy: Any,
    rates: Any = None,
) -> Any:
    """Decide about up to 2 drafts per request; bonus tokens 90 and on, recovered ones 60 and on."""
    requests, tokens = counts.shape[0], drafts.shape[0]
    output = _poisoned(requests + 1, 3)
    launches.rejection_random_sample(
        output[:requests],
        counts,
        drafts,
        draft_probs,
        target_probs,
        _int32(*([90 + number] for number in range(requests))),
        _int32(*range(60, 60 + tokens)),
        uniform,
        is_greedy,
        2,
        rates,
    )
    return output


@clause(
    _RANDOM, gpu="a draft stays if target / draft >= uniform; the first that fails is recovered"
)
def sampled_drafts_stay_by_their_probability_ratio() -> None:
    output = _rejection_random(
        _int32(2, 3, 4, 4, 6),
        _int32(0, 2, 1, 1, 0, 1),
        _float32(
            [1.0, 0.0, 0.0],
            [0.0, 0.5, 0.5],
            [0.25, 0.5, 0.25],
            [0.0, 1.0, 0.0],
            [0.0, 0.5, 0.5],
            [0.0, 1.0, 0.0],
        ),
        _float32(
            [0.5, 0.25, 0.25],
            [0.25, 0.25, 0.5],
            [0.5, 0.25, 0.25],
            [0.0, 1.0, 0.0],
            [1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0],
        ),
        _float64(0.5, 0.875, 0.75, 0.0, 0.25, 0.25),
        _bool(False, False, True, False, False),
    )
    want = [
        [0, 2, 90],  # 0.5/1 >= 0.5 (equal is enough), 0.5/0.5 >= 0.875
        [62, _POISON, _POISON],  # 0.25/0.5 < 0.75
        [_POISON] * 3,  # greedy
        [93, _POISON, _POISON],  # no drafts
        [64, _POISON, _POISON],  # the draft model gave token 0 no chance
        [_POISON] * 3,  # no request's
    ]
    _holds("output tokens", output, want)


@clause(_RANDOM, gpu="without draft probabilities the draft's is 1: target >= uniform decides")
def drafts_without_probabilities_count_as_certain() -> None:
    output = _rejection_random(
        _int32(2, 3),
        _int32(0, 2, 1),
        None,
        _float32([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.75, 0.25]),
        _float64(0.25, 0.375, 0.625),
        _bool(False, False),
    )
    # 0.5 >= 0.25, 0.25 < 0.375; 0.75 >= 0.625.
    _holds("output tokens", output, [[0, 61, _POISON], [1, 91, _POISON], [_POISON] * 3])


@clause(_RANDOM, gpu="a negative draft is padding: rejected, and no probability is looked up")
def a_padding_draft_is_rejected() -> None:
    output = _rejection_random(
        _int32(2),
        _int32(0, -1),
        None,
        _float32([0.5, 0.5], [0.25, 0.75]),
        _float64(0.25, 0.25),
        _bool(False),
    )
    # 0.5 >= 0.25; one element before the second row is 0.5, which a lookup would accept.
    _holds("output tokens", output, [[0, 61, _POISON], [_POISON] * 3])


@clause(_RANDOM, gpu="uniform draws are float64, and the ratio is compared with them as such")
def uniform_draws_are_compared_in_float64() -> None:
    output = _rejection_random(
        _int32(1, 2),
        _int32(0, 0),
        None,
        _float32([0.5, 0.5], [0.5, 0.5]),
        _float64(0.5 + 2**-40, 0.5 - 2**-40),
        _bool(False, False),
    )
    # 0.5 lies between the two draws; in float32 all three are equal.
    _holds("output tokens", output, [[60, _POISON, _POISON], [0, 91, _POISON], [_POISON] * 3])


@clause(_GREEDY, gpu="synthetic: uniform < the place's rate accepts, whatever the target says")
def synthetic_acceptance_decides_for_greedy_requests() -> None:
    output = _poisoned(4, 3)
    launches.rejection_greedy_sample(
        output[:3],
        _int32(2, 4, 5),
        _int32(3, 4, 5, 6, -1),
        _int64(1, 2, 5, 8, 9),
        _int32([90], [91], [92]),
        None,
        2,
        _float64(0.125, 0.25, 0.125, 0.5, 0.125),
        _float32(0.75, 0.5),
    )
    want = [
        [3, 4, 90],  # 0.125 < 0.75, 0.25 < 0.5
        [5, 8, _POISON],  # 0.125 < 0.75, but 0.5 is not below 0.5: the target's token
        [9, _POISON, _POISON],  # padding
        [_POISON] * 3,  # no request's
    ]
    _holds("output tokens", output, want)


@clause(_RANDOM, gpu="synthetic: uniform < the place's rate accepts, whatever the ratio is")
def synthetic_acceptance_decides_for_sampled_requests() -> None:
    output = _rejection_random(
        _int32(2, 4, 5),
        _int32(0, 0, 1, 1, -1),
        None,
        _float32([0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]),
        _float64(0.125, 0.25, 0.125, 0.5, 0.125),
        _bool(False, False, False),
        _float32(0.75, 0.5),
    )
    want = [
        [0, 0, 90],  # 0.125 < 0.75, 0.25 < 0.5, though the target has them at 0
        [1, 63, _POISON],  # 0.125 < 0.75, but 0.5 is not below 0.5: the recovered token
        [64, _POISON, _POISON],  # padding
        [_POISON] * 3,  # no request's
    ]
    _holds("output tokens", output, want)


def _expanded(values: Any, replace_from: int, replace_to: int) -> Any:
    """Expand values of requests with 2, 1, 0 and 3 tokens; two places more are nobody's."""
    output = _poisoned(8, dtype=str(values.dtype).rpartition(".")[2])
    launches.expand(output[1:7], values, _int32(2, 3, 3, 6), replace_from, replace_to)
    return output


@clause(_EXPAND, gpu="each request's value at each of its tokens, in place, in the value's dtype")
def temperatures_are_written_for_each_draft_token() -> None:
    output = _expanded(_float32(0.75, 1.5, 9.0, 0.25), 0, 1)
    # Two, one, none and three times.
    _holds("temperatures", output, [_POISON, 0.75, 0.75, 1.5, 0.25, 0.25, 0.25, _POISON])


@clause(_EXPAND, gpu="a value that equals replace_from is stored as replace_to")
def a_greedy_temperature_becomes_one() -> None:
    output = _expanded(_float32(0.0, 0.5, 9.0, 0.0), 0, 1)
    # The first and the last are 0, which is the temperature of greedy requests.
    _holds("temperatures", output, [_POISON, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, _POISON])


@clause(_EXPAND, gpu="each request's value at each of its tokens, in place, in the value's dtype")
def top_k_is_written_for_each_draft_token() -> None:
    output = _expanded(_int32(40, 0, 9, 7), 0, 0)
    # Two, one, none and three times; 0 is replaced by 0.
    _holds("top-k", output, [_POISON, 40, 40, 0, 7, 7, 7, _POISON])


def _recovered(drafts: Any, draft_probs: Any, target_probs: Any, noise: Any) -> Any:
    """Recover the tokens of two requests with 2 drafts and 1."""
    output = _poisoned(5)
    launches.sample_recovered_tokens(
        output[1:4], _int32(2, 3), drafts, draft_probs, target_probs, noise, max_spec_len=2
    )
    return output


@clause(_RECOVER, gpu="argmax of max(target - draft, 0) * inv_q, whose row is the request's")
def a_recovered_token_is_drawn_from_the_difference() -> None:
    output = _recovered(
        _int32(0, 1, 2),
        _float32([0.25, 0.25, 0.5, 0.0], [0.125, 0.5, 0.125, 0.25], [0.25, 0.25, 0.25, 0.25]),
        _float32([0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.25, 0.25]),
        _float32([1.0, 8.0, 8.0, 4.0], [16.0, 1.0, 16.0, 16.0]),
    )
    # 0.25, 0, 0, 0.5; 0.125, 0, 1, 0; 0, 0.25, 0, 0.
    _holds("recovered tokens", output, [_POISON, 3, 2, 1, _POISON])


@clause(_RECOVER, gpu="without draft probabilities: argmax of target * inv_q, the draft left out")
def a_recovered_token_is_never_the_certain_draft() -> None:
    output = _recovered(
        _int32(0, 2, 3),
        None,
        _float32([0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [0.25, 0.125, 0.125, 0.5]),
        _float32([16.0, 8.0, 8.0, 4.0], [1.0, 4.0, 1.0, 16.0]),
    )
    # -, 2, 1, 0.5; 4, 2, -, 1; 0.25, 0.5, 0.125, -.
    _holds("recovered tokens", output, [_POISON, 1, 0, 1, _POISON])


@clause(_RECOVER, gpu="with float64 inv_q the products are formed and compared in float64")
def float64_noise_decides_in_float64() -> None:
    output = _recovered(
        _int32(0, 0, 0),
        None,
        _float32([0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]),
        _float64([1.0, 2.0, 2.0 + 2**-40], [1.0, 2.0 + 2**-40, 2.0]),
    )
    # -, 0.5, just above; -, 0.5, 1; -, just above, 0.5.
    _holds("recovered tokens", output, [_POISON, 2, 2, 1, _POISON])


@clause(_MEMCPY, gpu="per entry, size bytes from one address to another")
def states_are_copied_by_address() -> None:
    import torch
    from vllm.v1.worker.mamba_utils import batch_memcpy

    source = torch.arange(1, 13, dtype=torch.uint8)
    target = torch.full((12,), 77, dtype=torch.uint8)
    origins, targets = source.data_ptr(), target.data_ptr()
    batch_memcpy(
        torch.tensor([origins, origins + 9, origins + 5], dtype=torch.uint64),
        torch.tensor([targets + 1, targets + 5, targets + 11], dtype=torch.uint64),
        _int32(3, 2, 0),
    )
    # Three bytes from 0 to 1, two from 9 to 5, none from 5.
    _holds("the target", target, [77, 1, 2, 3, 77, 10, 11, 77, 77, 77, 77, 77])
    _holds("the source", source, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])


@clause(_MEMCPY, gpu="a copy down onto its own source reads every byte before it is overwritten")
def a_state_may_move_down_over_itself() -> None:
    import torch
    from vllm.v1.worker.mamba_utils import batch_memcpy

    state = torch.arange(1, 9, dtype=torch.uint8)
    address = state.data_ptr()
    batch_memcpy(
        torch.tensor([address + 2], dtype=torch.uint64),
        torch.tensor([address + 1], dtype=torch.uint64),
        _int32(5),
    )
    # Bytes 2 to 6 are now at 1 to 5; the sixth keeps what it had.
    _holds("the state", state, [1, 3, 4, 5, 6, 7, 7, 8])


def _zeroed(spec: Any, blocks: list[int]) -> Any:
    """Zero blocks of a layer whose four pages of 8 floats are followed by 2 floats each."""
    import inspect
    from types import SimpleNamespace

    import torch
    from vllm.v1.worker.utils import AttentionGroup, KVBlockZeroer

    memory = torch.full((4, 10), float(_POISON))
    cache = memory.as_strided((4, 1, 2, 4), (10, 8, 4, 1))
    # Up to vLLM 0.28 the backend says which dimension counts the blocks; later it is the first.
    backend = SimpleNamespace(get_kv_cache_block_dim=lambda *_, **__: 0)
    group = AttentionGroup(
        backend=backend, layer_names=["layer"], kv_cache_spec=spec, kv_cache_group_id=0
    )
    options: dict[str, Any] = {
        "attn_groups_iter": [group],
        "kernel_block_sizes": [2],
        "static_forward_context": {"layer": SimpleNamespace(kv_cache=cache)},
        "runner_only_attn_layers": set(),
    }
    parameters = inspect.signature(KVBlockZeroer).parameters
    options |= {"num_blocks": 4} if "num_blocks" in parameters else {}  # from vLLM 0.30 on
    options |= {"cache_dtype": "auto"} if "cache_dtype" in parameters else {}  # up to vLLM 0.28
    zeroer = KVBlockZeroer(torch.device("cpu"), **options)
    zeroer.zero_block_ids(blocks)
    return memory


# A page is zeroed, and what lies between it and the next block is not.
_KEPT = [float(_POISON)] * 10
_CLEARED = [0.0] * 8 + [float(_POISON)] * 2


def _full_attention() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=2, dtype=torch.float32)


@clause(
    _ZERO,
    gpu="KVBlockZeroer clears the pages of the blocks it is given, and no other byte",
    versions=">=0.28",
)
def fresh_blocks_are_zeroed() -> None:
    _holds("the cache", _zeroed(_full_attention(), [2, 0]), [_CLEARED, _KEPT, _CLEARED, _KEPT])


@clause(
    _ZERO,
    gpu="KVBlockZeroer clears the blocks it is given, each up to where the next begins",
    versions="<0.28",
)
def fresh_blocks_are_zeroed_up_to_the_next() -> None:
    cleared = [0.0] * 10
    _holds("the cache", _zeroed(_full_attention(), [2, 0]), [cleared, _KEPT, cleared, _KEPT])


@clause(
    _ZERO,
    gpu="KVBlockZeroer takes every group whose spec is an AttentionSpec",
    versions=">=0.28",
)
def fresh_blocks_of_sliding_window_layers_are_zeroed() -> None:
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    spec = SlidingWindowSpec(
        block_size=2, num_kv_heads=1, head_size=2, dtype=torch.float32, sliding_window=4
    )
    _holds("the cache", _zeroed(spec, [1]), [_KEPT, _CLEARED, _KEPT, _KEPT])


def _mamba_context(states: list[Any], copies: tuple[Any, ...], tables: list[Any]) -> Any:
    """The context of Mamba layers with the same states, one in each group; blocks of 4 tokens.

    It keeps the addresses of states and tables, and not these themselves.
    """
    import inspect
    from types import SimpleNamespace

    import torch
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

    device = torch.device("cpu")
    spec = MambaSpec(
        block_size=4,
        shapes=tuple(tuple(state.shape[1:]) for state in states),
        dtypes=tuple(state.dtype for state in states),
        mamba_cache_mode="align",
        num_speculative_blocks=2,
    )
    names = [f"layer.{number}" for number in range(len(tables))]
    config = KVCacheConfig(
        num_blocks=states[0].shape[0],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([name], spec) for name in names],
    )
    # Up to vLLM 0.28 all Mamba layers have the same functions.
    per_layer = "copy_funcs" in inspect.signature(MambaSpecDecodeGPUContext.create).parameters
    functions: Any = {MambaAttentionBackendEnum.MAMBA2: copies} if per_layer else copies
    context = MambaSpecDecodeGPUContext.create(
        max_num_reqs=5,
        kv_cache_config=config,
        **({"copy_funcs": functions} if per_layer else {"num_state_types": len(copies)}),
        device=device,
        make_buffer=lambda *size, dtype: CpuGpuBuffer(
            *size, dtype=dtype, device=device, pin_memory=False
        ),
    )
    layers = {name: SimpleNamespace(kv_cache=states) for name in names}
    context.initialize_from_forward_context(config, layers, functions, tables)
    context.num_accepted_tokens_out.fill_(_POISON)
    return context


def _page(block: int) -> list[int]:
    """A page of the cache below: a window of 3 tokens and 2 dimensions, a temporal state of 2
    values, and what is nobody's."""
    return [*range(10 * block, 10 * block + 8), _POISON]


def _pages(changed: dict[int, list[int]]) -> list[list[int]]:
    """All pages, as they lie: two values are nobody's after the window, and two at the end.

    Up to vLLM 0.27 temporal states must lie at multiples of 8 bytes.
    """
    pages = [changed.get(block, _page(block)) for block in range(13)]
    return [[*page[:6], page[8], page[8], *page[6:8], page[8], page[8]] for page in pages]


@contextmanager
def _mamba(*tables: list[list[int]], dim_first: bool = False) -> Iterator[tuple[Any, Any]]:
    """A cache of 13 pages and its context; each group of layers has a table of its own.

    With ``dim_first`` a window lies dimension by dimension, and not token by token; values then
    have 2 bytes.
    """
    from unittest import mock

    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import (
        get_conv_copy_spec,
        get_temporal_copy_spec,
    )
    from vllm.v1.worker import mamba_utils

    dtype = torch.float16 if dim_first else torch.float32
    memory = torch.tensor(_pages({}), dtype=dtype)
    shape, strides = ((13, 2, 3), (12, 3, 1)) if dim_first else ((13, 3, 2), (12, 2, 1))
    states = [memory.as_strided(shape, strides), memory.as_strided((13, 2), (12, 1), 8)]
    copies = (get_conv_copy_spec, get_temporal_copy_spec)
    block_tables = [_int32(*table) for table in tables]
    with mock.patch.object(mamba_utils, "is_conv_state_dim_first", lambda: dim_first):
        yield _mamba_context(states, copies, block_tables), memory


def _precopied(context: Any, sources: list[int], targets: list[int], biases: list[int]) -> None:
    """Move the states of all requests but the last, which is nobody's."""
    context.run_fused_precopy(
        num_reqs=len(sources) - 1,
        state_idx_gpu=_int32(*targets),
        src_col_gpu=_int32(*sources),
        token_bias_gpu=_int32(*biases),
        idx_mapping=None,
    )


@clause(_PRECOPY, gpu="from column to column of its row; none from a column below 0, or its own")
def states_move_to_the_block_that_a_step_begins() -> None:
    rows = [[1, 2, 0], [3, 4, 0], [5, 6, 0], [3, 4, 0]]
    with _mamba(rows, [[7, 8, 0], [0, 0, 0], [0, 0, 0], [9, 10, 0]]) as (context, cache):
        # From column 0 to 1; a new request; one that stays; one that is no request.
        _precopied(context, [0, -1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0])
    # Block 1 is copied to 2, and in the other group 7 to 8.
    want = {2: [10, 11, 12, 13, 14, 15, 16, 17, _POISON]}
    want |= {8: [70, 71, 72, 73, 74, 75, 76, 77, _POISON]}
    _holds("the cache", cache, _pages(want))


@clause(_PRECOPY, gpu="accepted drafts: a window less its first tokens; a later temporal state")
def accepted_drafts_move_states_on() -> None:
    rows = [[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 10, 0]]
    with _mamba(rows) as (context, cache):
        _precopied(context, [0, 1, 0], [2, 0, 1], [1, 2, 0])
    # One draft: tokens 1 and 2 of block 1, then what was there; the temporal state of block 2.
    want = {3: [12, 13, 14, 15, 34, 35, 26, 27, _POISON]}
    # Two drafts: token 2 of block 5; the temporal state of block 7.
    want |= {4: [54, 55, 42, 43, 44, 45, 76, 77, _POISON]}
    _holds("the cache", cache, _pages(want))


@clause(_PRECOPY, gpu="windows that lie dimension by dimension move on in each dimension")
def windows_of_dimensions_move_on() -> None:
    with _mamba([[1, 2, 3], [4, 5, 6]], dim_first=True) as (context, cache):
        _precopied(context, [0, 0], [2, 1], [1, 0])
    # Tokens 1 and 2 of both dimensions of block 1; the temporal state of block 2.
    want = {3: [11, 12, 32, 14, 15, 35, 26, 27, _POISON]}
    _holds("the cache", cache, _pages(want))


@clause(_PRECOPY, gpu="a temporal state is copied whole, whatever its length, and nothing after it")
def a_long_state_is_moved_to_its_last_byte() -> None:
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec

    # 16 programs copy 1024 words of 8 bytes each at a time: here once, 1 word more, and 3 bytes.
    length = 16 * 1024 * 8 + 8 + 3
    memory = torch.full((3, length + 5), _POISON, dtype=torch.int8)
    memory[1] = torch.arange(length + 5) % 101
    table = _int32([1, 2], [0, 0])
    context = _mamba_context([memory[:, :length]], (get_temporal_copy_spec,), [table])
    _precopied(context, [0, 0], [1, 0], [0, 0])
    different = (memory[2, :length] != torch.arange(length) % 101).nonzero().flatten()
    _holds("places that differ from the source", different, [])
    _holds("what follows", memory[2, length:], [_POISON] * 5)


def _postprocessed(
    context: Any,
    accepted: list[int],
    columns: list[int],
    scheduled: list[int],
    computed: list[int],
    drafts: list[int],
) -> None:
    """Save the states of all requests but the last, which is nobody's."""
    context.run_fused_postprocess(
        num_reqs=len(accepted) - 1,
        num_accepted_tokens_gpu=_int32(*accepted),
        mamba_state_idx_gpu=_int32(*columns),
        num_scheduled_tokens_gpu=_int32(*scheduled),
        num_computed_tokens_gpu=_int32(*computed),
        num_draft_tokens_gpu=_int32(*drafts),
    )


@clause(_POSTPROCESS, gpu="the states after a filled block's last token go to that block's column")
def states_of_filled_blocks_are_saved() -> None:
    first = [[1, 2, 3, 0], [0, 4, 5, 6], [2, 3, 1, 0]]
    second = [[7, 8, 9, 0], [0, 10, 11, 12], [8, 9, 7, 0]]
    with _mamba(first, second) as (context, cache):
        # 2+3-2 = 3 tokens and an accepted draft fill block 0; 6+3-2 = 7 and two, one of which is
        # needed, block 1. The states are those of the next column.
        _postprocessed(context, [2, 3, 2], [1, 2, 1], [3, 3, 3], [2, 6, 2], [2, 2, 2])
    # A window moved on by the draft, and the temporal state of the column after it.
    want = {1: [22, 23, 24, 25, 14, 15, 36, 37, _POISON]}
    want |= {7: [82, 83, 84, 85, 74, 75, 96, 97, _POISON]}
    want |= {4: [52, 53, 54, 55, 44, 45, 66, 67, _POISON]}
    want |= {10: [112, 113, 114, 115, 104, 105, 126, 127, _POISON]}
    _holds("the cache", cache, _pages(want))
    # As they were accepted; the last three are no request's.
    accepted = context.num_accepted_tokens_out
    _holds("accepted tokens", accepted, [2, 3, _POISON, _POISON, _POISON])


@clause(_POSTPROCESS, gpu="in its own column a state moves on, and 1 token counts as accepted")
def a_state_moves_on_in_its_block() -> None:
    with _mamba([[1, 2, 0], [3, 4, 0]]) as (context, cache):
        # 2+2-1 = 3 tokens and an accepted draft fill block 0, which has the states.
        _postprocessed(context, [2, 2], [0, 0], [2, 2], [2, 2], [1, 1])
    # The window less its first token; the temporal state of the next column.
    _holds("the cache", cache, _pages({1: [12, 13, 14, 15, 14, 15, 26, 27, _POISON]}))
    _holds("accepted tokens", context.num_accepted_tokens_out, [1] + [_POISON] * 4)


@clause(_POSTPROCESS, gpu="so do windows that lie dimension by dimension")
def a_window_of_dimensions_moves_on_in_its_block() -> None:
    with _mamba([[1, 2, 0], [3, 4, 0]], dim_first=True) as (context, cache):
        _postprocessed(context, [2, 2], [0, 0], [2, 2], [2, 2], [1, 1])
    _holds("the cache", cache, _pages({1: [11, 12, 12, 14, 15, 15, 26, 27, _POISON]}))
    _holds("accepted tokens", context.num_accepted_tokens_out, [1] + [_POISON] * 4)


@clause(_POSTPROCESS, gpu="no block filled, or none to be moved: the cache stays as it is")
def states_that_are_in_place_stay() -> None:
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    with _mamba(rows) as (context, cache):
        # 3+1-0 = 4 tokens fill block 0, and their states are there; 4+3-2 = 5 and a draft fill
        # none; of a request whose tokens are discarded none is accepted: 3+1-0-1 = 3.
        _postprocessed(
            context, [1, 2, 0, 2], [0, 1, 0, 0], [1, 3, 1, 2], [3, 4, 3, 2], [0, 2, 0, 1]
        )
    _holds("the cache", cache, _pages({}))
    _holds("accepted tokens", context.num_accepted_tokens_out, [1, 2, 0, _POISON, _POISON])


def _looked_up(num_bits: int, ids: Any, packed: Any, scales: Any, hidden: int) -> Any:
    """Look tokens up in a packed embedding; what is returned was poisoned by the allocator."""
    from types import SimpleNamespace

    from vllm.model_executor.layers.quantization.compressed_tensors import (
        compressed_tensors_embedding,
    )

    method = compressed_tensors_embedding.CompressedTensorsEmbeddingWNA16Int(
        compressed_tensors_embedding.QuantizationArgs(num_bits=num_bits, strategy="channel")
    )
    layer = SimpleNamespace(hidden_size=hidden, weight_packed=packed, weight_scale=scales)
    return method.embedding(layer, ids)


# Eight values of 4 bits, from the lowest on: 0 to 7, and 8 to 15. As stored they are 8 too large.
_LOW, _HIGH = 0x76543210, 0xFEDCBA98 - 2**32


@clause(_GATHER, gpu="value = bits - half of their range, times the scale of the token's row")
def packed_tokens_are_looked_up() -> None:
    embedded = _looked_up(
        4,
        _int64(2, 0, 2),
        _int32([_LOW, _HIGH], [_POISON, _POISON], [_HIGH, _LOW]),
        _float32([0.5], [float(_POISON)], [2.0]),
        16,
    )
    last = [0, 2, 4, 6, 8, 10, 12, 14, -16, -14, -12, -10, -8, -6, -4, -2]
    first = [-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    _holds("embeddings", embedded, [last, first, last])


@clause(_GATHER, gpu="with several scales in a row each is that of its group of values")
def groups_of_values_have_scales_of_their_own() -> None:
    embedded = _looked_up(
        4,
        _int32([1], [0]),
        _int32([_POISON, _POISON], [_LOW, _HIGH]),
        _float32([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 0.5, 4.0]),
        16,
    )
    require(embedded.shape == (2, 1, 16), f"the shape is {tuple(embedded.shape)}")
    # -8 to -5, -4 to -1 twice, 0 to 3 half, 4 to 7 four times.
    want = [-8, -7, -6, -5, -8, -6, -4, -2, 0, 0.5, 1, 1.5, 16, 20, 24, 28]
    _holds("the embedding", embedded[0, 0], want)


@clause(_GATHER, gpu="a word has 32 // bits values, and what is left of it belongs to none")
def values_of_three_bits_leave_two_unused() -> None:
    # 0 to 7, 0, 7, and two bits that are set.
    word = int("11" + "111" + "000" + "111110101100011010001000", 2) - 2**32
    embedded = _looked_up(3, _int64(0), _int32([word]), _float32([1.0]), 10)
    _holds("the embedding", embedded, [[-4, -3, -2, -1, 0, 1, 2, 3, -4, 3]])


@clause(_GATHER, gpu="each block of 1024 values is written, the last as far as the row goes")
def an_embedding_is_written_to_its_last_value() -> None:
    import torch

    packed = torch.full((2, 258), 0, dtype=torch.int32)
    # Bytes 1, 0, 0, 255 at values 1020 to 1023, and 2, 3, 4, 5 at 1028 to 1031.
    packed[1, 255], packed[1, 257] = 0xFF000001 - 2**32, 0x05040302
    embedded = _looked_up(8, _int64(1, 0), packed, _float32([1.0], [0.5]), 1032)
    require(embedded.shape == (2, 1032), f"the shape is {tuple(embedded.shape)}")
    want = [-64.0] * 1020 + [-63.5, -64, -64, 63.5] + [-64.0] * 4 + [-63, -62.5, -62, -61.5]
    _holds("the embedding", embedded[0], want)
    _holds("the embedding of zeros", embedded[1], [-128.0] * 1032)


@clause(_GATHER, gpu="the product is formed in float32, and rounded once, to the scales' dtype")
def embeddings_are_rounded_once() -> None:
    import torch

    # 127 and -127 times 1 + 2**-7 are 127.9921875 and its negative; bfloat16 has 127.5 and 128.
    scales = torch.tensor([[1.0 + 2**-7]], dtype=torch.bfloat16)
    embedded = _looked_up(8, _int64(0), _int32([0x800080FF + 0x00010000 - 2**32]), scales, 4)
    require(embedded.dtype == torch.bfloat16, f"the dtype is {embedded.dtype}")
    # 255, 128, 1 and 128, less 128.
    _holds("the embedding", embedded, [[128.0, 0.0, -128.0, 0.0]])


@clause(_GATHER, gpu="no tokens have no embeddings")
def no_tokens_are_looked_up() -> None:
    embedded = _looked_up(4, _int64(), _int32([_LOW]), _float32([1.0]), 8)
    require(embedded.shape == (0, 8), f"the shape is {tuple(embedded.shape)}")


@clause(_CENTROIDS, gpu="drafts are the top tokens of the centroids' choice, computed at each call")
def drafts_of_centroids_are_computed_anew() -> None:
    from types import SimpleNamespace

    import torch
    from vllm.model_executor.models.gemma4_mtp import Gemma4MTPMaskedEmbedder
    from vllm.v1.spec_decode.gemma4 import Gemma4Proposer

    device = the_device()
    with device:
        embedder = Gemma4MTPMaskedEmbedder(2, 4, 2, 1)
        head = _float32([1, 0], [8, 8], [2, 0], [0, 1]).to(device)
        embedder.centroids.weight.data = _float32([1, 0], [0, 1]).to(device)
        # Tokens 0 and 2 belong to the first centroid.
        embedder.token_ordering.copy_(_int64(0, 2, 1, 3))

    def logits(hidden: Any) -> Any:
        # Token 2 is suppressed here, as a generation config has it, and nowhere else.
        return embedder(hidden, head).index_fill_(1, _int64(2).to(device), -torch.inf)

    proposer = object.__new__(Gemma4Proposer)
    proposer.device, proposer.dtype = device, torch.float32
    proposer.use_local_argmax_reduction = proposer.use_heterogeneous_vocab = False
    proposer._centroids_sizes = []
    proposer._centroids_graphs, proposer._centroids_inputs, proposer._centroids_outputs = {}, {}, {}
    proposer.model = SimpleNamespace(
        masked_embedding=embedder,
        _get_full_lm_head_weight=lambda: head,
        get_top_tokens=lambda hidden: embedder.get_top_tokens(hidden, head),
        compute_logits=logits,
    )
    with torch.no_grad():
        proposer._setup_centroids_cuda_graphs()
        three = proposer._greedy_sample(_float32([2, 1], [1, 2], [2, -9]).to(device))
        one = proposer._greedy_sample(_float32([-1, -2]).to(device))
    # 2 and 4 for tokens 0 and 2; 24 and 2 for 1 and 3; 2 and 4 again.
    _holds("three drafts", three, [2, 1, 2])
    # The first centroid is the greater: -1 and -2 for tokens 0 and 2.
    _holds("another draft", one, [0])


CLAUSES = clauses_of(globals())
