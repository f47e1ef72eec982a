"""LoRA adapters, alone and among requests that use others or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.scenarios.catalogue.prompts import ECHOES, GREEDY, PROMPTS
from conformance.scenarios.scenario import TRANSFORMERS, Request, Scenario, Step, requests

_NAMES = ("lora-all", "lora-attention", "lora-mlp")
_VOCABULARY = "lora-vocabulary"
_ENGINE: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 3,
    "max_lora_rank": 16,
    "block_size": 32,
}


def _using(adapter: str | None, *prompts: tuple[int, ...], **sampling: Any) -> tuple[Request, ...]:
    return tuple(
        replace(request, adapter=adapter) for request in requests(prompts, **{**GREEDY, **sampling})
    )


_FIRST, _SECOND, _THIRD = _NAMES
# Prompts of two blocks and more, the same for each adapter and for none.
_MIXED = (
    *_using(_FIRST, PROMPTS[2], PROMPTS[0], logprobs=5),
    *_using(None, PROMPTS[2], logprobs=5),
    *_using(_SECOND, PROMPTS[2], PROMPTS[3], logprobs=5),
    *_using(None, PROMPTS[0], logprobs=5),
)

SCENARIOS = (
    Scenario(
        name="lora",
        claim="adapters, one or two at once, among requests that use none; with a prefix cache too",
        recipe="tiny-llama",
        engine=_ENGINE,
        adapters=_NAMES,
        variants={
            "": {"enable_prefix_caching": True},
            "uncached": {"enable_prefix_caching": False},
        },
        steps=(
            Step("none", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),
            Step("first", _using(_FIRST, *PROMPTS)),
            Step("mixed", _MIXED),
            Step("again", _MIXED, same_as=("mixed",)),
            Step("alone", _MIXED[:1], same_as=("mixed",)),
            # One more than the engine holds at once: one of them has to wait, and is swapped in.
            Step(
                "three",
                (
                    *_using(_FIRST, ECHOES[0]),
                    *_using(_SECOND, ECHOES[0]),
                    *_using(_THIRD, ECHOES[0], PROMPTS[1]),
                ),
            ),
            Step("none again", requests(PROMPTS, **GREEDY), same_as=("none",)),
        ),
    ),
    Scenario(
        name="lora-speculation",
        claim="adapters in an engine that looks back for drafts",
        recipe="tiny-llama",
        engine=_ENGINE,
        adapters=_NAMES,
        speculative={
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        },
        # Without speculation first: n-gram speculation imports numba, after which vLLM makes no
        # other engine (docs/findings/cpu-numba-imported-first.md).
        variants={"plain": {"speculative_config": None}, "": {}},
        nightly=True,
        steps=(
            Step(
                "mixed",
                (
                    *_using(_FIRST, ECHOES[0], ECHOES[1]),
                    *_using(None, ECHOES[1]),
                    *_using(_SECOND, ECHOES[1], ECHOES[2]),
                ),
            ),
        ),
    ),
    Scenario(
        name="lora-vocabulary",
        claim="an adapter of the embedding and of the output layer, beside requests without",
        recipe="tiny-llama",
        # One place, so that the last one is never empty.
        engine={**_ENGINE, "max_loras": 1},
        adapters=(_VOCABULARY,),
        steps=(
            Step("none", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),
            Step(
                "mixed",
                (
                    *_using(_VOCABULARY, PROMPTS[0], PROMPTS[3], logprobs=5),
                    *_using(None, PROMPTS[0], PROMPTS[2], logprobs=5),
                ),
            ),
        ),
    ),
)
