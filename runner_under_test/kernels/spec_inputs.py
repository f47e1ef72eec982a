"""Kernels that prepare the inputs of a draft model from the target model's results.

Parameter names are those of the Triton kernels, since launches bind by name. Outputs are written
in place in their own dtype; entries that the GPU kernel does not reach keep their value.
"""

from __future__ import annotations

import torch

from .layout import elements, ragged, spans


def eagle_prepare_inputs_padded(
    *,
    cu_num_draft_tokens_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    query_start_loc_gpu_ptr: torch.Tensor,
    token_indices_to_sample_ptr: torch.Tensor,
    num_rejected_tokens_gpu_ptr: torch.Tensor,
    num_reqs: int,
) -> None:
    """Find the token that each request drafts from, and how many of its drafts were rejected.

    Of ``cu_num_draft_tokens_ptr`` (inclusive running count), ``valid_sampled_tokens_count_ptr``
    (accepted tokens plus one) and both outputs the first ``num_reqs`` entries count, of
    ``query_start_loc_gpu_ptr`` the first ``num_reqs + 1``. A request without drafts has no
    rejected ones, whatever its valid count says.
    """
    _, drafted = spans(elements(cu_num_draft_tokens_ptr)[:num_reqs])
    valid = elements(valid_sampled_tokens_count_ptr)[:num_reqs]
    rejected = torch.where(drafted > 0, drafted + 1 - valid, 0)
    last_token = elements(query_start_loc_gpu_ptr)[1 : num_reqs + 1] - 1
    elements(token_indices_to_sample_ptr)[:num_reqs] = last_token - rejected
    elements(num_rejected_tokens_gpu_ptr)[:num_reqs] = rejected


def eagle_prepare_next_token_padded(
    *,
    sampled_token_ids_ptr: torch.Tensor,
    discard_request_mask_ptr: torch.Tensor,
    backup_next_token_ids_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    vocab_size: int,
    num_sampled_tokens_per_req: int,
    num_reqs: int,
    stride_sampled_token_ids: int,
    BLOCK_SIZE_TOKENS: int = 1,
) -> None:
    """Take the last valid sampled token of each request, and count its valid ones.

    Row ``r`` of ``sampled_token_ids_ptr`` starts ``r * stride_sampled_token_ids`` elements in and
    has ``num_sampled_tokens_per_req`` of them; -1 and ids from ``vocab_size`` on are not valid.
    A request with no valid token, or with a true ``discard_request_mask_ptr`` (bool, and then
    the count is 0), gets its entry of ``backup_next_token_ids_ptr``. The first ``num_reqs``
    entries of both outputs are written. ``BLOCK_SIZE_TOKENS`` is a tile size of the GPU launch
    and has no effect.
    """
    device = sampled_token_ids_ptr.device
    column = torch.arange(num_sampled_tokens_per_req, device=device)
    row = torch.arange(num_reqs, device=device).unsqueeze(1) * stride_sampled_token_ids
    sampled = elements(sampled_token_ids_ptr)[row + column]
    valid = (sampled != -1) & (sampled < vocab_size)
    valid &= ~elements(discard_request_mask_ptr)[:num_reqs].bool().unsqueeze(1)
    count = valid.sum(dim=1)
    token = elements(backup_next_token_ids_ptr)[:num_reqs]
    if num_sampled_tokens_per_req > 0:
        last_valid = torch.where(valid, column, -1).amax(dim=1)
        found = sampled.gather(1, last_valid.clamp(min=0).unsqueeze(1)).squeeze(1)
        token = torch.where(last_valid >= 0, found, token)
    elements(next_token_ids_ptr)[:num_reqs] = token
    elements(valid_sampled_tokens_count_ptr)[:num_reqs] = count


