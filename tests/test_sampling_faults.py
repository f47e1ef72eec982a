"""Faults of sampling: the check of the suite that is there for each finds it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from conformance.references.expected import text_queries
from conformance.references.reference import ForcedQuery, Query, SequenceReference
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.catalogue.sampling import DRAWS, SAMPLER
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs, generations
from conformance.scenarios.scenario import Scenario, Step
from conformance.target import parse_subject

_LOGPROBS = "sampling::logprobs_of_the_whole_vocabulary_agree_with_a_float64_sampler"
_ALLOWED = "sampling::every_token_drawn_is_one_that_the_parameters_leave"
_PROMPT = "sampling::logprobs_of_a_prompt_agree_with_transformers"
_ENDS = "sampling::a_request_ends_where_it_must"
_GRAMMAR = "sampling::structured_output_is_in_the_language_of_its_grammar"
_SEVERAL = "sampling::several_completions_are_as_many_as_asked_for_and_distinct"
_SHARES = "sampling::texts_come_as_often_as_they_should"
_DIFFER = "sampling::draws_differ"
_ACCEPTED = "sampling::draws_come_from_drafts_of_which_some_are_accepted"
_SAME = "engine::requests_get_the_same_tokens_again"
_VARIED = "engine::engines_that_differ_in_their_arguments_give_the_same_tokens"


class Planted(NamedTuple):
    """A fault, the step whose requests name it, and the check that must find it."""

    fault: str
    engine: str
    """The scenario whose engine is made: once for all its faults, or once more for each suffix."""
    step: str
    check: str
    beside: str | None = None
    """A step of the same engine, without the fault, that the check looks at."""


FAULTS = (
    Planted("IgnoresTemperature", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("CutsOneTooMany", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("LeavesOneTooMany", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("DoesNotRenormalise", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("IgnoresTopP", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("IgnoresTopP", "sampling-parameters", "mixed", _ALLOWED),
    Planted("IgnoresMinP", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("SwapsPenalties", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("ForgetsThePrompt", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("LetsBadWordsThrough", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("LetsOthersThan", "sampling-parameters", "mixed", _ALLOWED),
    Planted("BiasesTheNextToken", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("StopsTooEarly", "sampling-parameters", "mixed", _LOGPROBS),
    Planted("ShiftsPromptLogprobs", "sampling-parameters", "prompts", _PROMPT),
    Planted("DrawsOneText", "sampling-parameters", "several", _SEVERAL),
    Planted("LeavesOneTooMany", "sampling-drafts", "mixed", _LOGPROBS),
    Planted("ForgetsDrafts", "sampling-drafts", "changed", _LOGPROBS),
    Planted("DraftsBadWords", "sampling-drafts", "changed", _LOGPROBS),
    Planted("StopsTooEarly", "sampling-drafts", "changed", _LOGPROBS),
    Planted("KeepsDiscardedDraws", "sampling-in-parts", "drawn", _VARIED),
    Planted("SharesASeed", "draws", "four", _SHARES),
    Planted("SharesASeed", "draws", "four", _DIFFER),
    Planted("LikesEvenTokens", "draws", "unseeded", _SHARES),
    Planted("LikesEvenTokens", "draws", "all", _SHARES),
    Planted("AcceptsAlways", "draws-ngram", "four", _SHARES),
    Planted("RecoversFromTheTarget", "draws-ngram", "four", _SHARES),
    Planted("AcceptsAlways", "draws-draft-drawn", "top-k", _SHARES),
    # What is accepted is counted by the engine.
    Planted("AcceptsAlways", "draws-draft-drawn", "top-k", _ACCEPTED),
    Planted("RecoversFromTheTarget", "draws-draft-drawn/2", "top-k", _SHARES),
    Planted("IgnoresStopTexts", "stops", "stopped", _ENDS),
    Planted("IgnoresStopTokens", "stops", "stopped", _ENDS),
    Planted("IgnoresGrammars", "grammars-drawn", "mixed", _GRAMMAR),
    Planted("MasksItsNeighbours", "grammars-drawn", "mixed", _SAME, beside="alone"),
)
_DRAWS = 600
"""Requests of a step at most: fewer than the suite's, as the faults are large."""


