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
from conformance.scenarios.scenario import Scenario
from conformance.target import RUNNER_WORKER, Subject

_REAL = pytest.mark.real
_EVERY = [pytest.param(s.name, marks=_REAL if s.name == "real" else ()) for s in SCENARIOS]
_COMPARED = [
    ("greedy", "single"),
    ("greedy", "batch"),
    ("sampling", "top-k-1"),
    ("spec-ngram", "greedy"),
    ("spec-ngram", "nucleus-of-1"),
    ("spec-top-k", "top-k-1"),
    ("spec-draft", "greedy"),
    ("spec-draft", "nucleus-of-1"),
    ("streams", "before"),
    ("streams", "inside"),
    ("two-engines", "batch"),
    ("two-engines", "batch#1"),
    ("tensor-parallel", "batch"),
    ("real", "batch"),
]
_WITH_LOGPROBS = [("greedy", "single"), ("greedy", "batch"), ("real", "batch")]


def _cases(pairs: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(*pair, marks=_REAL if pair[0] == "real" else ()) for pair in pairs]


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


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _cases(_COMPARED), indirect=["scenario"])
def test_tokens_agree_with_transformers(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Greedy decoding, and sampling that leaves one candidate, give the reference's tokens."""
    judgements = runs.judge(scenario, step.partition("#")[0], generations(completed, step))
    wrong = [
        f"request {number}: {judgement.tokens}"
        for number, judgement in enumerate(judgements)
        if not judgement.tokens.conforms
    ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _cases(_WITH_LOGPROBS), indirect=["scenario"])
def test_logprobs_agree_with_transformers(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Every reported log-probability is within the measured bound of the reference's."""
    judgements = runs.judge(scenario, step, generations(completed, step), top=5)
    wrong = [
        f"request {number}: {judgement.logprobs or 'no log-probabilities were returned'}"
        for number, judgement in enumerate(judgements)
        if judgement.logprobs is None or not judgement.logprobs.conforms
    ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("the request alone")
@pytest.mark.scenario("greedy")
def test_a_batch_gives_a_request_what_it_gets_alone(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """The first request's tokens are the same in a batch of four."""
    alone, batched = generations(completed, "single")[0], generations(completed, "batch")[0]
    if alone.tokens != batched.tokens:
        finding(f"alone {alone.tokens}, in a batch {batched.tokens}")


@pytest.mark.held_against("the same request again")
@pytest.mark.scenario("sampling")
def test_a_seeded_request_repeats(completed: ChildRun, finding: Callable[[str], None]) -> None:
    """The same seed gives the same tokens a second time, and another seed gives others."""
    first, again = generations(completed, "seeded"), generations(completed, "again")
    other = generations(completed, "other seed")[0]
    for number, (one, two) in enumerate(zip(first, again, strict=True)):
        if one.tokens != two.tokens:
            finding(f"request {number}: first {one.tokens}, again {two.tokens}")
    if other.tokens == first[0].tokens:
        finding(f"two seeds gave the same tokens, {other.tokens}")


@pytest.mark.held_against("the request alone")
@pytest.mark.scenario("sampling")
def test_a_seeded_request_does_not_depend_on_its_neighbours(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """The same seed gives the same tokens without the neighbours."""
    among, alone = generations(completed, "seeded")[0], generations(completed, "alone")[0]
    if among.tokens != alone.tokens:
        finding(f"among others {among.tokens}, alone {alone.tokens}")


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
