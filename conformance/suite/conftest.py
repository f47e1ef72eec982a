"""What the checks have in common: the run they look at, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.scenarios import triton_backend
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs
from conformance.scenarios.scenario import Scenario
from conformance.scenarios.smollm2 import PackageMissing
from conformance.suite.cases import V2_RUNNERS, stopped
from conformance.target import Subject, installed_versions


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """The scenario of a check: named by its marker, or by its parameter."""
    marker = request.node.get_closest_marker("scenario")
    scenario = SCENARIO[marker.args[0] if marker else request.param]
    if not scenario.exists_in(installed_versions().vllm or ""):
        pytest.skip(f"vLLM {scenario.versions} has it")
    return scenario


@pytest.fixture
def run(runs: Runs, subject: Subject, scenario: Scenario) -> ChildRun:
    """The scenario's run for the subject, however it ended; not where vLLM refuses it."""
    if subject.name == "bare" and scenario.in_worker_processes:
        pytest.skip("bare fails where its worker is made, in whichever process that is")
    try:
        run = runs.observe(subject, scenario)
    except PackageMissing as error:
        pytest.skip(f"not checked: {error}")
    refusal = scenario.refusal(installed_versions().vllm or "", subject.name)
    if refusal is not None and refusal.message in (run.failure or ""):
        pytest.skip(f"vLLM refuses it: {refusal.message}")
    return run


@pytest.fixture
def completed(run: ChildRun) -> ChildRun:
    """The run, if it completed; a run that did not fails one check, and leaves the others open."""
    if run.failure is not None:
        pytest.skip("not checked: the run did not complete")
    return run


@pytest.fixture
def v2_run(runs: Runs, subject: Subject, scenario: Scenario) -> ChildRun:
    """The scenario's run under the subject's V2 runner, however it ended."""
    if subject.name not in V2_RUNNERS:
        pytest.skip(f"{subject.name} has no V2 runner")
    if (problem := triton_backend.missing()) is not None:
        pytest.skip(f"not checked: {problem}")
    try:
        return runs.observe(subject, scenario, generation="v2")
    except PackageMissing as error:
        pytest.skip(f"not checked: {error}")


@pytest.fixture
def completed_on_v2(v2_run: ChildRun) -> ChildRun:
    """The V2 run, if it completed."""
    if (reason := stopped(v2_run)) is not None:
        pytest.skip(f"the V2 runner cannot run this here: {reason}")
    if v2_run.failure is not None:
        pytest.skip("not checked: the run did not complete")
    return v2_run


@pytest.fixture
def finding(subject: Subject) -> Callable[[str], Any]:
    """Fail a check with a text that can be read without its code."""

    def fail(text: str) -> None:
        pytest.fail(f"{subject.name}: {text}", pytrace=False)

    return fail
