"""Kernels of the rejection sampler."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.kernels.example import Example, Value
from conformance.kernels.generators.generator import Draw, Generator, boundaries

_PLACEHOLDER = -1


def _drafts(draw: Draw, least: int = 0) -> tuple[list[int], int]:
    """How many drafts each request has, and the most that any may have."""
    requests = draw.integer(least, 6)
    most = draw.among(1, 2, 3, 5)
    return [draw.among(0, 0, 1, most, most) if draw.flag() else most for _ in range(requests)], most


def _synthetic(draw: Draw, tokens: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Uniform draws and acceptance rates, some of them equal, some 0 and 1."""
    rates = draw.rng.choice(np.array([0.0, 0.25, 0.5, 0.7, 1.0], dtype=np.float32), most)
    uniform = draw.rng.random(tokens)
    tied = draw.rng.random(tokens) < 0.3
    uniform[tied] = rates[draw.rng.integers(0, most, int(tied.sum()))]
    # Next to a rate, by less than float32 tells apart.
    near = draw.rng.random(tokens) < 0.2
    uniform[near] = rates[draw.rng.integers(0, most, int(near.sum()))] - 2.0**-40
    return np.clip(uniform, 0.0, 1.0 - 2.0**-53), rates


def _output(draw: Draw, requests: int, most: int) -> Value:
    """A batch of rows, full of what the sampler puts there or, to see more, of poison."""
    if draw.flag():
        filled = np.full((requests, most + 1), _PLACEHOLDER)
        return draw.memory.tensor("output_token_ids_ptr", filled, "int32")
    return draw.memory.output("output_token_ids_ptr", (requests, most + 1), "int32")


def _bonus(draw: Draw, requests: int) -> Value:
    ids = draw.ids(requests, 128_256).reshape(requests, 1)
    return draw.memory.tensor("bonus_token_ids_ptr", ids, draw.among("int32", "int64"))


def _greedy(draw: Draw) -> Example:
    memory = draw.memory
    lengths, most = _drafts(draw)
    requests, tokens = len(lengths), sum(lengths)
    drafts = draw.ids(tokens, draw.among(3, 128_256))
    target = np.where(draw.rng.random(tokens) < 0.7, drafts, draw.ids(tokens, 128_256))
    drafts[draw.rng.random(tokens) < 0.1] = -1
    all_greedy = draw.flag()
    synthetic = draw.integer(0, 5) == 4
    uniform, rates = _synthetic(draw, tokens, most)
    greedy = draw.rng.random(requests) < 0.6
    return memory.example(
        {
            "output_token_ids_ptr": _output(draw, requests, most),
            "cu_num_draft_tokens_ptr": memory.tensor(
                "cu_num_draft_tokens_ptr", boundaries(lengths)[1:], "int32"
            ),
            "draft_token_ids_ptr": memory.tensor("draft_token_ids_ptr", drafts, "int32"),
            "target_argmax_ptr": memory.tensor("target_argmax_ptr", target, "int64"),
            "bonus_token_ids_ptr": _bonus(draw, requests),
            "is_greedy_ptr": None if all_greedy else memory.tensor("is_greedy_ptr", greedy, "bool"),
            "max_spec_len": most,
            "uniform_probs_ptr": memory.tensor("uniform_probs_ptr", uniform, "float64")
            if synthetic or not all_greedy
            else None,
            "synthetic_conditional_rates_ptr": memory.tensor(
                "synthetic_conditional_rates_ptr", rates, "float32"
            )
            if synthetic
            else None,
            "SYNTHETIC_MODE": synthetic,
        },
        (requests,),
    )