class _Found(Exception):
    """A check failed with a finding."""


def _finding(text: str) -> None:
    raise _Found(text)


def _named(planted: Planted) -> str:
    return f"{planted.step} with {planted.fault}"


def _with(step: Step, planted: Planted) -> Step:
    """A step whose requests name a fault."""
    given = ("extra_args", {"fault": planted.fault})
    faulty = tuple(replace(r, sampling=(*r.sampling, given)) for r in step.requests[:_DRAWS])
    return replace(step, name=_named(planted), requests=faulty)


def _engine(name: str) -> Scenario:
    """An engine that is given every fault of its own, one step after the other."""
    whole = SCENARIO[name.partition("/")[0]]
    steps = {step.name: step for step in whole.steps}
    steps.setdefault("changed", SCENARIO["sampling-speculation"].step("changed"))
    here = [planted for planted in FAULTS if planted.engine == name]
    given = [steps["whole"]] if "whole" in steps else []
    given += {_named(planted): _with(steps[planted.step], planted) for planted in here}.values()
    given += [
        replace(steps[planted.beside], same_as=(_named(planted),))
        for planted in here
        if planted.beside
    ]
    one = {"": next(iter(whole.variants.values()))}
    compared = any(planted.check == _VARIED for planted in here)
    return replace(
        whole,
        name=f"{name}, with faults",
        variants=whole.variants if compared else one,
        steps=tuple(given),
    )


class _Asked(Runs):
    """Runs of the faulty worker, and a reference that is asked each question once."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._answers: dict[tuple[str, Query], SequenceReference] = {}

    def reference(self, recipe: str, queries: Sequence[Query]) -> tuple[SequenceReference, ...]:
        asked = dict.fromkeys(query for query in queries if (recipe, query) not in self._answers)
        if asked:
            answers = super().reference(recipe, list(asked))
            self._answers |= {(recipe, q): a for q, a in zip(asked, answers, strict=True)}
        return tuple(self._answers[recipe, query] for query in queries)

    def ask_of(self, scenario: Scenario, run: ChildRun) -> None:
        """Ask what the checks of all steps will ask, at once: each question takes seconds."""
        asked: list[Query] = []
        for step in scenario.steps:
            pairs = list(zip(step.requests, generations(run, step.name), strict=True))
            if step.against == SAMPLER:
                asked += [ForcedQuery(r.prompt, got.tokens, logits=True) for r, got in pairs]
            if step.against == DRAWS:
                asked += text_queries(pairs[0][0].prompt, [got.tokens for _, got in pairs]).values()
        self.reference(scenario.recipe, asked)


@pytest.fixture(scope="module")
def runs(host: Host) -> _Asked:
    """Runs of the faulty worker, each made once."""
    return _Asked(host)


@pytest.mark.parametrize(
    "planted",
    FAULTS,
    ids=[f"{p.fault}-{p.engine}-{p.step}-{p.check.partition('::')[2]}" for p in FAULTS],
)
def test_a_faulty_runner_is_found(planted: Planted, runs: _Asked) -> None:
    scenario = _engine(planted.engine)
    run = runs.observe(parse_subject("tests.faults.sampling:Faulty"), scenario)
    assert run.failure is None, run.failure
    runs.ask_of(scenario, run)
    module, _, claim = planted.check.partition("::")
    function = getattr(importlib.import_module(f"conformance.suite.test_{module}"), f"test_{claim}")
    offered: dict[str, Any] = {
        "completed": run,
        "scenario": scenario,
        "step": planted.beside or _named(planted),
        "runs": runs,
        "finding": _finding,
    }
    with pytest.raises(_Found) as found:
        function(**{name: offered[name] for name in inspect.signature(function).parameters})
    assert len(str(found.value)) > 40, "a finding says what was seen"
