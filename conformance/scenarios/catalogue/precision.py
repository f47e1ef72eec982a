"""bfloat16, float16, and compiled models."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
