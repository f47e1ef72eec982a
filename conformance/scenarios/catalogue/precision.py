"""bfloat16, float16, and compiled models."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.catalogue.prompts import GREEDY, PROMPTS
from conformance.scenarios.scenario import TRANSFORMERS, Scenario, Step, requests

_BATCH = Step("batch", requests(PROMPTS, logprobs=5, **GREEDY), against=TRANSFORMERS)


def _in(dtype: str, **more: Any) -> Scenario:
    return Scenario(
        name=f"precision-{dtype}",
        claim=f"greedy decoding in {dtype}, of weights that every precision holds",
        recipe="tiny-llama-grained",
        engine={"dtype": dtype},
        steps=(_BATCH,),
        # Not measured there.
        on_v2=False,
        **more,
    )


SCENARIOS: tuple[Scenario, ...] = (
    _in("float32", nightly=True),
    _in("bfloat16"),
    _in("float16"),
    Scenario(
        name="compiled",
        claim="a compiled model, greedy with logprobs",
        recipe="tiny-llama",
        engine={"enforce_eager": False},
        steps=(_BATCH,),
        limit=400.0,
        # Compilation takes longer than everything else.
        nightly=True,
        on_v2=False,
    ),
)
