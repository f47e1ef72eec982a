"""Kernels of the rejection sampler: which draft tokens stay, and what replaces a rejected one.

Draft tokens of all requests lie one after another; ``cu_num_draft_tokens_ptr`` (``[num_reqs]``)
is their inclusive running count. Parameter names are those of the Triton kernels, since launches
bind by name. Outputs are written in place in their own dtype; entries that the GPU kernel does
not reach keep their value.
"""

from __future__ import annotations

import torch

from .layout import elements, ragged, spans


def rejection_greedy_sample(
    *,
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    max_spec_len: int,
    uniform_probs_ptr: torch.Tensor | None = None,
    synthetic_conditional_rates_ptr: torch.Tensor | None = None,
    SYNTHETIC_MODE: bool = False,
) -> None:
    """Accept draft tokens of greedy requests as long as they are the target's argmax.

    ``output_token_ids_ptr`` is ``[num_reqs, max_spec_len + 1]``: up to and with the first
    rejection it gets the target's token; if nothing was rejected, the request's entry of
    ``bonus_token_ids_ptr`` (``[num_reqs]`` or ``[num_reqs, 1]``) comes after the draft tokens.
    Later entries, and rows of requests whose ``is_greedy_ptr`` (``[num_reqs]`` bool, None for
    all greedy) is false, stay as they are. ``draft_token_ids_ptr`` and ``target_argmax_ptr`` are
    ``[num_tokens]``.

    In synthetic mode the token at draft place ``p`` is accepted if its entry of
    ``uniform_probs_ptr`` (``[num_tokens]``, float64) is below entry ``p`` of
    ``synthetic_conditional_rates_ptr`` (float32), whatever the target says; negative draft
    tokens are padding and never accepted.
    """
    starts, lengths = spans(cu_num_draft_tokens_ptr)
    request, place = ragged(lengths)
    draft = elements(draft_token_ids_ptr)[: request.shape[0]]
    # The kernel narrows the argmax, which torch gives as int64, to int32.
    target = elements(target_argmax_ptr)[: request.shape[0]].to(torch.int32)
    if SYNTHETIC_MODE:
        uniform, rates = _synthetic_inputs(uniform_probs_ptr, synthetic_conditional_rates_ptr)
        accepted = (uniform[: request.shape[0]] < rates[place]) & (draft >= 0)
        token = torch.where(accepted, draft, target)
    else:
        accepted, token = draft == target, target
    _store_accepted(
        output_token_ids_ptr,
        bonus_token_ids_ptr,
        token,
        accepted,
        starts=starts,
        lengths=lengths,
        request=request,
        place=place,
        active=None if is_greedy_ptr is None else elements(is_greedy_ptr).bool(),
        row_size=max_spec_len + 1,
    )


def rejection_random_sample(
    *,
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    recovered_token_ids_ptr: torch.Tensor,
    uniform_probs_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor,
    max_spec_len: int,
    vocab_size: int,
    synthetic_conditional_rates_ptr: torch.Tensor | None = None,
    NO_DRAFT_PROBS: bool = False,
    SYNTHETIC_MODE: bool = False,
) -> None:
    """Accept draft tokens of sampled requests by the rule of speculative sampling.

    A draft token stays if ``target / draft >= uniform`` for its probabilities in
    ``target_probs_ptr`` and ``draft_probs_ptr`` (both ``[num_tokens, vocab_size]`` float32; with
    ``NO_DRAFT_PROBS`` the draft was certain of it) and its ``uniform_probs_ptr``
    (``[num_tokens]``, float64 and compared as such). A draft probability that is zero or NaN, a
    NaN target probability, or a negative (padding) draft token rejects. In synthetic mode
    ``uniform < synthetic_conditional_rates_ptr[place]`` decides instead. The first rejected
    token gives way to its entry of ``recovered_token_ids_ptr`` (``[num_tokens]``).

    Output and bonus tokens are as for the greedy kernel; here the rows with a true
    ``is_greedy_ptr`` (``[num_reqs]`` bool) stay as they are.
    """
    starts, lengths = spans(cu_num_draft_tokens_ptr)
    request, place = ragged(lengths)
    num_tokens = request.shape[0]
    active = ~elements(is_greedy_ptr).bool()
    draft = elements(draft_token_ids_ptr)[:num_tokens]
    uniform = elements(uniform_probs_ptr)[:num_tokens]
    if SYNTHETIC_MODE:
        _, rates = _synthetic_inputs(uniform, synthetic_conditional_rates_ptr)
        accepted = (uniform < rates[place]) & (draft >= 0)
    else:
        # Greedy rows are never looked up on the GPU either: their drafts may be anything.
        looked_up = (draft >= 0) & active[request]
        token_row = torch.arange(num_tokens, device=draft.device) * vocab_size
        at = torch.where(looked_up, token_row + draft, 0) if num_tokens else token_row
        ratio = elements(target_probs_ptr)[at]
        accepted = looked_up
        if not NO_DRAFT_PROBS:
            assert draft_probs_ptr is not None
            draft_prob = elements(draft_probs_ptr)[at]
            accepted = accepted & (draft_prob > 0)
            ratio = ratio / draft_prob
        accepted = accepted & (ratio >= uniform)
    token = torch.where(accepted, draft, elements(recovered_token_ids_ptr)[:num_tokens])
    _store_accepted(
        output_token_ids_ptr,
        bonus_token_ids_ptr,
        token,
        accepted,
        starts=starts,
        lengths=lengths,
        request=request,
        place=place,
        active=active,
        row_size=max_spec_len + 1,
    )


