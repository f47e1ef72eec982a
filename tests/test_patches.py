"""The patch register, in a child process that has torch and vLLM."""

from __future__ import annotations

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.target import parse_subject

pytestmark = pytest.mark.xdist_group("host")


def test_the_register_keeps_every_promise(host: Host) -> None:
    run = host.run("tests.child_entries:patch_register", {}, label="the register")
    assert run.failure is None, run.failure
    assert len(run.results) >= 14
    broken = {name: outcome for name, outcome in run.results.items() if outcome is not None}
    assert not broken


def test_a_name_that_nobody_patched_is_explained(host: Host) -> None:
    run = Runs(host).observe(
        parse_subject("ours"),
        SCENARIO["greedy"],
        environment={"RUNNER_UNDER_TEST_WITHOUT": "torch.accelerator.synchronize"},
    )
    assert run.failure is not None
    assert "UnpatchedAttribute" in run.failure
    assert "torch.accelerator.synchronize needs an accelerator" in run.failure
    assert "vllm/v1/worker/gpu_model_runner.py:" in run.failure
    assert "target='torch.accelerator.synchronize'" in run.failure
    assert "docs/patches.md" in run.failure


def test_an_unsupported_vllm_is_refused_in_one_sentence(host: Host) -> None:
    run = host.run("tests.child_entries:unsupported_version", {}, label="an old vLLM")
    assert run.failure is None, run.failure
    assert "supports vLLM" in run.results["message"]
    assert "0.26.0 is installed" in run.results["message"]


def test_the_runner_overrides_nothing_but_its_construction_and_to_list(host: Host) -> None:
    run = host.run("tests.child_entries:overrides", {}, label="the runner")
    assert sorted(run.results["overrides"]) == ["__init__", "_to_list"]
