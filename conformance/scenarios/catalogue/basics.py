"""What every runner is for: greedy and sampled text, speculation, streams, workers, commands."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.catalogue.prompts import ECHOES, GREEDY, PROMPTS
from conformance.scenarios.scenario import TRANSFORMERS, Request, Scenario, Step, requests

_TOP_K_1: dict[str, Any] = {**GREEDY, "temperature": 0.9, "top_k": 1, "seed": 7}
_NUCLEUS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 16, "ignore_eos": True}

# "The capital of France is", "2 + 2 =", "Once upon a time" in SmolLM2's vocabulary.
_REAL_PROMPTS = ((504, 3575, 282, 4649, 314), (34, 1232, 216, 34, 446), (8198, 2423, 253, 655))


def _seeded(seeds: tuple[int, ...], prompts: tuple[tuple[int, ...], ...]) -> tuple[Request, ...]:
    return tuple(
        Request(prompt, tuple({**_NUCLEUS, "seed": seed}.items()))
        for seed, prompt in zip(seeds, prompts, strict=True)
    )


# A nucleus so small that one candidate is left of it: sampling that has a single outcome.
_NUCLEUS_OF_1: dict[str, Any] = {**GREEDY, "temperature": 0.9, "top_p": 1e-6, "seed": 7}

_NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
_SPECULATION_STEPS = (
    Step("greedy", requests(ECHOES, **GREEDY), against=TRANSFORMERS),
    Step("nucleus-of-1", requests(ECHOES, **_NUCLEUS_OF_1), against=TRANSFORMERS),
)

SCENARIOS = (
    Scenario(
        name="greedy",
        claim="greedy decoding with logprobs, alone and in a batch of mixed lengths",
        recipe="tiny-llama",
        steps=(
            Step("single", requests(PROMPTS[:1], logprobs=5, **GREEDY), against=TRANSFORMERS),
            Step(
                "batch",
                requests(PROMPTS, logprobs=5, **GREEDY),
                against=TRANSFORMERS,
                same_as=("single",),
            ),
        ),
        threads=2,
    ),
    Scenario(
        name="sampling",
        claim="seeded sampling, with neighbours and alone",
        recipe="tiny-llama",
        steps=(
            Step("seeded", _seeded((1, 2, 3), PROMPTS[:3])),
            Step("again", _seeded((1, 2, 3), PROMPTS[:3]), same_as=("seeded",)),
            Step("alone", _seeded((1,), PROMPTS[:1]), same_as=("seeded",)),
            Step("other seed", _seeded((4,), PROMPTS[:1])),
            Step("top-k-1", requests(PROMPTS, **_TOP_K_1), against=TRANSFORMERS),
        ),
    ),
    Scenario(
        name="spec-ngram",
        claim="n-gram speculation",
        recipe="tiny-llama",
        speculative=_NGRAM,
        steps=_SPECULATION_STEPS,
    ),
    Scenario(
        name="spec-top-k",
        claim="n-gram speculation with top-k sampling",
        recipe="tiny-llama",
        speculative=_NGRAM,
        steps=(Step("top-k-1", requests(ECHOES, **_TOP_K_1), against=TRANSFORMERS),),
    ),
    Scenario(
        name="spec-draft",
        claim="speculation with a draft model",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        speculative={"method": "draft_model", "num_speculative_tokens": 3},
        steps=_SPECULATION_STEPS,
    ),
    Scenario(
        name="streams",
        claim="a speculating engine driven inside a stream context",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        speculative={"method": "draft_model", "num_speculative_tokens": 2},
        steps=(
            Step("before", requests(ECHOES[:1], **GREEDY), against=TRANSFORMERS),
            Step(
                "inside",
                requests(ECHOES, **GREEDY),
                inside_stream=True,
                against=TRANSFORMERS,
                same_as=("before",),
            ),
        ),
    ),
    Scenario(
        name="two-engines",
        claim="two engines, one after the other, in one process",
        recipe="tiny-llama",
        variants={"": {}, "1": {}},
        steps=(Step("batch", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),),
    ),
    Scenario(
        name="tensor-parallel",
        claim="two worker processes that share the model",
        recipe="tiny-llama",
        engine={"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        steps=(Step("batch", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),),
        # vLLM binds one worker to each memory node by itself, and most hosts have a single one.
        environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        limit=240.0,
    ),
    Scenario(
        name="bench",
        claim="vllm bench throughput, as a user runs it",
        recipe="tiny-llama",
        kind="bench",
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        limit=240.0,
    ),
    Scenario(
        name="serve",
        claim="vllm serve: a completion, then SIGTERM",
        recipe="tiny-llama",
        kind="serve",
        steps=(Step("completion", requests(PROMPTS[:1], **GREEDY)),),
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        limit=240.0,
    ),
    Scenario(
        name="real",
        claim="SmolLM2-135M, greedy with logprobs",
        recipe="smollm2-135m",
        steps=(Step("batch", requests(_REAL_PROMPTS, logprobs=5, **GREEDY), against=TRANSFORMERS),),
        threads=2,
        limit=300.0,
    ),
)
