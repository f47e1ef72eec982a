"""The rejection sampling kernels against references that go through requests token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.kernel_checks import POISONS, Arguments, differences, lengths, poisoned, undetected

VOCABULARY = 23
SEEDS = range(20)
OUTPUT_DTYPES = ["int32", "int64"]


def sampling_case(
    seed: int, poison: int, output_dtype: str, *, synthetic: bool, draft_probs: bool = True
) -> tuple[Arguments, Arguments]:
    """Arguments of the greedy and of the random kernel, for the same ragged batch."""
    import torch

    rng = np.random.default_rng(seed)
    num_reqs = int(rng.integers(0, 8))
    longest = int(rng.integers(1, 6))
    counts = lengths(rng, num_reqs, longest)
    tokens = int(counts.sum())
    target = rng.integers(0, VOCABULARY, tokens)
    agree = rng.random(tokens) < 0.6
    draft = np.where(agree, target, rng.integers(0, VOCABULARY, tokens))
    draft[rng.random(tokens) < 0.1] = -1
    bonus = torch.from_numpy(rng.integers(0, VOCABULARY, num_reqs))
    dtype = getattr(torch, output_dtype)
    greedy = torch.from_numpy(rng.random(num_reqs) < 0.5)
    uniform = torch.from_numpy(rng.random(tokens))
    rates = torch.from_numpy(rng.random(longest).astype(np.float32)) if synthetic else None
    shared: Arguments = {
        "cu_num_draft_tokens_ptr": torch.tensor(counts.cumsum(), dtype=torch.int32),
        # The drafts of a step may lie in a longer buffer.
        "draft_token_ids_ptr": torch.tensor([*draft, 5, -1], dtype=torch.int32),
        "bonus_token_ids_ptr": bonus.unsqueeze(1) if seed % 2 else bonus,
        "max_spec_len": longest,
        "uniform_probs_ptr": uniform,
        "synthetic_conditional_rates_ptr": rates,
        "SYNTHETIC_MODE": synthetic,
    }
    output = poisoned((num_reqs, longest + 1), dtype, poison)
    all_greedy = seed % 4 == 0
    greedy_case = shared | {
        "output_token_ids_ptr": output,
        "target_argmax_ptr": torch.from_numpy(target),
        "is_greedy_ptr": None if all_greedy else greedy,
        "uniform_probs_ptr": uniform if synthetic or not all_greedy else None,
    }
    # Few distinct values: probabilities that are zero or equal occur.
    values = np.array([0, 0.125, 0.25, 0.5, 0.5, 0.75], dtype=np.float32)
    probs = values[rng.integers(0, len(values), (2, tokens, VOCABULARY))]
    probs[rng.random(probs.shape) < 0.02] = np.nan
    random_case = shared | {
        "output_token_ids_ptr": output.clone(),
        "draft_probs_ptr": torch.from_numpy(probs[0]) if draft_probs else None,
        "target_probs_ptr": torch.from_numpy(probs[1]),
        "recovered_token_ids_ptr": torch.from_numpy(
            rng.integers(0, VOCABULARY, tokens).astype(np.int32)
        ),
        "is_greedy_ptr": greedy,
        "vocab_size": VOCABULARY,
        "NO_DRAFT_PROBS": not draft_probs,
    }
    return greedy_case, random_case


def requests_of(running_count: np.ndarray) -> Iterator[tuple[int, range]]:
    start = 0
    for request, end in enumerate(running_count):
        yield request, range(start, int(end))
        start = int(end)


def greedy_reference(**a: Any) -> None:
    width = a["max_spec_len"] + 1
    for request, tokens in requests_of(a["cu_num_draft_tokens_ptr"]):
        if a["is_greedy_ptr"] is not None and not a["is_greedy_ptr"][request]:
            continue
        chosen = []
        for place, t in enumerate(tokens):
            draft, target = int(a["draft_token_ids_ptr"][t]), int(a["target_argmax_ptr"][t])
            if a["SYNTHETIC_MODE"]:
                rate = float(a["synthetic_conditional_rates_ptr"][place])
                accepted = float(a["uniform_probs_ptr"][t]) < rate and draft >= 0
            else:
                accepted = draft == target
            chosen.append(draft if accepted else target)
            if not accepted:
                break
        else:
            chosen.append(int(a["bonus_token_ids_ptr"][request]))
        for i, token in enumerate(chosen):
            a["output_token_ids_ptr"][request * width + i] = token


def random_reference(**a: Any) -> None:
    width = a["max_spec_len"] + 1
    for request, tokens in requests_of(a["cu_num_draft_tokens_ptr"]):
        if a["is_greedy_ptr"][request]:
            continue
        chosen = []
        for place, t in enumerate(tokens):
            draft, uniform = int(a["draft_token_ids_ptr"][t]), float(a["uniform_probs_ptr"][t])
            at = t * a["vocab_size"] + draft
            if draft < 0:
                accepted = False
            elif a["SYNTHETIC_MODE"]:
                accepted = uniform < float(a["synthetic_conditional_rates_ptr"][place])
            else:
                q = np.float32(1) if a["NO_DRAFT_PROBS"] else a["draft_probs_ptr"][at]
                accepted = bool(q > 0) and float(a["target_probs_ptr"][at] / q) >= uniform
            chosen.append(draft if accepted else int(a["recovered_token_ids_ptr"][t]))
            if not accepted:
                break
        else:
            chosen.append(int(a["bonus_token_ids_ptr"][request]))
        for i, token in enumerate(chosen):
            a["output_token_ids_ptr"][request * width + i] = token


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("synthetic", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_sampling_keeps_what_the_target_would_choose(
    seed: int, synthetic: bool, dtype: str, poison: int
) -> None:
    from runner_under_test.kernels.rejection import rejection_greedy_sample

    case, _ = sampling_case(seed, poison, dtype, synthetic=synthetic)
    assert differences(rejection_greedy_sample, greedy_reference, case) == []


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("draft_probs", [False, True])
@pytest.mark.parametrize("synthetic", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_sampling_accepts_by_the_probability_ratio(
    seed: int, synthetic: bool, draft_probs: bool, dtype: str, poison: int
) -> None:
    from runner_under_test.kernels.rejection import rejection_random_sample

    _, case = sampling_case(seed, poison, dtype, synthetic=synthetic, draft_probs=draft_probs)
    assert differences(rejection_random_sample, random_reference, case) == []


@pytest.mark.parametrize("ulp", [-1, 0, 1])
def test_uniform_draws_are_compared_in_float64(ulp: int) -> None:
    """A draw one float64 step above the ratio rejects, though float32 cannot tell them apart."""
    import torch

    from runner_under_test.kernels.rejection import rejection_random_sample

    draw = float(np.nextafter(0.5, 0.5 + ulp))
    output = torch.full((1, 2), -1, dtype=torch.int32)
    rejection_random_sample(
        output_token_ids_ptr=output,
        cu_num_draft_tokens_ptr=torch.tensor([1], dtype=torch.int32),
        draft_token_ids_ptr=torch.tensor([0], dtype=torch.int32),
        draft_probs_ptr=None,
        target_probs_ptr=torch.tensor([[0.5, 0.5]]),
        bonus_token_ids_ptr=torch.tensor([[7]]),
        recovered_token_ids_ptr=torch.tensor([1], dtype=torch.int32),
        uniform_probs_ptr=torch.tensor([draw], dtype=torch.float64),
        is_greedy_ptr=torch.tensor([False]),
        max_spec_len=1,
        vocab_size=2,
        NO_DRAFT_PROBS=True,
    )
    assert output.tolist() == ([[1, -1]] if ulp > 0 else [[0, 7]])


def test_synthetic_mode_without_rates_is_refused() -> None:
    from runner_under_test.kernels.rejection import rejection_greedy_sample

    case, _ = sampling_case(3, POISONS[0], "int32", synthetic=False)
    with pytest.raises(TypeError, match="synthetic mode needs"):
        rejection_greedy_sample(**case | {"SYNTHETIC_MODE": True})


def expand_case(seed: int, poison: int, dtype_name: str) -> Arguments:
    import torch

    rng = np.random.default_rng(seed)
    num_reqs = int(rng.integers(0, 7))
    counts = lengths(rng, num_reqs, 9)
    dtype = getattr(torch, dtype_name)
    values = torch.from_numpy(rng.integers(0, 4, num_reqs) * 0.75).to(dtype)
    return {
        "output_ptr": poisoned(int(counts.sum()) + 3, dtype, poison),
        "input_ptr": values,
        "cu_num_tokens_ptr": torch.tensor(counts.cumsum(), dtype=torch.int32),
        "replace_from": 0,
        "replace_to": int(seed % 2),
        "MAX_NUM_TOKENS": 128 if seed % 3 else 4,
    }


def expand_reference(**a: Any) -> None:
    for request, tokens in requests_of(a["cu_num_tokens_ptr"]):
        value = a["input_ptr"][request]
        for place, t in enumerate(tokens):
            if place < a["MAX_NUM_TOKENS"]:
                a["output_ptr"][t] = a["replace_to"] if value == a["replace_from"] else value


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("seed", SEEDS)
def test_expand_repeats_each_value_in_its_own_dtype(seed: int, dtype: str, poison: int) -> None:
    from runner_under_test.kernels.rejection import expand

    assert differences(expand, expand_reference, expand_case(seed, poison, dtype)) == []


def recovered_case(
    seed: int, poison: int, output_dtype: str, noise_dtype: str, *, draft_probs: bool
) -> Arguments:
    import torch

    _, case = sampling_case(seed, poison, output_dtype, synthetic=False, draft_probs=draft_probs)
    rng = np.random.default_rng(seed + 1000)
    num_reqs, tokens = len(case["is_greedy_ptr"]), len(case["recovered_token_ids_ptr"])
    # A few distinct values give ties, infinities times zero give NaN.
    noise = np.array([0.5, 1.0, 1.0, 2.0, np.inf])[rng.integers(0, 5, (num_reqs, VOCABULARY))]
    if seed % 2:
        noise = 1 / rng.exponential(size=(num_reqs, VOCABULARY))
    return {
        "output_token_ids_ptr": poisoned(tokens + 2, getattr(torch, output_dtype), poison),
        "cu_num_draft_tokens_ptr": case["cu_num_draft_tokens_ptr"],
        "draft_token_ids_ptr": case["draft_token_ids_ptr"],
        "draft_probs_ptr": case["draft_probs_ptr"],
        "target_probs_ptr": case["target_probs_ptr"],
        "inv_q_ptr": torch.from_numpy(noise).to(getattr(torch, noise_dtype)),
        "vocab_size": VOCABULARY,
        "BLOCK_SIZE": 8,
        "NO_DRAFT_PROBS": not draft_probs,
        "USE_FP64_GUMBEL": noise_dtype == "float64",
    }


def recovered_reference(**a: Any) -> None:
    size = a["vocab_size"]
    for request, tokens in requests_of(a["cu_num_draft_tokens_ptr"]):
        for t in tokens:
            best, winner = -np.inf, 0
            for v in range(size):
                p = a["target_probs_ptr"][t * size + v]
                if a["NO_DRAFT_PROBS"]:
                    weight = np.float32(0) if v == a["draft_token_ids_ptr"][t] else p
                else:
                    rest = p - a["draft_probs_ptr"][t * size + v]
                    weight = rest if rest > 0 else np.float32(0)
                with np.errstate(invalid="ignore"):
                    score = weight * a["inv_q_ptr"][request * size + v]
                if score > best:
                    best, winner = score, v
            a["output_token_ids_ptr"][t] = winner


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("noise_dtype", ["float32", "float64"])
@pytest.mark.parametrize("draft_probs", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_recovered_tokens_are_the_first_argmax_of_the_rest(
    seed: int, draft_probs: bool, noise_dtype: str, dtype: str, poison: int
) -> None:
    from runner_under_test.kernels.rejection import sample_recovered_tokens

    case = recovered_case(seed, poison, dtype, noise_dtype, draft_probs=draft_probs)
    assert differences(sample_recovered_tokens, recovered_reference, case) == []


def test_float64_noise_decides_between_equal_float32_scores() -> None:
    import torch

    from runner_under_test.kernels.rejection import sample_recovered_tokens

    output = torch.zeros(1, dtype=torch.int32)
    sample_recovered_tokens(
        output_token_ids_ptr=output,
        cu_num_draft_tokens_ptr=torch.tensor([1], dtype=torch.int32),
        draft_token_ids_ptr=torch.tensor([0], dtype=torch.int32),
        draft_probs_ptr=None,
        target_probs_ptr=torch.tensor([[0.2, 0.4, 0.4]]),
        inv_q_ptr=torch.tensor([[1.0, 1.0, 1.0 + 1e-12]], dtype=torch.float64),
        vocab_size=3,
        NO_DRAFT_PROBS=True,
    )
    assert output.tolist() == [2]


def test_the_first_of_equal_scores_wins_in_a_vocabulary_of_real_size() -> None:
    import torch

    from runner_under_test.kernels.rejection import sample_recovered_tokens

    size = 150_001
    target = torch.zeros(2, size)
    target[0, [70_000, 70_001, 149_999]] = 0.5
    target[1, [8_191, 8_192, 150_000]] = 0.5
    output = torch.zeros(2, dtype=torch.int32)
    sample_recovered_tokens(
        output_token_ids_ptr=output,
        cu_num_draft_tokens_ptr=torch.tensor([2], dtype=torch.int32),
        draft_token_ids_ptr=torch.tensor([70_000, 1], dtype=torch.int32),
        draft_probs_ptr=None,
        target_probs_ptr=target,
        inv_q_ptr=torch.ones(1, size),
        vocab_size=size,
        NO_DRAFT_PROBS=True,
    )
    assert output.tolist() == [70_001, 8_191]


@pytest.mark.parametrize("synthetic", [False, True])
def test_planted_faults_in_rejection_sampling_are_found(synthetic: bool) -> None:
    from runner_under_test.kernels import rejection

    pairs = [
        sampling_case(s, POISONS[0], "int32", synthetic=synthetic, draft_probs=bool(s % 2))
        for s in SEEDS
    ]
    output = ["output_token_ids_ptr"]
    greedy, random = zip(*pairs, strict=True)
    assert undetected(rejection.rejection_greedy_sample, greedy_reference, greedy, output) == []
    assert undetected(rejection.rejection_random_sample, random_reference, random, output) == []


def test_planted_faults_in_expand_and_recovery_are_found() -> None:
    from runner_under_test.kernels import rejection

    expanding = [expand_case(s, POISONS[0], "float32") for s in SEEDS]
    assert undetected(rejection.expand, expand_reference, expanding, ["output_ptr"]) == []
    recovering = [
        recovered_case(s, POISONS[0], "int32", "float32", draft_probs=bool(s % 2)) for s in SEEDS
    ]
    output = ["output_token_ids_ptr"]
    missed = undetected(rejection.sample_recovered_tokens, recovered_reference, recovering, output)
    assert missed == []


def test_narrowing_the_uniform_draws_to_float32_is_found() -> None:
    """The reference tells apart what only float64 tells apart."""
    import torch

    from runner_under_test.kernels.rejection import rejection_random_sample

    def narrowing(**a: Any) -> None:
        rejection_random_sample(**a | {"uniform_probs_ptr": a["uniform_probs_ptr"].float()})

    _, case = sampling_case(5, POISONS[0], "int32", synthetic=False, draft_probs=False)
    case["target_probs_ptr"] = torch.full_like(case["target_probs_ptr"], 0.5)
    case["uniform_probs_ptr"] = torch.full_like(case["uniform_probs_ptr"], np.nextafter(0.5, 1))
    assert differences(narrowing, random_reference, case) != []
    assert differences(rejection_random_sample, random_reference, case) == []
