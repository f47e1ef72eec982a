"""Checks' parameters, and what several modules of checks say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.scenario import Scenario

V2_RUNNERS = {
    "upstream": "vllm.v1.worker.cpu.model_runner.CPUModelRunner",
    "ours": "runner_under_test.model_runner_v2.CPUModelRunner",
}
"""The subjects that have a V2 runner, and its class."""

_V2_BY_DEFAULT = {"greedy", "spec-draft", "streams", "two-engines"}
"""Interpreted kernels take long: the others run on V2 nightly."""

_REFUSED = re.compile(r"Model Runner V2 does not yet support[^\[\n]*[^\[\s]")


def of_scenario(scenario: Scenario, *values: str) -> Any:
    """A parameter set of a check: a scenario's name, and what else the check is about."""
    marks = [pytest.mark.real] if scenario.name == "real" else []
    if scenario.nightly:
        marks.append(pytest.mark.nightly)
    return pytest.param(scenario.name, *values, marks=marks)


def of_v2_scenario(scenario: Scenario, *values: str) -> Any:
    """As `of_scenario`, for a check of the V2 runner's run."""
    parameters = of_scenario(scenario, *values)
    if scenario.nightly or scenario.name in _V2_BY_DEFAULT:
        return parameters
    return pytest.param(*parameters.values, marks=[*parameters.marks, pytest.mark.nightly])


def stopped(run: ChildRun) -> str | None:
    """Say why a V2 run had to end early, on account of this vLLM or Triton; None if it had not."""
    for raised in (phase.raised for phase in run.phases if phase.raised):
        if raised.type == "InterpreterError":
            return f"Triton's interpreter stops at one of vLLM's kernels: {raised.message}"
        if refused := _REFUSED.search(raised.message):
            return f"vLLM refuses it: {refused[0]}"
    return None


def first_difference(
    seen: tuple[str, Sequence[Generation]], wanted: tuple[str, Sequence[Generation]]
) -> str | None:
    """Say where two steps' requests, in order, got different tokens; None if nowhere.

    Requests that only one of the two has are left out; a step without any is an error.
    """
    pairs = list(zip(seen[1], wanted[1], strict=False))
    if not pairs:
        raise ValueError(f"{seen[0]} and {wanted[0]} have no request in common")
    for number, (one, other) in enumerate(pairs):
        ours, theirs = (
            [completion.tokens for completion in generation.completions] or [generation.tokens]
            for generation in (one, other)
        )
        if ours != theirs:
            return f"request {number} got {ours} in {seen[0]}, and {theirs} in {wanted[0]}"
    return None
