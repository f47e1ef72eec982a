"""Faults of caching, scheduling, drafts and adapters: the check that is there for each finds it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.suite.test_scheduling import RESIDENT_BYTES_PER_ROUND, grown, whole_blocks
from conformance.target import parse_subject

_CACHE = "what_was_computed_before_is_found_in_the_cache_and_nothing_else"
_PARTS = "prompts_over_the_budget_are_computed_in_parts_and_others_are_not"
_PUT_OFF = "requests_are_put_off_where_the_cache_is_small_and_nowhere_else"
_DRAFTS = "drafts_are_made_and_some_of_them_are_accepted"
_ADAPTER = "each_request_gets_what_the_model_of_its_adapter_gives"

# The worker, the scenario, the check, and its step or variant.
FAULTS = (
    ("NeverCaches", "prefix-cache", f"scheduling::{_CACHE}", ""),
    ("NeverCaches", "prefix-cache", "scheduling::a_cache_that_is_on_is_hit", ""),
    ("AlwaysCaches", "prefix-cache", f"scheduling::{_CACHE}", "off"),
    ("AlwaysCaches", "prefix-cache", "scheduling::a_cache_that_is_on_is_hit", "off"),
    ("ReadsAnotherBlock", "prefix-cache", "engine::requests_get_the_same_tokens_again", "warm"),
    ("ReadsAnotherBlock", "prefix-cache", "engine::tokens_agree_with_transformers", "extended"),
    ("ComputesPromptsAtOnce", "chunked-prefill", f"scheduling::{_PARTS}", ""),
    ("ComputesPromptsInParts", "chunked-prefill", f"scheduling::{_PARTS}", "whole"),
    ("HasRoomForAll", "preemption", f"scheduling::{_PUT_OFF}", ""),
    ("JoinsNoBatch", "preemption", f"scheduling::{_PUT_OFF}", "uncached"),
    (
        "ResumesOneTokenLater",
        "preemption",
        "engine::tokens_agree_with_transformers",
        "greedy#uncached",
    ),
    (
        "KeepsTheBlocksOfAborted",
        "aborts",
        "scheduling::no_request_and_no_block_is_left_in_use",
        "",
    ),
    (
        "MixesRowsWhenOneLeaves",
        "joining",
        "engine::requests_get_the_same_tokens_again",
        "one by one",
    ),
    ("MixesRowsWhenOneLeaves", "aborts", "engine::requests_get_the_same_tokens_again", "decoding"),
    ("JoinsNoBatch", "joining", "scheduling::requests_join_a_running_batch", ""),
    ("AcceptsEveryDraft", "spec-eagle-cached", "engine::tokens_agree_with_transformers", "cold"),
    ("AcceptsEveryDraft", "spec-eagle-cached", f"scheduling::{_DRAFTS}", ""),
    ("GuessesBadly", "spec-eagle-cached", f"scheduling::{_DRAFTS}", ""),
    (
        "SchedulesAhead",
        "async-scheduling",
        "scheduling::asynchronous_scheduling_is_off_on_a_cpu",
        "",
    ),
    ("IgnoresAdapters", "lora", f"adapters::{_ADAPTER}", "first"),
    ("IgnoresAdapters", "lora", "adapters::another_adapter_gives_other_tokens", ""),
    ("AppliesTheNeighboursAdapter", "lora", f"adapters::{_ADAPTER}", "mixed"),
    ("SharesTheCacheAmongAdapters", "lora", f"adapters::{_ADAPTER}", "mixed"),
    ("SharesTheCacheAmongAdapters", "lora", f"scheduling::{_CACHE}", ""),
)

# These take as long as the scenario, which is a nightly one.
GROWING = (
    ("KeepsATensor", "endurance", "scheduling::nothing_grows_over_thousands_of_steps", "rounds"),
    ("KeepsMemory", "endurance", "scheduling::nothing_grows_over_thousands_of_steps", "rounds"),
)


class _Found(Exception):
    """A check failed with a finding."""


def _finding(text: str) -> None:
    raise _Found(text)


@pytest.fixture(scope="module")
def runs(host: Host) -> Runs:
    """Runs of the faulty workers, each made once."""
    return Runs(host)


def _id(fault: tuple[str, ...]) -> str:
    worker, _, check, about = fault
    return f"{worker}-{check.partition('::')[2]}-{about or 'first'}"


@pytest.mark.parametrize(
    ("worker", "scenario", "check", "about"),
    [
        *(pytest.param(*fault, id=_id(fault)) for fault in FAULTS),
        *(pytest.param(*fault, id=_id(fault), marks=pytest.mark.nightly) for fault in GROWING),
    ],
)
def test_a_faulty_runner_is_found(
    worker: str, scenario: str, check: str, about: str, runs: Runs
) -> None:
    subject = parse_subject(f"tests.faults.scheduling:{worker}")
    run = runs.observe(subject, SCENARIO[scenario])
    assert run.failure is None, run.failure
    module, _, name = check.partition("::")
    function = getattr(importlib.import_module(f"conformance.suite.test_{module}"), f"test_{name}")
    offered: dict[str, Any] = {
        "completed": run,
        "scenario": SCENARIO[scenario],
        "step": about,
        "variant": about,
        "runs": runs,
        "finding": _finding,
    }
    wanted = inspect.signature(function).parameters
    with pytest.raises(_Found):
        function(**{name: offered[name] for name in wanted})


@pytest.mark.parametrize(
    ("prompt", "computed", "expected"),
    [
        (range(70), [range(70)], 64),
        (range(64), [range(64)], 32),
        (range(65), [range(64)], 64),
        (range(33), [range(31)], 0),
        (range(70), [range(1, 70)], 0),
        (range(70), [range(40), range(33)], 32),
        (range(70), [], 0),
    ],
)
def test_a_prompt_shares_whole_blocks_and_computes_its_last_token(
    prompt: range, computed: list[range], expected: int
) -> None:
    assert whole_blocks(prompt, computed, 32) == expected


def test_what_grows_is_named_and_what_shrinks_is_not() -> None:
    before = {
        "tensors": 10,
        "tensor_bytes": 100,
        "objects": 1000,
        "descriptors": 5,
        "resident_bytes": 10**6,
    }
    allowed = RESIDENT_BYTES_PER_ROUND * 10
    assert grown([before, before, before], 10) is None
    fewer = {**before, "tensors": 9, "objects": 900}
    assert grown([before, fewer], 10) is None
    assert grown([before, {**before, "objects": 1009}], 10) is None
    assert grown([before, {**before, "resident_bytes": 10**6 + allowed}], 10) is None
    assert "resident" in (grown([before, {**before, "resident_bytes": 10**9}], 10) or "")
    assert "objects" in (grown([before, {**before, "objects": 1010}], 10) or "")
    for name in ("tensors", "tensor_bytes", "descriptors"):
        assert name in (grown([before, {**before, name: before[name] + 1}], 10) or "")
