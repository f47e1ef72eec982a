"""Families of models: attention shapes, position encodings, mixers, experts."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
