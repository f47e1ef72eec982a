"""Every speculative method that vLLM has, greedy and sampled."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.catalogue.prompts import ECHOES, GREEDY, PROMPTS
from conformance.scenarios.scenario import (
    TRANSFORMERS,
    Refusal,
    Request,
    Scenario,
    Step,
    requests,
)

_PLAIN: dict[str, Any] = {"speculative_config": None}
_NUCLEUS_OF_1: dict[str, Any] = {**GREEDY, "temperature": 0.9, "top_p": 1e-6, "seed": 7}
_SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 16, "ignore_eos": True}
_NGRAM: dict[str, Any] = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
_ALL = ECHOES + PROMPTS[:3]
_LONG = (PROMPTS[2] + ECHOES[0] * 4, PROMPTS[2] + PROMPTS[3], ECHOES[1] * 9)

# Greedy requests after sampled ones: their drafts share a batch, and a row of parameters each.
_GREEDY_AMONG_SAMPLED = (
    *requests(ECHOES, **GREEDY),
    *requests(PROMPTS[:2], **{**_NUCLEUS_OF_1, "temperature": 0.4}),
)
_SAMPLED = tuple(
    Request(prompt, tuple({**_SEEDED, "seed": seed}.items()))
    for seed, prompt in enumerate((*PROMPTS[:2], PROMPTS[3]))
)
_STEPS = (
    Step("greedy", requests(_ALL, **GREEDY), against=TRANSFORMERS),
    Step("nucleus-of-1", requests(ECHOES, **_NUCLEUS_OF_1), against=TRANSFORMERS),
    Step(
        "mixed",
        _GREEDY_AMONG_SAMPLED,
        call="staggered",
        options=(("every", 0), ("leading", 2)),
        against=TRANSFORMERS,
        same_as=("greedy",),
    ),
)
# Log-probabilities of several tokens at once are compiled for many shapes, which takes long.
_WITH_LOGPROBS = (
    Step("greedy", requests(_ALL, logprobs=5, **GREEDY), against=TRANSFORMERS),
    *_STEPS[1:],
)


def _scenario(name: str, claim: str, method: str, **more: Any) -> Scenario:
    """One method, with the same requests as every other, and the same without speculation."""
    options = more.pop("options", {})
    return Scenario(
        name=f"spec-{name}",
        claim=claim,
        recipe=more.pop("recipe", "tiny-llama"),
        speculative={"method": method, "num_speculative_tokens": 3, **options},
        variants={"": {}, "plain": _PLAIN},
        steps=more.pop("steps", _STEPS),
        **more,
    )


def _cached(name: str, claim: str, method: str, draft: str, **more: Any) -> Scenario:
    """One method with chunks of 40 tokens and a warm prefix cache; the same with neither."""
    return Scenario(
        name=f"spec-{name}-cached",
        claim=claim,
        recipe="tiny-llama",
        draft=draft,
        speculative={"method": method, "num_speculative_tokens": 3},
        engine={"block_size": 32, **more.pop("engine", {})},
        variants={
            "": {"max_num_batched_tokens": 40, "enable_prefix_caching": True},
            "plain": {"enable_prefix_caching": False, **_PLAIN},
        },
        steps=(
            Step("cold", requests(_LONG, **GREEDY), against=TRANSFORMERS),
            Step("warm", requests(_LONG, **GREEDY), against=TRANSFORMERS, same_as=("cold",)),
        ),
        **more,
    )


_DRAFT: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}

SCENARIOS: tuple[Scenario, ...] = (
    _scenario("eagle", "speculation with an EAGLE head", "eagle", draft="tiny-llama-eagle"),
    _scenario(
        "eagle3",
        "speculation with an EAGLE-3 head over three of the target's hidden states",
        "eagle3",
        recipe="tiny-llama-8",
        draft="tiny-llama-8-eagle3",
        steps=_WITH_LOGPROBS,
        nightly=True,
    ),
    _scenario("medusa", "speculation with Medusa heads", "medusa", draft="tiny-llama-medusa"),
    _scenario(
        "mtp",
        "speculation with the head that a checkpoint brings along",
        "mtp",
        recipe="tiny-mimo",
        options={"num_speculative_tokens": 2},
    ),
    _scenario(
        "ngram-gpu", "n-gram speculation computed on the device", "ngram_gpu", options=_NGRAM
    ),
    _scenario(
        "dflash",
        "speculation with a DFlash head, which guesses all tokens at once",
        "dflash",
        draft="tiny-llama-dflash",
        steps=_WITH_LOGPROBS,
        nightly=True,
    ),
    _scenario(
        "gemma4",
        "speculation with an assistant that reads the target's KV cache, and looks at half of the "
        "vocabulary",
        "mtp",
        recipe="tiny-gemma4",
        draft="tiny-gemma4-assistant",
    ),
    _scenario(
        "parallel",
        "speculation with a draft model that guesses all tokens at once",
        "draft_model",
        draft="tiny-llama-pard",
        options={"parallel_drafting": True},
        nightly=True,
    ),
    _scenario(
        "suffix",
        "speculation by the suffixes of what was said",
        "suffix",
        refusals=(Refusal("Arctic Inference is required for suffix decoding."),),
    ),
    _cached(
        "draft",
        "a draft model, with prompts in chunks and from the prefix cache",
        "draft_model",
        "tiny-llama-draft",
        nightly=True,
    ),
    _cached(
        "eagle",
        "an EAGLE head, with prompts in chunks and from the prefix cache",
        "eagle",
        "tiny-llama-eagle",
    ),
    Scenario(
        name="spec-options",
        claim="a draft model whose drafts are made and judged in every way that vLLM has",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
        variants={
            "": {},
            "probabilistic": {
                "speculative_config": {**_DRAFT, "draft_sample_method": "probabilistic"}
            },
            "block": {"speculative_config": {**_DRAFT, "rejection_sample_method": "block"}},
            "short": {"speculative_config": {**_DRAFT, "max_model_len": 68}},
            "by batch": {
                "speculative_config": {
                    **_DRAFT,
                    "num_speculative_tokens_per_batch_size": [(1, 2, 3), (3, 8, 1)],
                }
            },
        },
        nightly=True,
        # With the longest prompt the short draft model is past its end after a few tokens.
        steps=(
            Step("greedy", requests(_ALL, **GREEDY), against=TRANSFORMERS),
            Step("nucleus-of-1", requests(ECHOES, **_NUCLEUS_OF_1), against=TRANSFORMERS),
        ),
    ),
    Scenario(
        name="spec-neighbours",
        claim="greedy requests among sampled ones get what they get alone; the sampled repeat",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
        steps=(
            Step("greedy", requests(ECHOES, **GREEDY), against=TRANSFORMERS),
            Step("sampled", _SAMPLED),
            Step(
                "mixed",
                (*requests(ECHOES, **GREEDY), *_SAMPLED),
                call="staggered",
                options=(("every", 0), ("leading", 2)),
                same_as=("greedy",),
            ),
            Step(
                "mixed again",
                (*requests(ECHOES, **GREEDY), *_SAMPLED),
                call="staggered",
                options=(("every", 0), ("leading", 2)),
                same_as=("mixed",),
            ),
            Step("sampled again", _SAMPLED, same_as=("sampled",)),
        ),
    ),
    Scenario(
        name="spec-tensor-parallel",
        claim="a draft model and the prefix cache, in two worker processes that share both models",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
        engine={
            "tensor_parallel_size": 2,
            "distributed_executor_backend": "mp",
            "block_size": 32,
        },
        steps=(
            Step("cold", requests(_LONG, **GREEDY), against=TRANSFORMERS),
            Step("warm", requests(_LONG, **GREEDY), against=TRANSFORMERS, same_as=("cold",)),
        ),
        environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        limit=300.0,
        nightly=True,
    ),
)
