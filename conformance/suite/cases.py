"""Checks' parameters, and what several modules of checks say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conformance.scenarios.observation import Generation
from conformance.scenarios.scenario import Scenario


def of_scenario(scenario: Scenario, *values: str) -> Any:
    """A parameter set of a check: a scenario's name, and what else the check is about."""
    marks = [pytest.mark.real] if scenario.name == "real" else []
    if scenario.nightly:
        marks.append(pytest.mark.nightly)
    return pytest.param(scenario.name, *values, marks=marks)


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
