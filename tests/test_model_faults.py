"""Faults of models: the check that holds them against transformers finds each."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.suite import test_engine as engine_checks
from conformance.target import parse_subject

FAULTS = (
    ("LooksBackOneMore", "model-gemma2"),
    ("CapsNoScores", "model-gemma2"),
    ("IgnoresTheRotaryBase", "model-heads-80"),
    ("TurnsTheSlopesAround", "model-falcon-alibi"),
    ("ForgetsTheSinks", "model-gpt-oss"),
    ("DecaysByOtherRates", "model-mamba"),
    # Large enough for the wider bounds of 16 bits.
    ("PairsOtherHalves", "precision-bfloat16"),
)


class _Found(Exception):
    """A check failed with a finding."""


def _finding(text: str) -> Any:
    raise _Found(text)


@pytest.fixture(scope="module")
def runs(host: Host) -> Runs:
    """Runs of the faulty workers, each made once."""
    return Runs(host)


@pytest.mark.parametrize(("worker", "scenario"), FAULTS)
def test_a_faulty_model_is_found(worker: str, scenario: str, runs: Runs) -> None:
    faulty = SCENARIO[scenario]
    run = runs.observe(parse_subject(f"tests.faults.models:{worker}"), faulty)
    assert run.failure is None, run.failure
    with pytest.raises(_Found):
        engine_checks.test_logprobs_agree_with_transformers(run, faulty, "batch", runs, _finding)
