"""LoRA adapters: each request gets what the model gives that its own adapter makes.

The model is written out with the adapter's products added to its weights, and transformers
computes it in float64: what the reference says has nothing to do with how adapters are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from conformance.references.bounds import bound
from conformance.references.compare import Judgement, Observed, judge
from conformance.references.reference import ForcedQuery, GreedyQuery, SequenceReference
from conformance.scenarios.adapters import merged
from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.runs import Runs, generations
from conformance.scenarios.scenario import Request, Scenario
from conformance.suite.cases import of_scenario

_WITH = [s for s in SCENARIOS if s.adapters]
_STEPS = [
    of_scenario(s, name)
    for s in _WITH
    for step, name in s.runs
    if any(request.adapter for request in step.requests)
]


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _STEPS, indirect=["scenario"])
def test_each_request_gets_what_the_model_of_its_adapter_gives(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Tokens, and log-probabilities where asked for, are those of base plus adapter."""
    wrong = []
    for number, (request, generation) in enumerate(
        zip(scenario.step(step).requests, generations(completed, step), strict=True)
    ):
        judgement = _judged(runs, scenario.recipe, request, generation)
        verdicts = [judgement.tokens]
        if request.logprobs is not None:
            if judgement.logprobs is None:
                wrong.append(f"request {number}: no log-probabilities were returned")
            else:
                verdicts.append(judgement.logprobs)
        wrong += [
            f"request {number}, with {request.adapter or 'no adapter'}: {verdict}"
            for verdict in verdicts
            if not verdict.conforms
        ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("the same requests otherwise")
@pytest.mark.scenario("lora")
def test_another_adapter_gives_other_tokens(
    completed: ChildRun, scenario: Scenario, finding: Callable[[str], None]
) -> None:
    """The adapters are strong enough to be told apart by tokens, and so is having none."""
    seen: dict[tuple[int, ...], dict[tuple[int, ...], str | None]] = {}
    for request, generation in zip(
        scenario.step("mixed").requests, generations(completed, "mixed"), strict=True
    ):
        others = seen.setdefault(request.prompt, {})
        if generation.tokens in others:
            finding(
                f"a prompt got {generation.tokens} with {request.adapter or 'no adapter'} and "
                f"with {others[generation.tokens] or 'no adapter'}"
            )
        others[generation.tokens] = request.adapter


def _judged(runs: Runs, base: str, request: Request, generation: Generation) -> Judgement:
    recipe = merged(request.adapter) if request.adapter else base

    def ask(queries: Sequence[ForcedQuery]) -> Sequence[SequenceReference]:
        return runs.reference(recipe, queries)

    (judgement,) = judge(
        [Observed(generation.tokens, generation.logprobs or None)],
        runs.reference(recipe, [GreedyQuery(request.prompt, request.max_tokens)]),
        ask,
        token_bound=bound("margin", "float32").value,
        logprob_bound=bound("logprob", "float32").value,
        top=request.logprobs,
    )
    return judgement
