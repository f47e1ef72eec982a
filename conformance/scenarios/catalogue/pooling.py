"""Embeddings, classification, scores."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
