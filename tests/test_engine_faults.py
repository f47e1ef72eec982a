"""Faults of whole runners: the check of the suite that is there for each finds it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.target import parse_subject

# As text, because the module that has the workers imports vLLM.
FAULTS = (
    ("LeavesAThread", "greedy", "shutdown::shutdown_leaves_no_thread"),
    ("KeepsTheWeights", "greedy", "shutdown::shutdown_frees_the_weights_and_the_kv_cache"),
    ("KeepsTheKVCache", "greedy", "shutdown::shutdown_frees_the_weights_and_the_kv_cache"),
    ("KeepsItsPatches", "greedy", "shutdown::shutdown_puts_every_patched_name_back"),
    ("LeavesAFile", "greedy", "shutdown::nothing_is_left_behind"),
    ("Complains", "greedy", "shutdown::nothing_complains_on_stderr"),
    ("ExitsAtShutdown", "greedy", "engine::runs_from_start_to_exit"),
    ("FailsToExecute", "greedy", "engine::runs_from_start_to_exit"),
    (
        "ChangesThreads",
        "greedy",
        "engine::the_engine_computes_with_the_threads_it_was_started_with",
    ),
    (
        "LosesTheStream",
        "streams",
        "engine::the_current_stream_outlasts_the_engines_own_contexts",
    ),
    ("SeesNoMemory", "greedy", "engine::the_memory_that_a_worker_sees_is_plausible"),
    ("SwapsTokens", "greedy", "engine::tokens_agree_with_transformers[single]"),
    ("AnswersByTheBatch", "greedy", "engine::requests_get_the_same_tokens_again[batch]"),
    (
        "AnswersByTheCache",
        "prefix-cache",
        "engine::engines_that_differ_in_their_arguments_give_the_same_tokens[cold]",
    ),
    ("ForgetsSeeds", "sampling", "engine::requests_get_the_same_tokens_again[again]"),
    ("IgnoresSeeds", "sampling", "engine::another_seed_gives_other_tokens"),
    ("ForgetsSeeds", "sampling", "engine::requests_get_the_same_tokens_again[alone]"),
    ("ShiftsLogprobs", "greedy", "engine::logprobs_agree_with_transformers[single]"),
    ("DraftsNothingGood", "spec-draft", "engine::drafts_are_made_and_some_are_accepted"),
    ("BuildsAnother", "greedy", "engine::the_worker_and_the_runner_are_the_subjects"),
)


class _Found(Exception):
    """A check failed with a finding."""


def _finding(text: str) -> None:
    raise _Found(text)


@pytest.fixture(scope="module")
def runs(host: Host) -> Runs:
    """Runs of the faulty workers, each made once."""
    return Runs(host)


@pytest.mark.parametrize(
    ("worker", "scenario", "check"),
    FAULTS,
    ids=[f"{w}-{c.partition('::')[2]}" for w, _, c in FAULTS],
)
def test_a_faulty_runner_is_found(worker: str, scenario: str, check: str, runs: Runs) -> None:
    subject = parse_subject(f"tests.faults.engines:{worker}")
    run = runs.observe(subject, SCENARIO[scenario])
    module, _, name = check.partition("::")
    name, _, step = name.rstrip("]").partition("[")
    function = getattr(importlib.import_module(f"conformance.suite.test_{module}"), f"test_{name}")
    offered: dict[str, Any] = {
        "run": run,
        "completed": run,
        "subject": subject,
        "scenario": SCENARIO[scenario],
        "step": step,
        "runs": runs,
        "record_property": lambda name, value: None,
        "finding": _finding,
    }
    wanted = inspect.signature(function).parameters
    if "completed" in wanted:
        assert run.failure is None, run.failure
    with pytest.raises(_Found):
        function(**{name: offered[name] for name in wanted})