def copy_and_expand_eagle_inputs(
    *,
    target_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_positions_ptr: torch.Tensor,
    out_is_rejected_token_mask_ptr: torch.Tensor,
    out_is_masked_token_mask_ptr: torch.Tensor,
    out_new_token_indices_ptr: torch.Tensor,
    out_hidden_state_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    query_end_loc_ptr: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    total_input_tokens: int,
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
    BLOCK_SIZE_TOKENS: int = 1,
) -> None:
    """Lay out the draft model's batch: each request's tokens, its new tokens, its rejected ones.

    Request ``r`` has the input tokens from ``query_start_loc_ptr[r]`` to before
    ``query_start_loc_ptr[r + 1]`` (``[num_reqs + 1]``), of which those after
    ``query_end_loc_ptr[r]`` (``[num_reqs]``, inclusive) were rejected. Its part of the output has,
    in order: the valid input tokens (without the first one if ``shift_input_ids``); the entry of
    ``next_token_ids_ptr``; ``num_padding_slots_per_request - 1`` times
    ``parallel_drafting_token_id``, marked in ``out_is_masked_token_mask_ptr``; and
    ``padding_token_id`` at position 0 for each rejected token, marked in
    ``out_is_rejected_token_mask_ptr``. Other positions count up from the request's first entry of
    ``target_positions_ptr``. The parts follow each other without gaps.

    ``out_new_token_indices_ptr`` (``[num_reqs * num_padding_slots_per_request]``) gets the output
    places of the new tokens. With ``shift_input_ids``, ``out_hidden_state_mapping_ptr``
    (``[num_tokens]``) gets the output place of every input token; without, it is left alone.
    Inputs are read up to ``total_input_tokens``. ``BLOCK_SIZE_TOKENS`` is a tile size of the GPU
    launch and has no effect.
    """
    num_reqs = query_end_loc_ptr.shape[0]
    slots = num_padding_slots_per_request
    boundaries = elements(query_start_loc_ptr)[: num_reqs + 1].to(torch.int64)
    start, following = boundaries[:-1], boundaries[1:]
    end = elements(query_end_loc_ptr).to(torch.int64)
    number = torch.arange(num_reqs, device=start.device)

    shift = 1 if shift_input_ids else 0
    num_valid = end - start + 1 - shift
    num_rejected = following - end - 1
    out_start = start + number * (slots - shift)

    request, place = ragged((num_valid + slots + num_rejected).clamp(min=0))
    out = out_start[request] + place
    # 0 at the token sampled by the target, then the parallel drafting slots, then rejected ones.
    after_valid = place - num_valid[request]
    rejected = after_valid >= slots
    drafting = (after_valid > 0) & ~rejected
    new = (after_valid >= 0) & ~rejected

    last_input = total_input_tokens - 1
    source = (start[request] + shift + place).clamp(max=last_input)
    token = elements(target_token_ids_ptr)[source]
    token = torch.where(after_valid == 0, elements(next_token_ids_ptr)[request], token)
    token = token.masked_fill(drafting, parallel_drafting_token_id)
    token = token.masked_fill(rejected, padding_token_id)
    # A request without input has no first position; the clamp only keeps the read inside.
    first_position = elements(target_positions_ptr)[start.clamp(max=last_input)]
    position = (first_position[request] + place).masked_fill(rejected, 0)

    _store(out_input_ids_ptr, out, token)
    _store(out_positions_ptr, out, position)
    _store(out_is_rejected_token_mask_ptr, out, rejected)
    _store(out_is_masked_token_mask_ptr, out, drafting)
    _store(out_new_token_indices_ptr, (request * slots + after_valid)[new], out[new])
    if shift_input_ids:
        request, place = ragged(following - start)
        _store(out_hidden_state_mapping_ptr, start[request] + place, out_start[request] + place)


def copy_and_expand_dflash_inputs(
    *,
    next_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_token_indices_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    query_start_loc_ptr: torch.Tensor,
    num_rejected_tokens_ptr: torch.Tensor | int | None,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_tokens: int,
    total_input_tokens: int,
    BLOCK_SIZE: int = 1,
    HAS_NUM_REJECTED: bool = False,
) -> None:
    """Lay out the context and the queries of a DFlash draft pass.

    Context: input token ``t`` of request ``r`` (``query_start_loc_ptr``, ``[num_reqs + 1]``) keeps
    its place, its position goes to ``out_context_positions_ptr[t]`` and its KV-cache slot to
    ``out_context_slot_mapping_ptr[t]``. Queries: each request has ``num_query_per_req`` of them,
    at the positions after its last valid token (with ``HAS_NUM_REJECTED``, the last
    ``num_rejected_tokens_ptr[r]`` input tokens are not valid); the first query is its entry of
    ``next_token_ids_ptr``, the others ``parallel_drafting_token_id``. Their ids, positions and
    slots go to ``out_input_ids_ptr``, ``out_query_positions_ptr`` and
    ``out_query_slot_mapping_ptr`` at ``r * num_query_per_req`` and on. Where the others stand is
    listed in ``out_token_indices_ptr`` (``num_speculative_tokens`` entries per request).

    Slots come from ``block_table_ptr`` (rows of ``block_table_stride`` elements, blocks of
    ``block_size`` tokens); positions past the end of a row use its last entry. ``BLOCK_SIZE`` is a
    tile size of the GPU launch and has no effect.
    """
    boundaries = elements(query_start_loc_ptr).to(torch.int64)
    start, following = boundaries[:-1], boundaries[1:]
    num_reqs = start.shape[0]
    if num_reqs == 0:
        return
    device = start.device
    positions = elements(target_positions_ptr)
    table = elements(block_table_ptr)

    def slots(request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        entry = (position // block_size).clamp(max=block_table_stride - 1)
        block = table[request * block_table_stride + entry].to(torch.int64)
        return block * block_size + position % block_size

    request, place = ragged(following - start)
    out = start[request] + place
    position = positions[out.clamp(max=total_input_tokens - 1)]
    _store(out_context_positions_ptr, out, position)
    _store(out_context_slot_mapping_ptr, out, slots(request, position))

    valid_end = following
    if HAS_NUM_REJECTED:
        assert isinstance(num_rejected_tokens_ptr, torch.Tensor)
        valid_end = following - elements(num_rejected_tokens_ptr)[:num_reqs]
    number = torch.arange(num_reqs, device=device).unsqueeze(1)
    query = torch.arange(num_query_per_req, device=device)
    # A first request without a valid token has no last position; stay inside the tensor.
    last_position = positions[(valid_end - 1).clamp(min=0)].unsqueeze(1)
    position = last_position + 1 + query
    token = torch.where(
        query == 0,
        elements(next_token_ids_ptr)[:num_reqs].unsqueeze(1),
        parallel_drafting_token_id,
    )
    out = number * num_query_per_req + query
    _store(out_query_positions_ptr, out, position)
    _store(out_query_slot_mapping_ptr, out, slots(number, position))
    _store(out_input_ids_ptr, out, token)
    _store(out_token_indices_ptr, number * num_speculative_tokens + query[1:] - 1, out[:, 1:])


def _store(target: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` at the element numbers ``index``, in the dtype of ``target``."""
    flat = elements(target)
    flat[index] = value.to(flat.dtype)
