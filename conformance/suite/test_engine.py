"""Engines from start to exit: they run, agree with transformers in float64, and repeat.

The model is a tiny llama whose weights every machine computes alike. Where tokens are compared,
they are equal, or at the first difference a near-tie (see `conformance.references.compare`).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs, generations
from conformance.scenarios.scenario import TRANSFORMERS, Scenario
from conformance.suite.cases import first_difference, of_scenario
from conformance.target import RUNNER_WORKER, Subject, installed_versions

# A model is loaded from a package where the scenario is so marked.
_EVERY = [of_scenario(s) for s in SCENARIOS]
_RUNS = [(s, step, name) for s in SCENARIOS if s.kind == "engine" for step, name in s.runs]
_COMPARED = [of_scenario(s, name) for s, step, name in _RUNS if step.against == TRANSFORMERS]
_WITH_LOGPROBS = [
    of_scenario(s, name)
    for s, step, name in _RUNS
    if step.against == TRANSFORMERS and step.logprobs is not None
]
_ALIKE = [of_scenario(s, name) for s, step, name in _RUNS if step.same_as]
_VARIED = [of_scenario(s, step.name) for s in SCENARIOS if len(s.variants) > 1 for step in s.steps]


@pytest.mark.parametrize("scenario", _EVERY, indirect=True)
def test_runs_from_start_to_exit(
    run: ChildRun,
    subject: Subject,
    scenario: Scenario,
    record_property: Callable[[str, object], None],
    finding: Callable[[str], None],
) -> None:
    """No phase raises, and the process exits by itself with status 0."""
    observation = {"subject": subject.name, "scenario": scenario.name, **run.summary}
    record_property("observation", json.dumps(observation))
    if run.failure is not None:
        finding(run.failure)
    if refusal := scenario.refusal(installed_versions().vllm or "", subject.name):
        finding(f"vLLM was to refuse {scenario.name} ({refusal.message!r}), and ran it")


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _COMPARED, indirect=["scenario"])
def test_tokens_agree_with_transformers(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Greedy decoding, and sampling that leaves one candidate, give the reference's tokens."""
    judgements = runs.judge(scenario, step, generations(completed, step))
    wrong = [
        f"request {number}: {judgement.tokens}"
        for number, judgement in enumerate(judgements)
        if not judgement.tokens.conforms
    ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _WITH_LOGPROBS, indirect=["scenario"])
def test_logprobs_agree_with_transformers(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Every reported log-probability is within the measured bound of the reference's."""
    judgements = runs.judge(
        scenario, step, generations(completed, step), top=scenario.step(step).logprobs
    )
    wrong = [
        f"request {number}: {judgement.logprobs or 'no log-probabilities were returned'}"
        for number, judgement in enumerate(judgements)
        if judgement.logprobs is None or not judgement.logprobs.conforms
    ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("the same requests otherwise")
@pytest.mark.parametrize(("scenario", "step"), _ALIKE, indirect=["scenario"])
def test_requests_get_the_same_tokens_again(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Alone or in a batch, once or again, whatever the neighbours: a request gets the same."""
    suffix = step.removeprefix(scenario.step(step).name)
    for other in scenario.step(step).same_as:
        difference = first_difference(
            (step, generations(completed, step)),
            (other, generations(completed, other + suffix)),
        )
        if difference:
            finding(f"{scenario.name}: {difference}")


@pytest.mark.held_against("the same requests otherwise")
@pytest.mark.parametrize(("scenario", "step"), _VARIED, indirect=["scenario"])
def test_engines_that_differ_in_their_arguments_give_the_same_tokens(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Caches, chunks and speculation change when a token is computed, and not which."""
    names = [name for of, name in scenario.runs if of.name == step]
    for other in names[1:]:
        difference = first_difference(
            (other, generations(completed, other)), (names[0], generations(completed, names[0]))
        )
        if difference:
            finding(f"{scenario.name}: {difference}")


@pytest.mark.held_against("two seeds")
@pytest.mark.scenario("sampling")
def test_another_seed_gives_other_tokens(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """What a seeded request gets comes from its seed."""
    first, other = generations(completed, "seeded")[0], generations(completed, "other seed")[0]
    if other.tokens == first.tokens:
        finding(f"two seeds gave the same tokens, {other.tokens}")


@pytest.mark.parametrize("scenario", ["spec-ngram", "spec-draft"], indirect=True)
def test_drafts_are_made_and_some_are_accepted(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """Speculation took place: tokens were drafted, and not all and not none were accepted."""
    counts = completed.results["acceptance"]
    drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
    if not 0 < accepted < drafted:
        finding(f"{drafted:.0f} tokens were drafted and {accepted:.0f} accepted")


@pytest.mark.held_against("torch's documentation")
@pytest.mark.scenario("streams")
def test_the_current_stream_outlasts_the_engines_own_contexts(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """Inside the caller's stream context the engine opens its own, and leaves the caller's."""
    seen = completed.results["current_stream"]
    wrong = [name for name, holds in seen.items() if not holds]
    if wrong:
        finding(f"the current stream was not the context's when it was: {', '.join(wrong)}")


@pytest.mark.scenario("greedy")
def test_the_engine_computes_with_the_threads_it_was_started_with(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """torch has as many threads after serving as before the engine was made."""
    before, after = completed.results["torch_threads"]
    if before != after:
        finding(f"{before} threads before the engine, {after} after")


@pytest.mark.held_against("torch's documentation")
@pytest.mark.parametrize("scenario", ["greedy", "tensor-parallel"], indirect=True)
def test_the_memory_that_a_worker_sees_is_plausible(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """In the engine's own process and in spawned ones, 0 < free <= total, in bytes."""
    for free, total in completed.results["memory_info"]:
        if not 0 < free <= total:
            finding(f"torch.accelerator.get_memory_info() is ({free}, {total}) in a worker")


@pytest.mark.scenario("greedy")
def test_the_worker_and_the_runner_are_the_subjects(
    completed: ChildRun, subject: Subject, finding: Callable[[str], None]
) -> None:
    """What was built is what was asked for; ours brings none of vLLM's CPU patch modules along."""
    ((worker, runner),) = completed.results["built"]
    wanted = completed.results["asked"] or "vllm.v1.worker.cpu_worker.CPUWorker"
    built = runner if worker == RUNNER_WORKER else worker
    if built != wanted:
        finding(f"a {built} was built, and {wanted} was asked for")
    if subject.is_ours and completed.results["upstream_modules"]:
        finding(f"vLLM's own patches were imported: {completed.results['upstream_modules']}")
