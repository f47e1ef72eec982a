"""The recurrence of Mamba 1, over whole prompts and token by token.

Each of ``dim`` channels has a state ``h`` of ``d_state`` numbers. A token with the input ``u``, the
step ``delta`` and the vectors ``B`` and ``C`` moves it on and reads it::

    h = exp(delta * A) * h + delta * B * u
    y = C . h + D * u

Everything is computed in float32, and rounded to the dtype of its tensor once, at the end.
"""

from __future__ import annotations

from itertools import pairwise

import torch


def selective_scan(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D_: torch.Tensor | None,
    z_: torch.Tensor | None,
    delta_bias_: torch.Tensor | None,
    delta_softplus: bool,
    query_start_loc: torch.Tensor | None,
    cache_indices: torch.Tensor | None,
    has_initial_state: torch.Tensor | None,
    ssm_states: torch.Tensor,
    null_block_id: int,
    block_size: int = 1024,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    cu_chunk_seqlen: torch.Tensor | None = None,
    last_chunk_indices: torch.Tensor | None = None,
) -> None:
    """Scan requests that lie end to end; write over ``z_``, or over ``delta`` where that is None.

    ``u``, ``delta`` and ``z_`` (a gate: outputs are multiplied by its SiLU) are ``[dim, tokens]``,
    ``B`` and ``C`` ``[groups, d_state, tokens]``, all of the model's dtype. ``A`` is
    ``[dim, d_state]``, ``D_`` and ``delta_bias_`` are ``[dim]``, float32. Request ``i`` has the
    tokens from ``query_start_loc[i]`` to ``query_start_loc[i + 1]`` (``[requests + 1]`` int32) and
    the state ``ssm_states[cache_indices[i]]`` (``[slots, dim, d_state]``; ``[requests]`` int32). It
    starts from that where ``has_initial_state`` (``[requests]`` bool) says so, else from zeros, and
    leaves it moved on by its tokens. A request in the slot ``null_block_id`` is left alone.
    ``block_size``, ``cu_chunk_seqlen`` and ``last_chunk_indices`` divide the GPU's work and have no
    effect here.

    Raises:
        NotImplementedError: requests are padded to one length, or states are to be kept at the end
            of each block.
    """
    if query_start_loc is None:
        raise NotImplementedError("requests that do not lie end to end")
    blocks = (block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx)
    if any(index is not None for index in blocks):
        raise NotImplementedError("states at the end of each block")
    out = delta if z_ is None else z_
    step = _step(delta, delta_bias_, delta_softplus, channels=0)
    for request, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        slot = request if cache_indices is None else int(cache_indices[request])
        if start == end or (cache_indices is not None and slot == null_block_id):
            continue
        tokens = slice(start, end)
        state = ssm_states[slot].float()
        if has_initial_state is None or not has_initial_state[request]:
            state = torch.zeros_like(state)
        inputs = u[:, tokens].float()
        y, state = _scan(
            state,
            inputs,
            step[:, tokens],
            A.float(),
            B[..., tokens].float(),
            C[..., tokens].float(),
        )
        if D_ is not None:
            y += D_.float()[:, None] * inputs
        out[:, tokens] = _gated(y, None if z_ is None else z_[:, tokens]).to(out.dtype)
        ssm_states[slot] = state.to(ssm_states.dtype)


def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    dt_softplus: bool,
    state_batch_indices: torch.Tensor | None,
    dst_state_batch_indices: torch.Tensor | None,
    null_block_id: int,
    out: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> None:
    """Move each request on by one token, and write what is put out into ``out``.

    ``x``, ``dt``, ``z`` (as in `selective_scan`) and ``out`` are ``[requests, dim]``, ``B`` and
    ``C`` ``[requests, d_state]``, ``A`` is ``[dim, d_state]``, ``D`` and ``dt_bias`` are ``[dim]``.
    Request ``i`` has the state ``state[state_batch_indices[i]]`` (``[slots, dim, d_state]``;
    ``[requests]`` int32), and leaves it in the slot that ``dst_state_batch_indices`` names. One
    whose slot is ``null_block_id`` starts from zeros and leaves no state.

    Raises:
        NotImplementedError: requests have several tokens, as drafts are.
    """
    if num_accepted_tokens is not None or cu_seqlens is not None:
        raise NotImplementedError("several tokens of a request at once")
    slots, targets, kept = _slots(
        len(x), state_batch_indices, dst_state_batch_indices, null_block_id
    )
    before = state[slots].float() * kept[:, None, None]
    step = _step(dt, dt_bias, dt_softplus, channels=-1)
    inputs = x.float()
    after, y = _move(before, inputs, step, A.float(), B.float(), C.float())
    if D is not None:
        y += D.float() * inputs
    out.copy_(_gated(y, z))
    state[targets[kept]] = after[kept].to(state.dtype)


def _slots(
    requests: int, sources: torch.Tensor | None, targets: torch.Tensor | None, null_block_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each request's slot before and after, int64, and whether it has one; ``[requests]`` each."""
    if sources is None:
        numbers = torch.arange(requests)
        return numbers, numbers, torch.ones(requests, dtype=torch.bool)
    before = sources.flatten()[:requests].long()
    after = before if targets is None else targets.flatten()[:requests].long()
    return before, after, before != null_block_id


def _step(
    delta: torch.Tensor, bias: torch.Tensor | None, softplus: bool, channels: int
) -> torch.Tensor:
    """The steps in float32, of the shape of ``delta``; ``channels`` is its dimension ``dim``."""
    step = delta.float()
    if bias is not None:
        step = step + (bias.float() if channels == -1 else bias.float()[:, None])
    return torch.nn.functional.softplus(step) if softplus else step


def _scan(
    state: torch.Tensor,
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move one request on by its tokens.

    All float32: states and ``A`` ``[dim, d_state]``, ``u`` and ``step`` ``[dim, tokens]``, ``B``
    and ``C`` ``[groups, d_state, tokens]``. Returns what is put out, ``[dim, tokens]``, and the
    state after it.
    """
    groups, d_state, tokens = B.shape
    shape = state.shape
    state, A = (tensor.reshape(groups, -1, d_state) for tensor in (state, A))
    u, step = (tensor.reshape(groups, -1, tokens) for tensor in (u, step))
    y = torch.empty_like(u)
    for token in range(tokens):
        state, y[..., token] = _move(
            state, u[..., token], step[..., token], A, B[..., token], C[..., token]
        )
    return y.reshape(-1, tokens), state.reshape(shape)


def _move(
    state: torch.Tensor,
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move states on by one token; return them, and what they then put out, without ``D``.

    All float32: ``state`` is ``[groups or requests, dim, d_state]``, ``A`` the same or without the
    first dimension, ``u`` and ``step`` are ``[groups or requests, dim]``, ``B`` and ``C``
    ``[groups or requests, d_state]``.
    """
    decay = torch.exp(step[..., None] * A)
    state = decay * state + (step * u)[..., None] * B[..., None, :]
    return state, (state * C[..., None, :]).sum(-1)


def _gated(y: torch.Tensor, z: torch.Tensor | None) -> torch.Tensor:
    return y if z is None else y * torch.nn.functional.silu(z.float())
