"""Sampling parameters, penalties, log-probabilities, stops, and structured output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.scenarios.catalogue.prompts import ECHOES, GREEDY, PROMPTS
from conformance.scenarios.scenario import TRANSFORMERS, Request, Scenario, Step, requests

SAMPLER = "the float64 sampler"
"""Every log-probability of the vocabulary, and each token drawn, against the float64 sampler."""
DRAWS = "the float64 distribution"
"""Many draws of the same prompt: how often each text comes, against its probability."""
PROMPT = "transformers, of the prompt"
"""Log-probabilities of the prompt's tokens against transformers."""
STOPS = "what was to be stopped"
"""Where requests ended, against the step named ``whole``, which has their texts without stops."""
GRAMMAR = "the grammar"
"""Texts against the grammar that their request asked for."""
COMPLETIONS = "each other"
"""Several completions of a request: as many as asked for, and distinct."""

_EVERY: dict[str, Any] = {"max_tokens": 6, "logprobs": -1, "detokenize": False}
"""All log-probabilities of a few tokens."""
_WORDS: dict[str, Any] = {"skip_tokenizer_init": False, "max_logprobs": -1}
_PROCESSED: dict[str, Any] = {**_WORDS, "logprobs_mode": "processed_logprobs"}
_NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
# numba, with which vLLM looks drafts up, gives torch all threads that it may use itself.
_ONE_THREAD = {"NUMBA_NUM_THREADS": "1"}
_DRAFT: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 2}


def _each(*settings: dict[str, Any]) -> tuple[Request, ...]:
    """A request for each of the settings, the prompts by turns, each with a seed of its own."""
    return tuple(
        Request(
            PROMPTS[number % len(PROMPTS)],
            tuple({**_EVERY, "ignore_eos": True, "seed": number, **own}.items()),
        )
        for number, own in enumerate(settings)
    )


_TEMPERATURES = _each(*({"temperature": t} for t in (0.3, 0.7, 1.0, 1.7, 0.0)))
_CUTS = _each(
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 50, "temperature": 0.7},
    {"top_p": 0.1},
    {"top_p": 0.6},
    {"top_p": 0.95, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.8},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.5},
)
_MIN_P = _each(
    {"min_p": 0.02},
    {"min_p": 0.3, "temperature": 2.0},
    {"min_p": 0.05, "top_k": 10, "top_p": 0.9, "temperature": 0.8},
)
# Among the likeliest tokens after PROMPTS[0] are 87, then 100, then 350; after PROMPTS[1] the third
# is the end of the text.
_PENALTIES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.9, "temperature": 0.5},
    {"presence_penalty": -2.0, "frequency_penalty": -2.0, "temperature": 0.4},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "top_k": 30},
)
_RESTRICTIONS: tuple[dict[str, Any], ...] = (
    {"bad_words": ["w0100 w0350", "w0031"], "temperature": 0.3},
    {"allowed_token_ids": [11, 48, 99, 426, 300], "temperature": 2.0},
    {"stop_token_ids": [169, 132, 51], "min_tokens": 6, "temperature": 0.5},
    {
        "bad_words": ["w0317 w0356", "w0399"],
        "allowed_token_ids": [*range(300, 400)],
        "temperature": 0.5,
    },
)
_BIASES: tuple[dict[str, Any], ...] = (
    {"logit_bias": {7: 5.0, 300: -3.0}},
    {"logit_bias": {44: 9.0}, "repetition_penalty": 1.8},
)
_MIXED = (
    *_TEMPERATURES,
    *_CUTS,
    *_each(*_PENALTIES),
    *_each(*_RESTRICTIONS),
    *_each(*_BIASES),
    *_each(*({**own, "temperature": 0.0} for own in (*_RESTRICTIONS, *_PENALTIES, *_BIASES))),
    *_MIN_P,
)


def _without_logprobs(given: tuple[Request, ...]) -> tuple[Request, ...]:
    return tuple(
        replace(r, sampling=tuple(item for item in r.sampling if item[0] != "logprobs"))
        for r in given
    )