def _sampled_greedily(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.sample.rejection_sampler import _rejection_greedy_sample

    _rejection_greedy_sample(
        a["output_token_ids_ptr"],
        a["cu_num_draft_tokens_ptr"],
        a["draft_token_ids_ptr"],
        a["target_argmax_ptr"],
        a["bonus_token_ids_ptr"],
        a["is_greedy_ptr"],
        a["max_spec_len"],
        a["uniform_probs_ptr"],
        a["synthetic_conditional_rates_ptr"],
    )


def _probabilities(draw: Draw, tokens: int, vocabulary: int) -> np.ndarray:
    """Rows of probabilities, ``[tokens, vocabulary]`` float32.

    Some rows are of powers of two, so that quotients and products are exact everywhere; zeros are
    among both, and a row may have all of its mass in one place.
    """
    exact = 2.0 ** -draw.rng.integers(0, 8, (tokens, vocabulary)).astype(np.float64)
    ordinary = draw.rng.random((tokens, vocabulary))
    rows = np.where(draw.rng.random((tokens, 1)) < 0.5, exact, ordinary / ordinary.sum(1)[:, None])
    rows[draw.rng.random((tokens, vocabulary)) < draw.among(0.0, 0.2, 0.6)] = 0.0
    return rows.astype(np.float32)


def _random(draw: Draw) -> Example:
    memory = draw.memory
    lengths, most = _drafts(draw)
    requests, tokens = len(lengths), sum(lengths)
    vocabulary = draw.among(1, 2, 5, 33)
    drafts = draw.ids(tokens, vocabulary)
    target = _probabilities(draw, tokens, vocabulary)
    no_draft_probs = draw.flag()
    draft = _probabilities(draw, tokens, vocabulary)
    synthetic = draw.integer(0, 5) == 4
    if draw.rarely() and tokens:
        target[draw.integer(0, tokens - 1)] = np.nan
    if draw.rarely() and tokens:
        draft[draw.integer(0, tokens - 1)] = draw.among(np.nan, np.inf)
    uniform, rates = _synthetic(draw, tokens, most)
    if not synthetic:
        uniform = _uniform(draw, target, None if no_draft_probs else draft, drafts)
    drafts[draw.rng.random(tokens) < 0.15] = -1
    greedy = draw.rng.random(requests) < draw.among(0.0, 0.3)
    recovered = draw.ids(tokens, 128_256)
    return memory.example(
        {
            "output_token_ids_ptr": _output(draw, requests, most),
            "cu_num_draft_tokens_ptr": memory.tensor(
                "cu_num_draft_tokens_ptr", boundaries(lengths)[1:], "int32"
            ),
            "draft_token_ids_ptr": memory.tensor("draft_token_ids_ptr", drafts, "int32"),
            "draft_probs_ptr": None
            if no_draft_probs
            # Before the first row lies what a padding draft of -1 would look up.
            else memory.tensor("draft_probs_ptr", draft, "float32", room=(2, 1)),
            "target_probs_ptr": memory.tensor("target_probs_ptr", target, "float32", room=(2, 1)),
            "bonus_token_ids_ptr": _bonus(draw, requests),
            "recovered_token_ids_ptr": memory.tensor("recovered_token_ids_ptr", recovered, "int32"),
            "uniform_probs_ptr": memory.tensor("uniform_probs_ptr", uniform, "float64"),
            "is_greedy_ptr": memory.tensor("is_greedy_ptr", greedy, "bool"),
            "max_spec_len": most,
            "vocab_size": vocabulary,
            "synthetic_conditional_rates_ptr": memory.tensor(
                "synthetic_conditional_rates_ptr", rates, "float32"
            )
            if synthetic
            else None,
            "NO_DRAFT_PROBS": no_draft_probs,
            "SYNTHETIC_MODE": synthetic,
        },
        (requests,),
    )


def _uniform(
    draw: Draw, target: np.ndarray, draft: np.ndarray | None, drafts: np.ndarray
) -> np.ndarray:
    """Uniform draws for ratios: equal to one, next to one, or well away from it.

    A GPU's quotient may be off by 2 units in the last place unless it divides by a power of two,
    so draws come near a ratio only there.
    """
    tokens = drafts.shape[0]
    at = np.arange(tokens)
    divisor = np.ones(tokens) if draft is None else draft[at, drafts].astype(np.float64)
    with np.errstate(all="ignore"):
        ratio = target[at, drafts].astype(np.float64) / divisor
        mantissa, _ = np.frexp(divisor)
        exact = np.isfinite(ratio) & (mantissa == 0.5) & (ratio < 1.0)
    uniform: np.ndarray = draw.rng.random((tokens,))
    with np.errstate(all="ignore"):
        near = ~exact & np.isfinite(ratio) & (np.abs(ratio - uniform) < 1e-5 * ratio)
    uniform[near] = 0.0
    kind = draw.rng.integers(0, 4, tokens)
    uniform = np.where(exact & (kind == 0), ratio, uniform)
    uniform = np.where(exact & (kind == 1), ratio + 2.0**-40, uniform)
    uniform = np.where(exact & (kind == 2), ratio - 2.0**-40, uniform)
    return np.clip(np.nan_to_num(uniform), 0.0, 1.0 - 2.0**-53)


def _sampled_randomly(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.sample.rejection_sampler import _rejection_random_sample

    _rejection_random_sample(
        a["output_token_ids_ptr"],
        a["cu_num_draft_tokens_ptr"],
        a["draft_token_ids_ptr"],
        a["draft_probs_ptr"],
        a["target_probs_ptr"],
        a["bonus_token_ids_ptr"],
        a["recovered_token_ids_ptr"],
        a["uniform_probs_ptr"],
        a["is_greedy_ptr"],
        a["max_spec_len"],
        a["synthetic_conditional_rates_ptr"],
    )


def _expand(draw: Draw) -> Example:
    memory = draw.memory
    requests = draw.integer(0, 8)
    lengths = [draw.among(0, 1, 2, 5, 31, 32) for _ in range(requests)]
    dtype = draw.among("float32", "int32", "int64")
    # Temperatures, with that of greedy requests; top-p; top-k, with what means none.
    values: Any
    if dtype == "float32":
        values = draw.rng.choice(
            [0.0, -0.0, 1e-30, 0.7, 1.0, 0.123456789, np.inf, np.nan], requests
        )
        source, target = draw.among((0, 1), (0, 1), (0, 0))
    else:
        limit = np.iinfo(dtype)
        values = draw.rng.choice([0, 1, 40, -1, limit.max, limit.min], requests)
        source, target = draw.among((0, 0), (0, 1), (-1, 40))
    counts = boundaries(lengths)[1:]
    tokens = sum(lengths)
    return memory.example(
        {
            "output_ptr": memory.output("output_ptr", tokens, dtype),
            "input_ptr": memory.tensor("input_ptr", values, dtype),
            "cu_num_tokens_ptr": memory.tensor("cu_num_tokens_ptr", counts, "int32"),
            "replace_from": source,
            "replace_to": target,
            "MAX_NUM_TOKENS": 128,
        },
        (requests,),
    )


def _expanded(a: dict[str, Any], extra: dict[str, Any]) -> None:
    """Expand into a tensor that vLLM allocates, and bring that to where the launch has it."""
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    a["output_ptr"].copy_(
        expand_batch_to_tokens(
            a["input_ptr"],
            a["cu_num_tokens_ptr"],
            a["output_ptr"].shape[0],
            a["replace_from"],
            a["replace_to"],
        )
    )


def _recover(draw: Draw) -> Example:
    memory = draw.memory
    lengths, most = _drafts(draw)
    # A loop of the kernel takes 8192 tokens of the vocabulary at a time.
    large = draw.rarely()
    if large:
        lengths = lengths[:2]
    vocabulary = draw.among(8191, 8192, 8193, 16385) if large else draw.among(1, 2, 3, 16, 17, 33)
    requests, tokens = len(lengths), sum(lengths)
    drafts = draw.ids(tokens, vocabulary)
    no_draft_probs = draw.flag()
    target = _probabilities(draw, tokens, vocabulary)
    draft = _probabilities(draw, tokens, vocabulary)
    same = draw.rng.random(tokens) < 0.15
    draft[same] = target[same]  # nothing is left of the target, and all scores are equal
    noise: Any = 2.0 ** draw.rng.integers(-6, 7, (requests, vocabulary)).astype(np.float64)
    wide = draw.flag()
    if draw.flag():
        noise = 1.0 / draw.rng.exponential(size=(requests, vocabulary))
    if wide and vocabulary > 2:
        # Apart by less than float32 can tell.
        noise[:, 0], noise[:, 1] = 64.0, 64.0 + 2.0**-40
        target[:, :2] = 0.5
        draft[:, :2] = 0.25
    if no_draft_probs and draw.rarely() and requests and vocabulary > 1:
        # Infinite noise, as of a draw of 0, where every token has some probability.
        target = np.maximum(target, np.float32(2.0**-20))
        noise[draw.integer(0, requests - 1), :: draw.integer(1, 3)] = np.inf
        drafts = _of_finite_noise(draw, noise, lengths, drafts)
    if not no_draft_probs and draw.rarely() and tokens:
        target[draw.integer(0, tokens - 1), :] = np.nan
    return memory.example(
        {
            "output_token_ids_ptr": memory.output("output_token_ids_ptr", tokens, "int32"),
            "cu_num_draft_tokens_ptr": memory.tensor(
                "cu_num_draft_tokens_ptr", boundaries(lengths)[1:], "int32"
            ),
            "draft_token_ids_ptr": memory.tensor("draft_token_ids_ptr", drafts, "int32"),
            "draft_probs_ptr": None
            if no_draft_probs
            else memory.tensor("draft_probs_ptr", draft, "float32"),
            "target_probs_ptr": memory.tensor("target_probs_ptr", target, "float32"),
            "inv_q_ptr": memory.tensor("inv_q_ptr", noise, "float64" if wide else "float32"),
            "vocab_size": vocabulary,
            "BLOCK_SIZE": 8192,
            "NO_DRAFT_PROBS": no_draft_probs,
            "USE_FP64_GUMBEL": wide,
        },
        (requests, most),
        extra={"most": most},
    )


def _of_finite_noise(
    draw: Draw, noise: np.ndarray, lengths: list[int], drafts: np.ndarray
) -> np.ndarray:
    """Drafts that have no infinite noise: 0 times it is NaN, and what NaN does is left out."""
    requests = np.repeat(np.arange(len(lengths)), lengths)
    for at, request in enumerate(requests):
        finite = np.flatnonzero(np.isfinite(noise[request]))
        if finite.size:
            drafts[at] = draw.rng.choice(finite)
        else:
            drafts[at] = -1
    return drafts


def _recovered(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.v1.sample.rejection_sampler import _sample_recovered_tokens

    _sample_recovered_tokens(
        a["output_token_ids_ptr"],
        a["cu_num_draft_tokens_ptr"],
        a["draft_token_ids_ptr"],
        a["draft_probs_ptr"],
        a["target_probs_ptr"],
        a["inv_q_ptr"],
        max_spec_len=extra["most"],
    )


_HOME = "vllm.v1.sample.rejection_sampler"
GENERATORS = (
    Generator(
        kernel="triton:rejection_greedy_sample_kernel",
        home=f"{_HOME}:_rejection_greedy_sample.kernel",
        build=_greedy,
        through="_rejection_greedy_sample",
        call=_sampled_greedily,
    ),
    Generator(
        kernel="triton:rejection_random_sample_kernel",
        home=f"{_HOME}:_rejection_random_sample.kernel",
        build=_random,
        through="_rejection_random_sample",
        call=_sampled_randomly,
        left_out=(
            "draws within a part in 100,000 of a quotient that no power of two divides: a GPU's "
            "division is not exact",
        ),
    ),
    Generator(
        kernel="triton:expand_kernel",
        home=f"{_HOME}:_expand.kernel",
        build=_expand,
        through="expand_batch_to_tokens",
        call=_expanded,
        left_out=("more tokens of a request than the kernel's block of 128 has room for",),
    ),
    Generator(
        kernel="triton:sample_recovered_tokens_kernel",
        home=f"{_HOME}:_sample_recovered_tokens.kernel",
        build=_recover,
        through="_sample_recovered_tokens",
        call=_recovered,
        left_out=(
            "scores of NaN (no probability, infinite noise): which token then wins depends on the "
            "order in which a GPU compares",
            "products below the least normal number, which a GPU may take for 0",
        ),
    ),
)
