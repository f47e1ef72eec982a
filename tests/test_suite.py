"""The suite as a whole: what collecting it costs, and what it makes of planted faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.expectations import load

_ROOT = Path(__file__).parents[1]
_CONTRACT = "conformance/suite/test_contract.py"


def run_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=_ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _cells(directory: Path) -> dict[str, dict[str, Any]]:
    """The cells of ours, by check."""
    data = json.loads((directory / "results.json").read_text())
    return {row["check"]: row["cells"]["ours"] for row in data["rows"]}


def test_collection_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, pytest\n"
        "status = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider'])\n"
        "heavy = {'torch', 'vllm', 'transformers'} & set(sys.modules)\n"
        "print('imported:', sorted(heavy), 'status:', int(status))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "imported: [] status: 0", done.stdout[-2000:]


def test_all_checks_of_a_run_go_to_one_worker(tmp_path: Path) -> None:
    """Of pytest and pytest-xdist there are versions that do not know each other's groups."""
    (tmp_path / "test_group.py").write_text(
        "import pytest\n"
        "@pytest.mark.xdist_group('run')\n"
        "@pytest.mark.parametrize('check', range(8))\n"
        "def test_check(check, worker_id):\n"
        "    print(f'made by {worker_id}.')\n"
    )
    options = ["-n2", "--dist=loadgroup", "--no-loadscope-reorder", "-rP", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", "none.ini", "--rootdir=.", *options]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    workers = re.findall(r"made by (\w+)\.", done.stdout)
    assert len(workers) == 8 and len(set(workers)) == 1, done.stdout


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
def test_a_killed_engine_is_one_red_row_that_names_the_phase(signal: str, tmp_path: Path) -> None:
    fault = {"subject": "ours", "scenario": "greedy", "phase": "execute", "signal": signal}
    done = run_pytest(
        "conformance/suite/test_engine.py",
        "conformance/suite/test_shutdown.py",
        "--subject=ours",
        "-k=(greedy or sampling) and not (spec or preemption)",
        f"--conformance-report={tmp_path}",
        VLLM_CONFORMANCE_FAULT=json.dumps(fault),
    )
    assert done.returncode == 1, done.stdout[-2000:]
    cells = _cells(tmp_path)
    red = {check: cell["detail"] for check, cell in cells.items() if cell["state"] == "red"}
    assert list(red) == ["engine::runs_from_start_to_exit[greedy]"]
    (detail,) = red.values()
    assert signal in detail and "phase 'execute'" in detail
    others = {cell["state"] for check, cell in cells.items() if "sampling" in check}
    assert others == {"ok"}
    dependent = {c["state"] for k, c in cells.items() if k not in red and "greedy" in k}
    assert dependent == {"not checked"}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_expected_failure_that_passes_is_a_failure(workers: str, tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(
        '[[expectation]]\nchecks = ["contract::behaviour[streams/streams-compare-by-identity]"]\n'
        'versions = ">=0.30"\nreason = "planted"\nlink = "none"\n'
    )
    done = run_pytest(
        _CONTRACT,
        "--subject=ours",
        "-k=compare-by-identity",
        f"-n{workers}",
        f"--expectations={tmp_path}",
        f"--conformance-report={tmp_path}",
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert {cell["state"] for cell in _cells(tmp_path).values()} == {"red"}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_expectation_of_no_check_is_an_error(workers: str, tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(
        '[[expectation]]\nchecks = ["contract::behaviour[no-such-clause]"]\n'
        'versions = ">=0.30"\nreason = "planted"\nlink = "none"\n'
    )
    done = run_pytest(_CONTRACT, "--subject=ours", f"--expectations={tmp_path}", f"-n{workers}")
    assert done.returncode == 4
    assert "no such check" in done.stderr + done.stdout
    assert "INTERNALERROR" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "text", ["expectation = 3", "[[expectation]]\nchecks = []", "not toml", "[other]\na = 1"]
)
def test_expectations_that_are_none_are_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "upstream.toml").write_text(text)
    done = run_pytest(_CONTRACT, "--subject=upstream", f"--expectations={tmp_path}")
    assert done.returncode == 4
    assert "upstream.toml" in done.stderr + done.stdout
    assert "INTERNALERROR" not in done.stderr + done.stdout


def test_an_error_of_the_harness_is_no_known_failure(tmp_path: Path) -> None:
    broken = Path(__file__).parent / "data" / "broken_vllm"
    done = run_pytest(_CONTRACT, "--subject=bare", "-k=synchronize-returns", PYTHONPATH=str(broken))
    assert done.returncode == 1
    assert "HostError" in done.stdout


def test_a_planted_fault_that_is_none_is_an_error() -> None:
    done = run_pytest(_CONTRACT, VLLM_CONFORMANCE_FAULT="xx")
    assert done.returncode == 4
    assert "is no JSON" in done.stderr + done.stdout


def test_a_patch_to_leave_out_that_there_is_not_is_wrong_use() -> None:
    done = run_pytest(_CONTRACT, RUNNER_UNDER_TEST_WITHOUT="torch.accelerator.synchronise")
    assert done.returncode == 4
    assert "no patch is called torch.accelerator.synchronise" in done.stderr + done.stdout


def test_ours_has_no_expectations_but_of_faults_on_every_platform() -> None:
    known = _ROOT / "fixtures" / "expectations"
    assert not (known / "ours.toml").exists()
    assert all((known / "upstream" / path.name).exists() for path in (known / "ours").iterdir())
    # What is the CPU's own is for the runner to mend; the names of its pages begin with cpu.
    links = {expectation.link for expectation in load(known) if expectation.subject == "ours"}
    assert not any(link.startswith("docs/findings/cpu-") for link in links)


def test_a_missing_patch_turns_the_suite_red_and_is_named(tmp_path: Path) -> None:
    done = run_pytest(
        _CONTRACT,
        "--subject=ours",
        "-k=accelerator",
        f"--conformance-report={tmp_path}",
        RUNNER_UNDER_TEST_WITHOUT="torch.accelerator.synchronize",
    )
    assert done.returncode == 1
    report = json.loads((tmp_path / "results.json").read_text())
    assert "WITHOUT=torch.accelerator.synchronize" in report["environment"]["selected"]
    cells = _cells(tmp_path)
    red = [
        cell["detail"]
        for check, cell in cells.items()
        if "accelerator/synchronize-returns@" in check and cell["state"] == "red"
    ]
    assert red
    detail = red[0]
    assert "torch.accelerator.synchronize" in detail
    assert "on a GPU:" in detail
    assert "reached: vllm." in detail