def _with(sampling: dict[str, Any], *prompts: tuple[int, ...]) -> tuple[Request, ...]:
    return requests(prompts, **sampling)


def _unseeded(number: int) -> tuple[Request, ...]:
    sampling = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    return _with(sampling, *(PROMPTS[i % len(PROMPTS)] for i in range(number)))


def _seeded(*prompts: tuple[int, ...]) -> tuple[Request, ...]:
    sampling = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    return tuple(
        Request(prompt, tuple({**sampling, "seed": i}.items())) for i, prompt in enumerate(prompts)
    )


_SEVERAL: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "n": 3}

# What may change the likeliest token, for greedy requests in engines with and without drafts. The
# texts repeat themselves, so that drafts are accepted in the middle of it all.
_CHANGED = tuple(
    Request(prompt, tuple({**GREEDY, "logprobs": -1, **own}.items()))
    for prompt, own in (
        (ECHOES[0], {"repetition_penalty": 1.3}),
        (ECHOES[1], {"presence_penalty": -2.0, "frequency_penalty": -1.0}),
        (ECHOES[2], {"frequency_penalty": 0.8}),
        (PROMPTS[2], {}),
        (PROMPTS[2], {"bad_words": ["w0132 w0132 w0132"]}),
        (ECHOES[1], {"allowed_token_ids": [12, 310, 98, 458]}),
        (ECHOES[0], {"allowed_token_ids": [61, 62, 63, 64, 65], "frequency_penalty": 0.4}),
        (PROMPTS[2], {"stop_token_ids": [132], "min_tokens": 12}),
    )
)


def _stopped(prompt: tuple[int, ...], **sampling: Any) -> Request:
    common = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, "detokenize": True}
    return Request(prompt, tuple({**common, **sampling}.items()))


# Greedy texts: PROMPTS[0] 87 100 350 31 185 13 350 52 ..., PROMPTS[1] 48 426 and the end of the
# text, PROMPTS[2] 135 169 51 37 192 426 and then 132 over and over.
_STOPS = (
    _stopped(PROMPTS[1], ignore_eos=False),
    _stopped(PROMPTS[0], ignore_eos=False),
    _stopped(PROMPTS[0], stop_token_ids=[31]),
    _stopped(PROMPTS[0], stop_token_ids=[52, 350, 510]),
    _stopped(PROMPTS[2], stop_token_ids=[132]),
    _stopped(PROMPTS[0], stop=["w0185"]),
    _stopped(PROMPTS[0], stop=["0 w003"]),
    _stopped(PROMPTS[0], stop=["w0185", "31 "], include_stop_str_in_output=True),
    _stopped(PROMPTS[2], stop=["w0132 w0132 w0133"]),
    _stopped(PROMPTS[0], max_tokens=1),
    _stopped(PROMPTS[2], max_tokens=9),
    _stopped(PROMPTS[1], ignore_eos=False, max_tokens=3),
    _stopped(PROMPTS[1], ignore_eos=False, max_tokens=2),
)
# Drafts are accepted beyond the end of this one.
_WITHIN = (_stopped(PROMPTS[2], stop=["w0132 w0132 w0132"]),)
_UNSTOPPED = tuple(_stopped(prompt) for prompt in PROMPTS)

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "blue"]},
        "ok": {"type": "boolean"},
    },
    "required": ["n", "colour", "ok"],
    "additionalProperties": False,
}
_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": _SCHEMA},
    {"regex": "[a-f]{3,5}-[0-9]{2,4}\\."},
    {"choice": ["yes", "no", "perhaps 07"]},
    {"grammar": 'root ::= "(" inner ")"\ninner ::= [x-z] | "(" inner ")"'},
)


