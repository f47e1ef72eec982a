"""Caching, chunking, preemption, aborts, long prompts, and engines that run for long."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.catalogue.prompts import ECHOES, GREEDY, PROMPTS
from conformance.scenarios.scenario import TRANSFORMERS, Request, Scenario, Step, requests

_TOP: dict[str, Any] = {**GREEDY, "logprobs": 5}
_DRAFT: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 3}


def _words(seed: int, count: int) -> tuple[int, ...]:
    """So many token ids that do not repeat soon, another sequence for each seed."""
    return tuple((13 * i * i + (seed + 5) * i + 31 * seed + 7) % 499 + 8 for i in range(count))


def _asking(prompt: tuple[int, ...], **sampling: Any) -> Request:
    return Request(prompt, tuple({**GREEDY, **sampling}.items()))


_SHARED = _words(1, 96)
# Three blocks of 32 in common, then something of their own; and one that has nothing in common.
_SHARING = tuple(_SHARED + _words(seed, length) for seed, length in ((2, 9), (3, 40), (4, 1)))
_CACHED = (*_SHARING, _words(5, 70))
_EXTENDED = (_CACHED[1] + _words(6, 50), _CACHED[3][:64] + _words(7, 8), _CACHED[3][:64])

_LONG = (_words(8, 200), _words(9, 61), _words(10, 5), _words(11, 130))

_CROWD = tuple(_words(seed, 40) for seed in (12, 13, 14, 15))
_SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 48, "ignore_eos": True}
# Each request another way of choosing: their states must outlast a preemption.
_CHOOSERS = (
    Request(_CROWD[0], tuple({**_SEEDED, "seed": 3}.items())),
    _asking(_CROWD[1], max_tokens=48, repetition_penalty=1.3),
    Request(_CROWD[2], tuple({**_SEEDED, "seed": 4}.items())),
    _asking(_CROWD[3], max_tokens=48, presence_penalty=1.0, frequency_penalty=0.5),
)

_COMING = (
    _asking(PROMPTS[0], max_tokens=24),
    _asking(PROMPTS[2], max_tokens=3),
    _asking(PROMPTS[1], max_tokens=12),
    _asking(ECHOES[0], max_tokens=1),
    _asking(PROMPTS[3], max_tokens=20),
    _asking(ECHOES[1], max_tokens=9),
)
# Neighbours that are sampled, and come before: they have a single outcome, drafts or no drafts.
_NEIGHBOURS = tuple(
    _asking(_words(seed, 11), max_tokens=6, temperature=0.8, top_p=1e-6, seed=seed)
    for seed in (20, 21, 22)
)


def _abort(name: str, stay: tuple[Request, ...], go: tuple[Request, ...], after: int) -> Step:
    return Step(
        name,
        stay + go,
        call="abort",
        options=(("aborted", len(go)), ("after", after)),
        same_as=("alone",),
    )


_STAYING = requests(PROMPTS[:1] + PROMPTS[2:3], **GREEDY)


def _aborts(name: str, claim: str, **more: Any) -> Scenario:
    """Aborts in every state that a request can be in."""
    return Scenario(
        name=name,
        claim=claim,
        recipe="tiny-llama",
        engine={"block_size": 32, "max_num_seqs": 3, "max_num_batched_tokens": 64},
        steps=(
            Step("alone", _STAYING, against=TRANSFORMERS),
            _abort("decoding", _STAYING, requests(PROMPTS[3:], **GREEDY), 3),
            _abort("in the prompt", _STAYING, requests(_LONG[:1], **GREEDY), 2),
            _abort("waiting", _STAYING, requests(_LONG[2:3] * 4, **GREEDY), 1),
            _abort("unseen", _STAYING, requests(ECHOES, **GREEDY), 0),
            Step("afterwards", _STAYING, same_as=("alone",)),
        ),
        **more,
    )


def _joining(name: str, claim: str, **more: Any) -> Scenario:
    """Requests of several lengths that come one by one, alone and after sampled ones."""
    return Scenario(
        name=name,
        claim=claim,
        recipe="tiny-llama",
        engine={"max_num_seqs": 4},
        steps=(
            Step("together", _COMING, against=TRANSFORMERS),
            Step(
                "one by one",
                _COMING,
                call="staggered",
                options=(("every", 2),),
                same_as=("together",),
            ),
            Step(
                "among others",
                (*_COMING, *_NEIGHBOURS),
                call="staggered",
                options=(("every", 1), ("leading", len(_NEIGHBOURS))),
                same_as=("together",),
            ),
        ),
        **more,
    )


def _endurance(name: str, claim: str, **more: Any) -> Scenario:
    """The same requests two hundred times over; what is made once is made in the first sixty."""
    return Scenario(
        name=name,
        claim=claim,
        recipe="tiny-llama",
        steps=(
            Step("first", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),
            Step(
                "rounds",
                requests(PROMPTS, **GREEDY),
                call="endure",
                options=(("rounds", 200), ("settled", 60)),
                same_as=("first",),
            ),
        ),
        limit=600.0,
        nightly=True,
        **more,
    )


SCENARIOS = (
    Scenario(
        name="prefix-cache",
        claim="prompts that begin alike, with the prefix cache and without; then the same again",
        recipe="tiny-llama",
        engine={"block_size": 32},
        variants={
            "": {"enable_prefix_caching": True},
            "off": {"enable_prefix_caching": False},
        },
        steps=(
            Step("cold", requests(_CACHED, **_TOP), against=TRANSFORMERS),
            Step("warm", requests(_CACHED, **_TOP), against=TRANSFORMERS, same_as=("cold",)),
            Step("extended", requests(_EXTENDED, **_TOP), against=TRANSFORMERS),
        ),
    ),
    Scenario(
        name="chunked-prefill",
        claim="prompts computed 24 tokens at a time, among requests that decode, or at once",
        recipe="tiny-llama",
        engine={"block_size": 32, "enable_prefix_caching": False},
        variants={"": {"max_num_batched_tokens": 24}, "whole": {"max_num_batched_tokens": 512}},
        steps=(
            Step("batch", requests(_LONG, **_TOP), against=TRANSFORMERS),
            Step(
                "joining",
                requests(_LONG, **_TOP),
                call="staggered",
                options=(("every", 2),),
                same_as=("batch",),
            ),
        ),
    ),
    Scenario(
        name="preemption",
        claim="requests that outgrow a small KV cache are put off, and go on as if they were not",
        recipe="tiny-llama",
        engine={"block_size": 32, "max_model_len": 128},
        variants={
            "": {"num_gpu_blocks_override": 9, "enable_prefix_caching": True},
            "uncached": {"num_gpu_blocks_override": 9, "enable_prefix_caching": False},
            "roomy": {"num_gpu_blocks_override": 64},
        },
        steps=(
            Step(
                "greedy",
                requests(_CROWD, **{**GREEDY, "max_tokens": 48}),
                against=TRANSFORMERS,
            ),
            Step("choosers", _CHOOSERS),
        ),
    ),
    _aborts("aborts", "requests that end early leave the others alone, and nothing behind"),
    _aborts(
        "aborts-drafting",
        "requests that end early while drafts are made leave the others alone, and nothing behind",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
    ),
    _joining(
        "joining",
        "requests that join a running batch and leave it, whatever their neighbours do",
    ),
    _joining(
        "joining-drafting",
        "requests that join a batch in which drafts are made and leave it, whatever their "
        "neighbours do",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
    ),
    Scenario(
        name="long-prompt",
        claim="prompts near the model's last position, in four chunks or at once",
        recipe="tiny-llama",
        engine={"block_size": 32, "max_model_len": 1024, "num_gpu_blocks_override": 72},
        variants={"": {"max_num_batched_tokens": 256}, "whole": {"max_num_batched_tokens": 2048}},
        steps=(
            Step(
                "long",
                requests((_words(16, 1000), _words(17, 777)), **GREEDY),
                against=TRANSFORMERS,
            ),
        ),
        nightly=True,
    ),
    Scenario(
        name="async-scheduling",
        claim="asynchronous scheduling, which the CPU platform turns off without a word",
        recipe="tiny-llama",
        variants={"": {"async_scheduling": True}, "off": {"async_scheduling": False}},
        steps=(Step("batch", requests(PROMPTS, **GREEDY), against=TRANSFORMERS),),
    ),
    _endurance("endurance", "an engine that takes thousands of steps holds no more than before"),
    _endurance(
        "endurance-drafting",
        "an engine that takes thousands of steps and drafts holds no more than before",
        draft="tiny-llama-draft",
        speculative=_DRAFT,
    ),
)
