"""Each rule finds its kind of drift: a pair of small vLLMs for each, with what must be found.

What is expected is written by hand beside the pair, ``tests/drift_cases/<RULE>/expected.toml``. The
pairs are walked by the real walker, and judged with the measured behaviours of torch.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.drift import behaviours, facts
from conformance.drift.compare import Version, compare
from conformance.drift.model import SEVERITIES, Drift, Finding, rank
from conformance.drift.pairing import by_generation, equivalent, pair
from conformance.drift.rules import BY_ID, RULES
from conformance.drift.side import Side
from conformance.surface.model import Call, Inventory, Row
from conformance.surface.sources import memory_tree
from conformance.surface.walker import walk
from tests.walker_cases.case import case

CASES = Path(__file__).with_name("drift_cases")


@cache
def version(rule: str, which: str) -> Version:
    folder = CASES / rule / which
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}
    tree = memory_tree(case(rule, files).tree, version={"old": "0.98.0", "new": "0.99.0"}[which])
    inventory = replace(walk(tree), vllm=tree.version or "")
    return Version(inventory, facts.read(tree, inventory))


@cache
def drift_of(rule: str) -> Drift:
    old, new = version(rule, "old"), version(rule, "new")
    tables = behaviours.load()
    pins = expected(rule).get("torch")
    if pins:
        tables = behaviours.load(CASES / rule)
        old, new = (
            replace(side, facts=replace(side.facts, torch=pin))
            for side, pin in zip((old, new), pins, strict=True)
        )
    return compare(old, new, tables)


def expected(rule: str) -> dict[str, Any]:
    return tomllib.loads((CASES / rule / "expected.toml").read_text())


def shown(finding: Finding) -> str:
    return f"{finding.severity} {finding.rule} {finding.attribute}: {finding.message}"


def test_every_rule_has_a_pair_and_every_pair_a_rule() -> None:
    assert {path.name for path in CASES.iterdir() if path.is_dir()} == set(BY_ID)


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_the_pair_of_a_rule_gives_what_is_expected_and_nothing_else(rule: str) -> None:
    found = [f for f in drift_of(rule).findings if f.severity == "error" or f.rule == rule]
    wanted = expected(rule)["finding"]
    assert sorted((f.rule, f.attribute, f.severity) for f in found) == sorted(
        (item["rule"], item["attribute"], item["severity"]) for item in wanted
    ), "\n".join(map(shown, found))
    for item in wanted:
        finding = next(f for f in found if f.rule == item["rule"])
        for side in ("upstream", "ours"):
            if side in item:
                assert getattr(finding, side).state == item[side], shown(finding)
        assert item.get("says", "") in finding.message
        assert item.get("before", "") == finding.before_attribute
        if "contexts" in item:
            assert list(finding.contexts) == item["contexts"]


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_a_vllm_compared_with_itself_has_no_finding(rule: str) -> None:
    new = version(rule, "new")
    same = compare(new, new, behaviours.load())
    assert [shown(finding) for finding in same.findings] == []


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_a_finding_says_where_it_is_how_the_runner_gets_there_and_what_to_do(rule: str) -> None:
    for finding in drift_of(rule).findings:
        assert finding.message.endswith(".")
        assert finding.advice.endswith(".")
        assert finding.sites, shown(finding)
        if finding.after and finding.rule not in ("OVERRIDE",):
            assert finding.sites[0].chain, shown(finding)


def test_no_finding_is_worse_than_its_rule_allows() -> None:
    for rule in RULES:
        for finding in drift_of(rule.id).findings:
            assert rank(finding.severity) >= rank(BY_ID[finding.rule].severity), shown(finding)


def test_rules_have_ids_severities_explanations_and_public_references() -> None:
    assert len(BY_ID) == len(RULES)
    for rule in RULES:
        assert rule.severity in SEVERITIES
        assert rule.explanation.endswith(".")
        assert rule.reference.startswith("https://github.com/")


def row(attribute: str = "torch.accelerator.synchronize", **other: Any) -> Row:
    values: dict[str, Any] = {
        "attribute": attribute,
        "kind": "call",
        "module": "vllm.v1.worker.gpu_model_runner",
        "function": "GPUModelRunner.execute_model",
        "line": 10,
        "end_line": 10,
        "contexts": ("execute",),
        "tier": "direct",
        "chain": ("vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model:10",),
        "guards": (),
        "generation": "v1",
        "on_cpu": "true",
        "reason": "no condition on the way excludes a CPU",
        "call": Call(),
    }
    return Row(**{**values, **other})


def drift(old: list[Row], new: list[Row]) -> Drift:
    """Compare rows alone, without facts."""
    return compare(
        Version(Inventory.of("0.98.0", old)),
        Version(Inventory.of("0.99.0", new)),
        behaviours.load(),
    )


def kinds(found: Drift) -> list[tuple[str, str]]:
    return [(finding.severity, finding.rule) for finding in found.findings]


def test_lines_that_shift_are_no_drift() -> None:
    assert not drift([row(line=10)], [row(line=99)]).findings


def test_a_file_that_is_renamed_is_no_drift() -> None:
    assert not drift([row()], [row(module="vllm.v1.worker.renamed")]).findings


def test_a_function_that_is_renamed_is_no_drift() -> None:
    new = row(function="GPUModelRunner.execute_models")
    assert not drift([row()], [new]).findings


def test_a_row_that_a_version_tells_apart_by_runner_is_no_drift() -> None:
    both = row(generation="both")
    split = [row(generation="v1"), row(generation="v2")]
    assert not drift([both], split).findings
    assert not drift(split, [both]).findings


def test_a_row_that_only_one_runner_reaches_any_more_is_no_news_for_the_other() -> None:
    found = drift([row()], [row(generation="both")])
    assert [finding.generation for finding in found.findings] == ["v2"]


def test_a_move_to_another_namespace_is_one_finding() -> None:
    found = drift([row("torch.cuda.empty_cache")], [row("torch.accelerator.empty_cache")])
    assert kinds(found) == [("error", "MOVED")]
    assert found.findings[0].before_attribute == "torch.cuda.empty_cache"


def test_a_move_from_what_broke_to_what_breaks_is_no_news() -> None:
    found = drift([row("torch.cuda.synchronize")], [row("torch.accelerator.synchronize")])
    assert kinds(found) == [("note", "MOVED")]


def test_names_that_do_the_same_are_known_as_such() -> None:
    assert equivalent("torch.cuda.mem_get_info") == equivalent("torch.accelerator.get_memory_info")
    assert equivalent("torch.cuda.memory.MemPool") == equivalent("torch.cuda.MemPool")
    assert equivalent("pin_memory=True") == "pin_memory=True"


def test_a_kernel_that_is_renamed_is_moved() -> None:
    old = row("triton:_fill_kernel", kind="launch")
    new = row("triton:FillKernel.kernel", kind="launch")
    assert [rule for _, rule in kinds(drift([old], [new]))] == ["MOVED"]


def test_pairs_keep_every_row_once() -> None:
    old = by_generation([row(), row(line=12), row("torch.cuda.empty_cache")])
    new = by_generation([row(line=11), row("torch.accelerator.empty_cache", generation="both")])
    paired = pair(old, new)
    assert len(paired.pairs) + len(paired.gone) == len(old)
    assert len(paired.pairs) + len(paired.come) == len(new)


def test_what_no_cpu_reaches_is_a_note() -> None:
    assert kinds(drift([], [row(on_cpu="false", reason="x is false on a CPU")])) == [
        ("note", "ADDED")
    ]


def test_what_nobody_knows_of_is_a_warning() -> None:
    assert kinds(drift([], [row(on_cpu="unknown")])) == [("warning", "ADDED")]
    assert kinds(drift([], [row(tier="by-name")])) == [("warning", "ADDED")]


def test_a_condition_on_what_was_set_up_keeps_no_cpu_away() -> None:
    reason = "self._ids is not None and self._meta is not None: nothing decides this for a CPU"
    assert kinds(drift([], [row(on_cpu="unknown", reason=reason)])) == [("error", "ADDED")]
    other = "x.is_cuda and self._meta is not None: nothing decides this for a CPU"
    assert kinds(drift([], [row(on_cpu="unknown", reason=other)])) == [("warning", "ADDED")]


def test_what_is_not_measured_is_a_warning_that_says_so() -> None:
    found = drift([], [row("torch.accelerator.brand_new")])
    assert kinds(found) == [("warning", "ADDED")]
    assert "not measured" in found.findings[0].host


def test_what_does_no_harm_on_a_cpu_is_a_note() -> None:
    assert kinds(drift([], [row("torch.cuda.empty_cache")])) == [("note", "ADDED")]


def test_what_upstream_handles_is_a_note() -> None:
    assert kinds(drift([], [row(upstream="rebound")])) == [("note", "ADDED")]


def test_what_only_some_models_lead_to_is_a_warning() -> None:
    chain = (*row().chain, "vllm.model_executor.models.llama:forward:3")
    found = drift([], [row(chain=chain)])
    assert kinds(found) == [("warning", "ADDED")]
    assert "a model of its own kind" in found.findings[0].message


def test_a_launch_of_v2_needs_no_counterpart() -> None:
    launch = row("triton:fill_kernel", kind="launch", generation="v2")
    assert kinds(drift([], [launch])) == [("note", "KERNEL_ADDED")]


def test_what_upstream_stops_to_handle_is_an_error_and_what_it_comes_to_handle_a_note() -> None:
    handled = row(upstream="rebound")
    assert kinds(drift([handled], [row()])) == [("error", "PATCH_TARGET")]
    found = drift([row()], [handled])
    assert kinds(found) == [("note", "PATCH_TARGET")]
    assert "as it was not before" in found.findings[0].message


def test_without_a_source_what_rests_on_it_is_not_checked() -> None:
    found = drift([row()], [row()])
    assert any("OVERRIDE" in sentence for sentence in found.not_checked)


def test_a_way_that_is_overridden_is_no_cover_for_a_phase_that_it_does_not_serve() -> None:
    warm_up = "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model:5"
    side = version("OVERRIDE", "new").facts
    assert side is not None
    override = side.upstream.overrides["v1"]["_clear"]
    covering = Side("x", (), {"worker": {"compile_or_warm_up_model": override}})
    only = row(chain=(warm_up,), contexts=("profile",))
    too = row(chain=(warm_up,), contexts=("profile", "sample"))
    assert covering.cover(only).state == "overridden"
    assert covering.cover(too).state == "in part"
    inner = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._clear:7"
    both = Side("x", (), {**covering.overrides, "v1": {"_clear": override}})
    assert both.cover(replace(too, chain=(warm_up, inner))).state == "overridden"


def test_nothing_here_imports_torch_or_vllm() -> None:
    code = (
        "import sys, pkgutil, importlib, conformance.drift as d, conformance.report.drift\n"
        "for m in pkgutil.iter_modules(d.__path__, 'conformance.drift.'):\n"
        "    importlib.import_module(m.name)\n"
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_runner_refuses_is_a_note_and_what_it_refuses_no_longer_is_news() -> None:
    new = version("ADDED", "new").facts
    assert new is not None
    refusing = replace(new, upstream=replace(new.upstream, refuses={"v1": ("speculative_config",)}))
    site = row(guards=("self.speculative_config is not None",))
    rows = Inventory.of("0.99.0", [site])

    def compared(old: facts.Facts, after: facts.Facts, *before: Row) -> list[tuple[str, str]]:
        was = Version(Inventory.of("0.98.0", before), old)
        return kinds(compare(was, Version(rows, after), behaviours.load()))

    assert compared(refusing, refusing) == [("note", "ADDED")]
    assert compared(refusing, new, site) == [("error", "GUARD")]
    assert compared(new, new, site) == []