def _structured(**sampling: Any) -> tuple[Request, ...]:
    """A request per grammar, and plain ones before and between them."""
    common = {"max_tokens": 48, "detokenize": True, **sampling}
    plain = {"max_tokens": 12, "ignore_eos": True, **sampling}
    return (
        *(Request(PROMPTS[i], tuple({**plain, "seed": i}.items())) for i in range(2)),
        *(
            Request(PROMPTS[i % 4], tuple({**common, "seed": 7 + i, "structured": grammar}.items()))
            for i, grammar in enumerate(_GRAMMARS)
        ),
        *(Request(p, tuple({**plain, "seed": 3}.items())) for p in ECHOES[:2]),
    )


_GRAMMAR_ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": False,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}

# Four tokens that follow each other in every way, so that looking back always finds a draft.
_FOUR = (61, 62, 63, 64)
_TURNS = (61, 62, 63, 64, 61, 63, 62, 64, 62, 61, 64, 63)
_MANY: dict[str, Any] = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 272,
    "max_logprobs": -1,
}


def _draws(prompt: tuple[int, ...], number: int, **sampling: Any) -> tuple[Request, ...]:
    """The same request with many seeds."""
    common = {"ignore_eos": True, **sampling}
    return tuple(Request(prompt, tuple({**common, "seed": i}.items())) for i in range(number))


_OF_FOUR: dict[str, Any] = {"allowed_token_ids": list(_FOUR), "temperature": 2.0, "max_tokens": 4}
_OF_THREE: dict[str, Any] = {"top_k": 3, "temperature": 1.0, "max_tokens": 4}


def _unseeded_draws(prompt: tuple[int, ...], number: int, **sampling: Any) -> tuple[Request, ...]:
    """The same request many times over, by the engine's own seed."""
    return requests((prompt,) * number, **{"ignore_eos": True, **sampling})


