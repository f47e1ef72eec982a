"""A session's runs: each scenario once per subject, its models and its reference once in all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.cache import FIXTURES
from conformance.references.bounds import bound
from conformance.references.compare import Judgement, Observed, judge
from conformance.references.reference import (
    ForcedQuery,
    Query,
    ReferenceSet,
    SequenceReference,
    query_to_json,
    reference_set_from_json,
    reference_set_to_json,
)
from conformance.references.store import Store
from conformance.references.transformers_reference import compute
from conformance.scenarios.asking import greedy_queries
from conformance.scenarios.catalogue import entry_of
from conformance.scenarios.checkpoints import checkpoint, checkpoint_hash
from conformance.scenarios.fault import FAULT_VARIABLE, require_planted_fault
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.scenario import TRANSFORMERS, Scenario
from conformance.target import Subject, installed_versions


class Runs:
    """Runs scenarios in a host's children and keeps what they showed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._runs: dict[tuple[str, str, str], ChildRun] = {}
        self._references: dict[str, ReferenceSet] = {}
        self._store = Store(FIXTURES / "references")

    def observe(
        self,
        subject: Subject,
        scenario: Scenario,
        *,
        generation: str = "v1",
        environment: dict[str, str] | None = None,
    ) -> ChildRun:
        """Return the run of a scenario, made once unless it has an environment of its own.

        ``generation`` is ``v1`` or ``v2``; of the subjects, upstream and ours have a V2 runner.

        Raises:
            HostError: that runner cannot run here.
        """
        key = (subject.name, scenario.name, generation)
        planted = require_planted_fault(os.environ.get(FAULT_VARIABLE))
        of_this = planted and key == (planted["subject"], planted["scenario"], "v1")
        fault = planted if of_this else None
        if environment is None and key in self._runs:
            return self._runs[key]
        arguments: dict[str, Any] = {
            "scenario": scenario.to_json(),
            "model": str(self.model(scenario.recipe)),
            "draft": str(self.model(scenario.draft)) if scenario.draft else None,
            "worker_cls": subject.worker_cls,
        }
        if scenario.adapters:
            arguments["adapters"] = {name: str(self.model(name)) for name in scenario.adapters}
        if fault is not None:
            arguments["fault"] = fault
        run = self.host.of(generation).run(
            entry_of(scenario),
            arguments,
            label=f"{subject.name}, {scenario.name}{', V2' if generation == 'v2' else ''}",
            environment={**scenario.environment, **(environment or {})},
            limit=scenario.limit,
        )
        if environment is None:
            self._runs[key] = run
        return run

    def model(self, recipe: str) -> Path:
        """Return the checkpoint of a recipe, made if need be."""
        return checkpoint(recipe, self.host.cache / "models")

    def reference(self, recipe: str, queries: Sequence[Query]) -> tuple[SequenceReference, ...]:
        """Return transformers' answers in float64; kept on disk under all that they depend on."""
        versions = installed_versions()
        question = {
            "recipe": checkpoint_hash(recipe),
            "queries": [query_to_json(query) for query in queries],
            "versions": [versions.torch, versions.transformers],
        }
        text = json.dumps(question, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._references:
            path = self.host.cache / "references" / f"{key}.json"
            try:
                self._references[key] = reference_set_from_json(json.loads(path.read_text()))
            except (OSError, ValueError):
                answers = compute(self.model(recipe), queries)
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(f".{id(self)}.part")
                unfinished.write_text(json.dumps(reference_set_to_json(answers)))
                unfinished.replace(path)
                self._references[key] = answers
        return self._references[key].sequences

    def judge(
        self,
        scenario: Scenario,
        step: str,
        generations: Sequence[Generation],
        *,
        top: int | None = None,
    ) -> list[Judgement]:
        """Hold a step's greedy outputs against transformers', within what its precision allows.

        The reference's own text is a recorded one. What it makes of another, where a run's parts
        from it, is asked for when it is needed. ``top`` is how many log-probabilities per position
        were asked for, if they are judged too.

        Raises:
            WrongUse: there is no record for the step, or it is of another model.
        """
        references = self._store.answers(
            TRANSFORMERS,
            scenario.recipe,
            checkpoint_hash(scenario.recipe),
            greedy_queries(scenario.step(step)),
        )

        def ask(queries: Sequence[ForcedQuery]) -> Sequence[SequenceReference]:
            return self.reference(scenario.recipe, queries)

        dtype = scenario.dtype
        return judge(
            [Observed(g.tokens, g.logprobs or None) for g in generations],
            references,
            ask,
            token_bound=bound("margin", dtype).value,
            logprob_bound=bound("logprob", dtype).value,
            top=top,
        )


def generations(run: ChildRun, step: str) -> list[Generation]:
    """Return what a step's requests got in a run."""
    return [Generation.from_json(item) for item in run.results[step]]
