"""Caching, chunking, preemption, aborts, long prompts, and engines that run for long."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
