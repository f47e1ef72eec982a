"""The V2 runner from start to exit, its kernels in Triton's interpreter, against transformers.

Of the subjects, upstream and ours have a V2 runner. A scenario that vLLM refuses on V2, or at one
of whose kernels Triton's interpreter stops, is not applicable, and says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs, generations
from conformance.scenarios.scenario import TRANSFORMERS, Scenario
from conformance.suite.cases import V2_RUNNERS, first_difference, of_v2_scenario, stopped
from conformance.target import Subject

_POSSIBLE = [s for s in SCENARIOS if s.on_v2 and not s.in_worker_processes]
_EVERY = [of_v2_scenario(s) for s in _POSSIBLE]
_RUNS = [(s, step, name) for s in _POSSIBLE for step, name in s.runs]
_COMPARED = [of_v2_scenario(s, name) for s, step, name in _RUNS if step.against == TRANSFORMERS]
_ALIKE = [of_v2_scenario(s, name) for s, step, name in _RUNS if step.same_as]


@pytest.mark.parametrize("scenario", _EVERY, indirect=True)
def test_runs_from_start_to_exit(
    v2_run: ChildRun, subject: Subject, finding: Callable[[str], None]
) -> None:
    """No phase raises, the process exits by itself, and the subject's own V2 runner was built."""
    if (reason := stopped(v2_run)) is not None:
        pytest.skip(f"the V2 runner cannot run this here: {reason}")
    if v2_run.failure is not None:
        finding(v2_run.failure)
    built = {runner for name, pairs in _results(v2_run, "built") for _, runner in pairs}
    if built != {V2_RUNNERS[subject.name]}:
        finding(f"{', '.join(sorted(built))} was built, and not {V2_RUNNERS[subject.name]}")


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _COMPARED, indirect=["scenario"])
def test_tokens_agree_with_transformers(
    completed_on_v2: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Tokens, and log-probabilities where they were asked for, are the reference's."""
    judgements = runs.judge(
        scenario, step, generations(completed_on_v2, step), top=scenario.step(step).logprobs
    )
    wrong = [
        f"request {number}: {verdict}"
        for number, judgement in enumerate(judgements)
        for verdict in (judgement.tokens, judgement.logprobs)
        if verdict is not None and not verdict.conforms
    ]
    if wrong:
        finding(f"{scenario.name}, {step}: {scenario.claim}\n  " + "\n  ".join(wrong))


@pytest.mark.held_against("the same requests otherwise")
@pytest.mark.parametrize(("scenario", "step"), _ALIKE, indirect=["scenario"])
def test_requests_get_the_same_tokens_again(
    completed_on_v2: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Alone or in a batch, once or again, whatever the neighbours: a request gets the same."""
    suffix = step.removeprefix(scenario.step(step).name)
    for other in scenario.step(step).same_as:
        difference = first_difference(
            (step, generations(completed_on_v2, step)),
            (other, generations(completed_on_v2, other + suffix)),
        )
        if difference:
            finding(f"{scenario.name}: {difference}")


@pytest.mark.parametrize("scenario", ["greedy", "spec-draft", "two-engines"], indirect=True)
def test_shutdown_frees_the_weights_and_puts_every_patched_name_back(
    completed_on_v2: ChildRun, finding: Callable[[str], None]
) -> None:
    """No tensor of the model or of its KV cache is alive, and no name of torch's is rebound."""
    alive = [
        f"{kind}: {count['alive']} of {count['had']} tensors"
        for _, kinds in _results(completed_on_v2, "tensors_left")
        for kind, count in kinds.items()
        if count["alive"]
    ]
    if alive:
        finding(f"alive after the shutdown: {'; '.join(alive)}")
    if left := completed_on_v2.results["patches_left"]:
        finding(f"still another object: {', '.join(left)}")
    if threads := completed_on_v2.results["threads_left"]:
        finding(f"threads are alive: {', '.join(threads)}")


def _results(run: ChildRun, name: str) -> list[tuple[str, Any]]:
    """A result of each of the run's engines."""
    return [(key, value) for key, value in run.results.items() if key.partition("#")[0] == name]
