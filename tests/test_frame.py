"""The files around the code against each other: README, CI, tox, locks and the package's own data.

The README is what people follow, so it is the reference; the rest must agree with it.
"""

import configparser
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import conformance
from conformance.environment import SUPPORTED_VLLM

ROOT = Path(__file__).resolve().parent.parent
NEWEST = f"v{SUPPORTED_VLLM[-1].replace('.', '')}0"
SETUP = "python3 -m venv .venv && .venv/bin/pip install -q -r requirements/tox.txt && "


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirements_of(name: str) -> list[str]:
    lines = (line.strip() for line in text_of(f"requirements/{name}").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def locked_by(name: str) -> dict[str, str]:
    pins = [line.partition("==") for line in requirements_of(name)]
    return {canonicalize_name(package): version for package, _, version in pins}


def tox_section(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text_of("tox.ini"))
    return parser[name]


def readme_commands() -> list[str]:
    return re.findall(r"^    (python3 .*)$", text_of("README.md"), flags=re.MULTILINE)


def project_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("this is no git checkout")
    names = [ROOT / name for name in done.stdout.split("\0") if name]
    return [file for file in names if file.is_file()]


def test_the_readme_names_a_command_that_checks_and_one_that_tests():
    assert readme_commands() == [
        f"{SETUP}.venv/bin/tox run -e {NEWEST}",
        f"{SETUP}.venv/bin/tox run -e tests",
    ]


def test_ci_runs_the_readmes_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == readme_commands()[-1]


def test_the_workflow_runs_ci_and_the_environments():
    workflow = text_of(".github/workflows/ci.yml")
    assert "- run: .ci/run\n" in workflow
    assert f"- run: {SETUP}.venv/bin/tox run -e ${{{{ matrix.tox }}}}\n" in workflow


def test_tox_runs_the_newest_version_and_the_tests_if_it_is_not_told_what():
    assert tox_section("tox")["env_list"] == f"{NEWEST}, tests"


def test_nothing_is_fetched_while_checks_run():
    settings = tox_section("testenv")["set_env"]
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS"):
        assert f"{name} = 1" in settings


def test_the_commands_tools_are_pinned():
    assert set(locked_by("tox.txt")) == {"tox", "tox-uv", "uv"}
    assert all(locked_by("tox.txt").values())


def test_no_file_names_a_path_of_this_machine():
    here = {f"{ROOT}/", f"{Path.home()}/", *os.environ.get("PIP_FIND_LINKS", "").split()} - {"//"}
    assert not [
        f"{file.relative_to(ROOT)}: {path}"
        for file in project_files()
        for path in here
        if path.encode() in file.read_bytes()
    ]


def test_the_package_declares_its_command_and_its_plugin():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert project["name"] == "vllm-conformance"
    assert project["scripts"] == {"vllm-conformance": "conformance.cli:main"}
    assert project["entry-points"]["pytest11"] == {"conformance.plugin": "conformance.plugin"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", conformance.__version__)


def torch_source(**environ: str) -> dict[str, str]:
    """What toxfile.py adds to an environment of uv's settings."""
    code = (
        "import json, os, toxfile;"
        "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('UV_')}))"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=kept | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_torch_comes_from_the_folder_that_pip_is_told_of(tmp_path):
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    found = torch_source(PIP_FIND_LINKS=f"{tmp_path} {tmp_path / 'more'}")
    assert found == {"UV_FIND_LINKS": f"{tmp_path},{tmp_path / 'more'}"}


def test_torch_comes_from_its_cpu_index_where_no_folder_has_it(tmp_path):
    assert torch_source() == {"UV_TORCH_BACKEND": "cpu"}
    assert torch_source(PIP_FIND_LINKS=str(tmp_path)) == {"UV_TORCH_BACKEND": "cpu"}


def test_settings_of_uv_that_are_there_are_left_alone(tmp_path):
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    given = {"UV_TORCH_BACKEND": "auto", "PIP_FIND_LINKS": str(tmp_path)}
    assert torch_source(**given) == {"UV_TORCH_BACKEND": "auto"}
