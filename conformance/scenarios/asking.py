"""Which questions the scenarios put to a reference, and their recording."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from conformance.references.reference import GreedyQuery
from conformance.references.store import Record, Store
from conformance.references.transformers_reference import compute
from conformance.scenarios.adapters import merged
from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.checkpoints import checkpoint
from conformance.scenarios.scenario import TRANSFORMERS, Scenario, Step
from conformance.target import WrongUse


def greedy_queries(step: Step) -> list[GreedyQuery]:
    """The queries that a step's requests are, in order."""
    return [GreedyQuery(request.prompt, request.max_tokens) for request in step.requests]


def asked_of_transformers() -> dict[str, tuple[GreedyQuery, ...]]:
    """By recipe, every query that a scenario is held against transformers with; each once."""
    queries: dict[str, dict[GreedyQuery, None]] = {}
    for scenario in SCENARIOS:
        for step in _compared(scenario):
            asked = queries.setdefault(scenario.recipe, {})
            asked.update(dict.fromkeys(greedy_queries(step)))
        for request in (request for step in scenario.steps for request in step.requests):
            if request.adapter is not None:
                asked = queries.setdefault(merged(request.adapter), {})
                asked[GreedyQuery(request.prompt, request.max_tokens)] = None
    return {recipe: tuple(asked) for recipe, asked in queries.items()}


def record_transformers(
    recipes: tuple[str, ...], store: Store, cache: Path, say: Callable[[str], None]
) -> list[Path]:
    """Ask transformers for every recipe, or those named, and write down what it answers.

    ``cache`` is where checkpoints are made; ``say`` is told before each recipe, which takes
    seconds. What is recorded is float64 on a CPU, and says so.

    Raises:
        WrongUse: no scenario asks about a recipe of that name, or the store cannot be written.
    """
    asked = asked_of_transformers()
    if unknown := sorted(set(recipes) - set(asked)):
        raise WrongUse(
            f"No scenario is held against transformers on {', '.join(unknown)}: "
            f"name one of {', '.join(sorted(asked))}."
        )
    written = []
    for name in recipes or sorted(asked):
        say(f"{name}: {len(asked[name])} requests")
        record = Record(
            references=compute(checkpoint(name, cache / "models"), asked[name]),
            recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
            command=f"vllm-conformance record --source transformers --recipe {name}",
        )
        written.append(store.save(record))
    return written


def _compared(scenario: Scenario) -> list[Step]:
    return [step for step in scenario.steps if step.against == TRANSFORMERS]
