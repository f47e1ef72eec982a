"""Faults of V2 runners: the check of the suite that is there for each finds it."""

from __future__ import annotations

import importlib
import inspect
from importlib.util import find_spec
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.target import Subject

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")

_GREEDY = SCENARIO["greedy"]
_SHUTDOWN = "shutdown_frees_the_weights_and_puts_every_patched_name_back"
# As text, because the modules that have the workers import vLLM.
FAULTS = (
    ("engines:FailsToExecute", "runs_from_start_to_exit", ""),
    ("engines:ExitsAtShutdown", "runs_from_start_to_exit", ""),
    ("second_runner:BuildsTheGPUs", "runs_from_start_to_exit", ""),
    ("second_runner:RollsLogits", "tokens_agree_with_transformers", "single"),
    ("second_runner:RollsLogitsOfABatch", "requests_get_the_same_tokens_again", "batch"),
    ("engines:KeepsTheWeights", _SHUTDOWN, ""),
    ("engines:KeepsItsPatches", _SHUTDOWN, ""),
    ("engines:LeavesAThread", _SHUTDOWN, ""),
)


class _Found(Exception):
    """A check failed with a finding."""


def _finding(text: str) -> None:
    raise _Found(text)


@pytest.fixture(scope="module")
def runs(host: Host) -> Runs:
    """Runs of the faulty workers, each made once."""
    return Runs(host)


@pytest.mark.parametrize(("worker", "check", "step"), FAULTS)
def test_a_faulty_v2_runner_is_found(worker: str, check: str, step: str, runs: Runs) -> None:
    # By the name of ours: that is whose class is to be built.
    subject = Subject("ours", f"tests.faults.{worker.replace(':', '.')}")
    run = Runs(runs.host).observe(subject, _GREEDY, generation="v2")
    function = getattr(importlib.import_module("conformance.suite.test_v2"), f"test_{check}")
    offered: dict[str, Any] = {
        "v2_run": run,
        "completed_on_v2": run,
        "subject": subject,
        "scenario": _GREEDY,
        "step": step,
        "runs": runs,
        "finding": _finding,
    }
    wanted = inspect.signature(function).parameters
    if "completed_on_v2" in wanted:
        assert run.failure is None, run.failure
    with pytest.raises(_Found):
        function(**{name: offered[name] for name in wanted})
