"""Families of models: attention shapes, position encodings, experts, mixers."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.scenarios.catalogue.prompts import GREEDY, PROMPTS
from conformance.scenarios.families import FAMILIES, Family
from conformance.scenarios.scenario import TRANSFORMERS, Refusal, Scenario, Step, requests

# The longest first: it is longer than any window.
_PROMPTS = (PROMPTS[2], PROMPTS[0], PROMPTS[1], PROMPTS[3])
_STEPS = (
    Step("alone", requests(_PROMPTS[:2], logprobs=5, **GREEDY), call="singly"),
    Step(
        "batch",
        requests(_PROMPTS, logprobs=5, **GREEDY),
        against=TRANSFORMERS,
        same_as=("alone",),
    ),
)

_BY_DEFAULT = frozenset(
    {
        "gemma2",  # windows, soft caps
        "falcon-alibi",
        "glm4",  # half of a head is rotated
        "heads-80",
        "qwen2-moe",
        "gpt-oss",  # sinks
        "deepseek-v2",  # latent attention, yarn
        "granite-hybrid",  # Mamba 2 beside attention
    }
)
"""One for each mechanism; the others run nightly."""

_REFUSALS: Mapping[str, tuple[Refusal, ...]] = {
    "qwen3-next": (Refusal("CPU GDN attention requires BF16."),),
}
"""By family, what vLLM says where it does not run it on a CPU."""

# vLLM chooses longrope's factors by the length that the engine allows, transformers by a text's.
# GPT-J's recipe has a rotary base that transformers does not read.
# Logits of some hundreds are off by 3e-4 in float32, and have no measured bound of their own.
_LEFT_OUT = frozenset({"tiny-deepseek-v3", "tiny-gptj", "tiny-large-logits", "tiny-phi3"})
"""Families that differ from transformers, and it is not known that vLLM is wrong."""


def _scenario(family: Family) -> Scenario:
    name = family.name.removeprefix("tiny-")
    return Scenario(
        name=f"model-{name}",
        claim=family.why,
        recipe=family.name,
        steps=_STEPS,
        nightly=name not in _BY_DEFAULT,
        refusals=_REFUSALS.get(name, ()),
        # vLLM compiles what a family needs and no other did.
        limit=300.0,
        # A family is the model's affair; what is the V2 runner's, the other scenarios ask.
        on_v2=False,
    )


SCENARIOS: tuple[Scenario, ...] = tuple(
    _scenario(family) for family in FAMILIES.values() if family.name not in _LEFT_OUT
)
