"""The scenarios: what is run, for every subject alike."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.scenario import Request, Scenario, Step, requests

_LONG = tuple((7 * i * i + 3 * i + 11) % 500 + 6 for i in range(60))
_PROMPTS = ((17, 301, 44, 9, 260), (5,), _LONG, (400, 401, 402, 403, 404, 405, 406, 407, 408))
# Prompts whose ends repeat their beginnings, so that looking back finds something to propose.
_ECHOES = (
    (61, 62, 63, 64, 65, 61, 62, 63, 64, 65, 61, 62),
    (310, 12, 310, 12, 310, 12, 310, 12),
    (99, 7, 7, 7, 7, 7, 7),
)
_GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
_TOP_K_1: dict[str, Any] = {**_GREEDY, "temperature": 0.9, "top_k": 1, "seed": 7}
_NUCLEUS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 16, "ignore_eos": True}

# "The capital of France is", "2 + 2 =", "Once upon a time" in SmolLM2's vocabulary.
_REAL_PROMPTS = ((504, 3575, 282, 4649, 314), (34, 1232, 216, 34, 446), (8198, 2423, 253, 655))


def _seeded(seeds: tuple[int, ...], prompts: tuple[tuple[int, ...], ...]) -> tuple[Request, ...]:
    return tuple(
        Request(prompt, tuple({**_NUCLEUS, "seed": seed}.items()))
        for seed, prompt in zip(seeds, prompts, strict=True)
    )


# A nucleus so small that one candidate is left of it: sampling that has a single outcome.
_NUCLEUS_OF_1: dict[str, Any] = {**_GREEDY, "temperature": 0.9, "top_p": 1e-6, "seed": 7}

_NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
_SPECULATION_STEPS = (
    Step("greedy", requests(_ECHOES, **_GREEDY)),
    Step("nucleus-of-1", requests(_ECHOES, **_NUCLEUS_OF_1)),
)

SCENARIOS = (
    Scenario(
        name="greedy",
        claim="greedy decoding with logprobs, alone and in a batch of mixed lengths",
        recipe="tiny-llama",
        steps=(
            Step("single", requests(_PROMPTS[:1], logprobs=5, **_GREEDY)),
            Step("batch", requests(_PROMPTS, logprobs=5, **_GREEDY)),
        ),
        threads=2,
    ),
    Scenario(
        name="sampling",
        claim="seeded sampling, with neighbours and alone",
        recipe="tiny-llama",
        steps=(
            Step("seeded", _seeded((1, 2, 3), _PROMPTS[:3])),
            Step("again", _seeded((1, 2, 3), _PROMPTS[:3])),
            Step("alone", _seeded((1,), _PROMPTS[:1])),
            Step("other seed", _seeded((4,), _PROMPTS[:1])),
            Step("top-k-1", requests(_PROMPTS, **_TOP_K_1)),
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
        steps=(Step("top-k-1", requests(_ECHOES, **_TOP_K_1)),),
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
            Step("before", requests(_ECHOES[:1], **_GREEDY)),
            Step("inside", requests(_ECHOES, **_GREEDY), inside_stream=True),
        ),
    ),
    Scenario(
        name="two-engines",
        claim="two engines, one after the other, in one process",
        recipe="tiny-llama",
        engines=2,
        steps=(Step("batch", requests(_PROMPTS, **_GREEDY)),),
    ),
    Scenario(
        name="tensor-parallel",
        claim="two worker processes that share the model",
        recipe="tiny-llama",
        engine={"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        steps=(Step("batch", requests(_PROMPTS, **_GREEDY)),),
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
        steps=(Step("completion", requests(_PROMPTS[:1], **_GREEDY)),),
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        limit=240.0,
    ),
    Scenario(
        name="real",
        claim="SmolLM2-135M, greedy with logprobs",
        recipe="smollm2-135m",
        steps=(Step("batch", requests(_REAL_PROMPTS, logprobs=5, **_GREEDY)),),
        threads=2,
        limit=300.0,
    ),
)

SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}
"""Every scenario by its name."""

_ENTRIES = {
    "engine": "conformance.scenarios.engine:run",
    "bench": "conformance.scenarios.commands:bench",
    "serve": "conformance.scenarios.commands:serve",
}


def entry_of(scenario: Scenario) -> str:
    """Return the function that runs a scenario in a child process."""
    return _ENTRIES[scenario.kind]
