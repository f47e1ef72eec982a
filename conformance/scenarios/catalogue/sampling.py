"""Sampling parameters, penalties, log-probabilities, stops, and structured output."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