def _synthetic_inputs(
    uniform: torch.Tensor | None, rates: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if uniform is None or rates is None:
        raise TypeError(
            "synthetic mode needs uniform_probs_ptr and synthetic_conditional_rates_ptr"
        )
    return elements(uniform), elements(rates)


def _store_accepted(
    output: torch.Tensor,
    bonus: torch.Tensor,
    token: torch.Tensor,
    accepted: torch.Tensor,
    *,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    request: torch.Tensor,
    place: torch.Tensor,
    active: torch.Tensor | None,
    row_size: int,
) -> None:
    """Store ``token`` up to and with the first rejection of each request, else also its bonus.

    ``token`` and ``accepted`` are ``[num_tokens]``; ``active`` (``[num_reqs]`` bool, None for
    all) says which rows of ``output`` may be written at all.
    """
    rejections = torch.zeros(token.shape[0] + 1, dtype=torch.int64, device=token.device)
    torch.cumsum(~accepted, 0, out=rejections[1:])
    before_request = rejections[starts]
    reached = rejections[:-1] == before_request[request]
    complete = rejections[starts + lengths] == before_request
    if active is not None:
        active = active[: starts.shape[0]]
        reached = reached & active[request]
        complete = complete & active

    flat = elements(output)
    flat[(request * row_size + place)[reached]] = token[reached].to(flat.dtype)
    row = complete.nonzero().squeeze(1)
    flat[row * row_size + lengths[row]] = elements(bonus)[row].to(flat.dtype)


def expand(
    *,
    output_ptr: torch.Tensor,
    input_ptr: torch.Tensor,
    cu_num_tokens_ptr: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int,
) -> None:
    """Repeat one value per request for each of its tokens.

    ``input_ptr`` is ``[num_reqs]``, ``output_ptr`` ``[num_tokens]``, of any dtype (temperatures
    and top-p are float32, top-k is int32), ``cu_num_tokens_ptr`` ``[num_reqs]`` the inclusive
    running count of tokens. Values equal to ``replace_from`` become ``replace_to``. At most
    ``MAX_NUM_TOKENS`` tokens of a request are written.
    """
    starts, lengths = spans(cu_num_tokens_ptr)
    request, place = ragged(lengths.clamp(min=0, max=MAX_NUM_TOKENS))
    value = elements(input_ptr)[: starts.shape[0]]
    value = value.masked_fill(value == replace_from, replace_to)
    output = elements(output_ptr)
    output[starts[request] + place] = value[request].to(output.dtype)


def sample_recovered_tokens(
    *,
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    inv_q_ptr: torch.Tensor,
    vocab_size: int,
    NO_DRAFT_PROBS: bool = False,
    BLOCK_SIZE: int = 8192,
    USE_FP64_GUMBEL: bool = False,
) -> None:
    """Draw, for every draft token, the token that replaces it should it be rejected.

    The draw is the argmax over the vocabulary of ``weight * inv_q``. The weight is
    ``max(target - draft, 0)`` of the probabilities (``[num_tokens, vocab_size]`` float32), or
    with ``NO_DRAFT_PROBS`` the target probability, zero at the draft token. ``inv_q_ptr`` is
    ``[num_reqs, vocab_size]``, float32 or float64; the product is formed in its precision.
    ``output_token_ids_ptr`` is ``[num_tokens]``.

    The lowest index wins a tie. A NaN score (weight 0 times an infinite ``inv_q``) never wins;
    if every score is NaN the result is 0. ``BLOCK_SIZE`` and ``USE_FP64_GUMBEL`` choose the tile
    and the accumulator of the GPU kernel and have no effect: the dtype of ``inv_q_ptr`` decides.
    """
    _, lengths = spans(cu_num_draft_tokens_ptr)
    request, _ = ragged(lengths)
    num_tokens = request.shape[0]
    if num_tokens == 0:
        return
    target = _rows(target_probs_ptr, num_tokens, vocab_size)
    score = _rows(inv_q_ptr, lengths.shape[0], vocab_size)[request]
    if NO_DRAFT_PROBS:
        draft = elements(draft_token_ids_ptr)[:num_tokens].to(torch.int64)
        masked = ((draft >= 0) & (draft < vocab_size)).nonzero().squeeze(1)
        at_draft = score[masked, draft[masked]] * 0.0
        score.mul_(target)
        score[masked, draft[masked]] = at_draft
    else:
        assert draft_probs_ptr is not None
        weight = target - _rows(draft_probs_ptr, num_tokens, vocab_size)
        # fmax, not clamp: the kernel's maximum of NaN and 0 is 0.
        score.mul_(torch.fmax(weight, weight.new_zeros(())))
    infinity = float("inf")
    score.nan_to_num_(nan=-infinity, posinf=infinity, neginf=-infinity)
    elements(output_token_ids_ptr)[:num_tokens] = score.argmax(dim=1)


def _rows(tensor: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """View the first ``count * width`` elements behind a pointer as ``[count, width]``."""
    return elements(tensor)[: count * width].view(count, width)