# Drawn, in an engine with drafts: what vLLM refuses beside speculation (min-p, bias) is left out.
_SPECULATED = tuple(
    replace(request, prompt=ECHOES[number % len(ECHOES)])
    for number, request in enumerate(
        (*_TEMPERATURES, *_CUTS, *_each(*_PENALTIES), *_each(*_RESTRICTIONS[1:3]))
    )
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="sampling-parameters",
        claim="every sampling parameter alone, and beside requests that use others",
        recipe="tiny-llama",
        engine=_PROCESSED,
        steps=(
            Step("mixed", _MIXED, against=SAMPLER),
            Step("alone", _without_logprobs(_MIXED), call="singly", same_as=("mixed",)),
            Step("prompts", requests(PROMPTS, prompt_logprobs=5, **GREEDY), against=PROMPT),
            Step("several", _with({**_SEVERAL, "seed": 5}, *PROMPTS[:2]), against=COMPLETIONS),
            Step(
                "several again",
                (*_with({**_SEVERAL, "seed": 5}, *PROMPTS[:2]), *_unseeded(3)),
                same_as=("several",),
            ),
            Step("several unseeded", _with(_SEVERAL, *PROMPTS[:2]), against=COMPLETIONS),
        ),
    ),
    Scenario(
        name="sampling-raw",
        claim="log-probabilities as the model has them, whatever the sampling parameters",
        recipe="tiny-llama",
        engine=_WORDS,
        variants={"": {}, "processed": _PROCESSED},
        nightly=True,
        steps=(Step("mixed", _MIXED, against=SAMPLER),),
    ),
    Scenario(
        name="sampling-in-parts",
        claim="seeded requests whose prompts are computed in parts, or whole",
        recipe="tiny-llama",
        variants={"": {"max_num_batched_tokens": 24}, "whole": {}},
        steps=(
            Step("drawn", _seeded(PROMPTS[2], PROMPTS[3], PROMPTS[2][5:], PROMPTS[2])),
            Step("again", _seeded(PROMPTS[2], PROMPTS[3]), same_as=("drawn",)),
        ),
    ),
    Scenario(
        name="sampling-speculation",
        claim="penalties and restrictions, greedy, with and without drafts",
        recipe="tiny-llama",
        engine=_PROCESSED,
        speculative=_NGRAM,
        environment=_ONE_THREAD,
        # Without speculation first: n-gram speculation imports numba, after which vLLM makes no
        # other engine (docs/findings/cpu-numba-imported-first.md).
        variants={"plain": {"speculative_config": None}, "": {}},
        nightly=True,
        steps=(
            Step("changed", _CHANGED, against=SAMPLER),
            Step("alone", _without_logprobs(_CHANGED), call="singly", same_as=("changed",)),
        ),
    ),
    Scenario(
        name="sampling-drafts",
        claim="sampling parameters, drawn, where drafts are looked up in the text",
        recipe="tiny-llama",
        engine=_PROCESSED,
        speculative=_NGRAM,
        environment=_ONE_THREAD,
        steps=(Step("mixed", _SPECULATED, against=SAMPLER),),
    ),
    Scenario(
        name="stops",
        claim="requests that end at a token, at a text, at the end of the text, or at their limit",
        recipe="tiny-llama",
        engine=_WORDS,
        speculative=_NGRAM,
        environment=_ONE_THREAD,
        variants={"plain": {"speculative_config": None}, "": {}},
        steps=(
            Step("whole", _UNSTOPPED, against=TRANSFORMERS),
            Step("stopped", _STOPS, against=STOPS),
            Step("alone", _STOPS, call="singly", against=STOPS, same_as=("stopped",)),
            Step("within drafts", _WITHIN, against=STOPS),
        ),
    ),
    Scenario(
        name="grammars",
        claim="structured output, greedy, beside plain requests, with and without drafts",
        recipe="tiny-llama-bytes",
        engine=_GRAMMAR_ENGINE,
        speculative=_NGRAM,
        environment=_ONE_THREAD,
        variants={"plain": {"speculative_config": None}, "": {}},
        nightly=True,
        steps=(
            Step("mixed", _structured(temperature=0.0), against=GRAMMAR),
            Step("alone", _structured(temperature=0.0), call="singly", same_as=("mixed",)),
        ),
    ),
    Scenario(
        name="grammars-drawn",
        claim="structured output, drawn with seeds, beside plain requests",
        recipe="tiny-llama-bytes",
        engine=_GRAMMAR_ENGINE,
        steps=(
            Step("mixed", _structured(temperature=1.2), against=GRAMMAR),
            Step("alone", _structured(temperature=1.2), call="singly", same_as=("mixed",)),
        ),
    ),
    Scenario(
        name="draws",
        claim="thousands of draws, seeded and not, come as often as they should",
        recipe="tiny-llama",
        engine=_MANY,
        steps=(
            Step("four", _draws(_TURNS, 1500, **_OF_FOUR), against=DRAWS),
            Step("all", _draws(PROMPTS[3], 1500, temperature=1.0, max_tokens=1), against=DRAWS),
            Step("unseeded", _unseeded_draws(_TURNS, 1500, **_OF_FOUR), against=DRAWS),
        ),
    ),
    Scenario(
        name="draws-ngram",
        claim="as often as they should where drafts are looked up in the text",
        recipe="tiny-llama",
        engine=_MANY,
        speculative=_NGRAM,
        environment=_ONE_THREAD,
        steps=(Step("four", _draws(_TURNS, 1500, **_OF_FOUR), against=DRAWS),),
    ),
    Scenario(
        name="draws-draft",
        claim="as often as they should where a draft model proposes its likeliest token",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        engine=_MANY,
        speculative=_DRAFT,
        nightly=True,
        steps=(Step("top-k", _draws(PROMPTS[3], 1500, **_OF_THREE), against=DRAWS),),
    ),
    Scenario(
        name="draws-draft-drawn",
        claim="as often as they should where a draft model draws what it proposes",
        recipe="tiny-llama",
        draft="tiny-llama-draft",
        engine=_MANY,
        speculative={**_DRAFT, "draft_sample_method": "probabilistic"},
        nightly=True,
        steps=(Step("top-k", _draws(PROMPTS[3], 1500, **_OF_THREE), against=DRAWS),),
    ),
)
