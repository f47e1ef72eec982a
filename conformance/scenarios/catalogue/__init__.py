"""The scenarios: what is run, for every subject alike. A module per kind of feature."""

from __future__ import annotations

from conformance.scenarios.catalogue import (
    adapters,
    basics,
    models,
    pooling,
    precision,
    sampling,
    scheduling,
    speculation,
)
from conformance.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *basics.SCENARIOS,
    *sampling.SCENARIOS,
    *scheduling.SCENARIOS,
    *speculation.SCENARIOS,
    *adapters.SCENARIOS,
    *models.SCENARIOS,
    *precision.SCENARIOS,
    *pooling.SCENARIOS,
)

SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}
"""Every scenario by its name."""

_ENTRIES = {
    "engine": "conformance.scenarios.engine:run",
    "bench": "conformance.scenarios.commands:bench",
    "serve": "conformance.scenarios.commands:serve",
}


def entry_of(scenario: Scenario) -> str:
    """Return the function that runs a scenario in a child process."""
    return _ENTRIES[scenario.kind]
