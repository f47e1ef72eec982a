"""Every speculative method that vLLM has, greedy and sampled."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
