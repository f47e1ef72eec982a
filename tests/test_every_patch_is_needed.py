"""Every patch is there for something: without it, a check that passes with it turns red.

The names come from docs/patches.md, which `tests/test_docs.py` holds against the register.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.contract.installed import contract_of_installed
from conformance.contract.outcomes import ContractOutcomes, all_clauses, check
from conformance.scenarios import triton_backend
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs, generations
from conformance.target import parse_subject

_PAGE = Path(__file__).parents[1] / "docs" / "patches.md"
NAMES = re.findall(r"^## `(.+)`$", _PAGE.read_text(), re.MULTILINE)
OURS = parse_subject("ours")
_LOADER = "vllm.model_executor.model_loader.weight_utils.fastsafetensors_weights_iterator"


def _lost_threads(run: ChildRun) -> bool:
    """What `test_the_engine_computes_with_the_threads_it_was_started_with` fails on."""
    before, after = run.results["torch_threads"]
    return bool(before != after)


def _failed(run: ChildRun) -> bool:
    """What `test_runs_from_start_to_exit` fails on."""
    return run.failure is not None


def _without(scenario: str) -> Callable[[ChildRun], bool]:
    """What `test_each_request_gets_what_the_model_of_its_adapter_gives` fails on.

    A request without an adapter gets other tokens among those with one than where all have none.
    """

    def reached_by_an_adapter(run: ChildRun) -> bool:
        alone = {g.prompt: g.tokens for g in generations(run, "none")}
        mixed = zip(
            SCENARIO[scenario].step("mixed").requests, generations(run, "mixed"), strict=True
        )
        return any(r.adapter is None and g.tokens != alone[g.prompt] for r, g in mixed)

    return reached_by_an_adapter


def _depend_on_parts(run: ChildRun) -> bool:
    """What `test_engines_that_differ_in_their_arguments_give_the_same_tokens` fails on."""
    return generations(run, "drawn") != generations(run, "drawn#whole")


# Patches whose loss no clause shows by itself: the runner and the scenario that show it, by what.
_SHOWN_BY_AN_ENGINE = {
    "vllm.utils.torch_utils.set_torch_threads_for_runtime": ("v1", "greedy", _lost_threads),
    "vllm.utils.torch_utils.get_accelerator_view_from_cpu_tensor": ("v2", "greedy", _failed),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample": (
        "v1",
        "sampling-in-parts",
        _depend_on_parts,
    ),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._bookkeeping_sync": (
        "v1",
        "sampling-in-parts",
        _failed,
    ),
    "vllm.lora.ops.torch_ops.lora_ops.bgmv_shrink": ("v1", "lora", _without("lora")),
    "vllm.lora.ops.torch_ops.lora_ops.bgmv_expand": (
        "v1",
        "lora-vocabulary",
        _without("lora-vocabulary"),
    ),
    "vllm._custom_ops.cpu_attention_with_kv_cache": ("v1", "model-gpt-oss", _failed),
    "vllm._custom_ops.selective_scan_fwd": ("v1", "model-mamba", _failed),
    "vllm._custom_ops.selective_state_update_cpu": ("v1", "model-mamba", _failed),
    "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm": (
        "v1",
        "model-mamba",
        _failed,
    ),
}
# And a row of the contract that is reached through what the patch replaces.
_SHOWN_BY_A_ROW = {_LOADER: "tensors/a-tensor-is-made-on-the-device@load"}


@pytest.fixture(scope="module")
def needed(host: Host) -> set[str]:
    """The patches that the installed vLLM needs."""
    run = host.run("tests.child_entries:patch_names", {}, label="the register")
    return set(run.results["needed"])


@pytest.fixture(scope="module")
def held(host: Host) -> list[str]:
    """The clauses that hold with every patch in force; others are refused, or of another vLLM."""
    return [name for name, wrong in check(host, OURS, all_clauses()).items() if wrong is None]


def _state(host: Host, row_id: str, environment: dict[str, str] | None) -> str:
    (row,) = (row for row in contract_of_installed("v1").rows if row.id == row_id)
    return ContractOutcomes(Runs(host), environment=environment).of(OURS, row).state


@pytest.mark.parametrize("name", NAMES)
def test_without_a_patch_a_check_is_red(
    name: str, host: Host, needed: set[str], held: list[str]
) -> None:
    if name not in needed:
        pytest.skip("the installed vLLM does not need this patch")
    without = {"RUNNER_UNDER_TEST_WITHOUT": name}
    if name in _SHOWN_BY_AN_ENGINE:
        generation, scenario, is_red = _SHOWN_BY_AN_ENGINE[name]
        if generation == "v2" and (problem := triton_backend.missing()):
            pytest.skip(problem)
        runs, asked = Runs(host), SCENARIO[scenario]
        assert is_red(runs.observe(OURS, asked, generation=generation, environment=without))
        assert not is_red(runs.observe(OURS, asked, generation=generation))
    elif name in _SHOWN_BY_A_ROW:
        assert _state(host, _SHOWN_BY_A_ROW[name], without) == "red"
        assert _state(host, _SHOWN_BY_A_ROW[name], None) == "refused"
    else:
        outcomes = check(host, OURS, held, environment=without)
        assert [clause for clause, wrong in outcomes.items() if wrong is not None]
