"""The nightly workflow is one that GitHub can run, with commands and options that there are.

Its shell steps are run as they stand, in repositories made for them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main

yaml = pytest.importorskip("yaml", reason="the workflow is read with PyYAML, which vLLM brings")

ROOT = Path(__file__).parents[1]
PATH = ROOT / ".github" / "workflows" / "nightly.yml"
STATE = "fixtures/watch/state.json"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load(PATH.read_text())


def steps(workflow: dict[Any, Any], job: str) -> list[dict[str, Any]]:
    return workflow["jobs"][job]["steps"]


def named(workflow: dict[Any, Any], job: str, name: str) -> dict[str, Any]:
    (found,) = [step for step in steps(workflow, job) if step.get("name") == name]
    return found


def options(workflow: dict[Any, Any]) -> dict[str, Any]:
    """What the step gives its command; an option that is not there is an error."""
    command = named(workflow, "watch", "watch")["run"]
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "--pre", command))
    assert words[:2] == [".venv/bin/vllm-conformance", "watch"]
    return main.commands["watch"].make_context("watch", words[2:]).params


def test_it_runs_every_night_and_on_request(workflow):
    # YAML 1.1 takes `on` for a truth value.
    events = workflow[True]
    assert events.keys() == {"schedule", "workflow_dispatch"}
    (entry,) = events["schedule"]
    minute, hour, *rest = entry["cron"].split()
    assert (minute.isdigit(), hour.isdigit(), rest) == (True, True, ["*", "*", "*"])


def test_it_runs_the_watch_with_options_that_there_are(workflow):
    given = options(workflow)
    assert given["format_"] == "github"
    assert given["notify_github"] and given["run_suite"] and given["pre"]
    assert not given["dry_run"]
    assert given["fail_on"] == "error"


def test_what_it_keeps_is_where_the_watch_writes(workflow):
    given = options(workflow)
    assert named(workflow, "watch", "report")["with"]["path"] == str(given["report"])
    assert named(workflow, "watch", "sarif")["with"]["sarif_file"] == str(given["report"])
    assert named(workflow, "watch", "keep the state")["with"]["path"] == str(given["state"])
    assert str(given["state"]) == STATE
    assert (ROOT / STATE).is_file()
    kept = named(workflow, "watch", "keep the state")["with"]["name"]
    (taken,) = [step for step in steps(workflow, "state") if "download" in step.get("uses", "")]
    assert taken["with"] == {"name": kept, "path": str(Path(STATE).parent)}


@pytest.mark.parametrize("name", ["report", "sarif", "state", "keep the state"])
def test_what_follows_the_watch_is_done_when_it_failed_too(workflow, name):
    assert named(workflow, "watch", name)["if"].startswith("always()")
    order = [step.get("name") for step in steps(workflow, "watch")]
    assert order.index(name) > order.index("watch")


def test_only_the_job_that_commits_the_state_may_write_contents(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert jobs["watch"]["permissions"] == {
        "contents": "read",
        "issues": "write",
        "security-events": "write",
    }
    assert jobs["state"]["permissions"] == {"contents": "write"}
    assert jobs["state"]["needs"] == "watch"
    assert "steps.state.outputs.state" in jobs["watch"]["outputs"]["state"]
    assert not any("pip" in step.get("run", "") for step in jobs["state"]["steps"])


def test_actions_have_versions_and_those_of_the_other_workflow_are_the_same(workflow):
    pattern = re.compile(r"uses: ([\w/-]+)@(\S+)")
    used = dict(pattern.findall(PATH.read_text()))
    others = dict(pattern.findall((ROOT / ".github" / "workflows" / "ci.yml").read_text()))
    assert all(re.fullmatch(r"v\d+", version) for version in used.values())
    assert {name: used[name] for name in used.keys() & others.keys()} == {
        name: others[name] for name in used.keys() & others.keys()
    }


def test_it_installs_what_is_there(workflow):
    commands = " ".join(step.get("run", "") for step in steps(workflow, "watch"))
    for path in re.findall(r"-r (\S+)", commands):
        assert (ROOT / path).is_file()
    tools = (ROOT / "requirements" / "tox.txt").read_text()
    assert "tox==" in tools and "uv==" in tools  # what the suite is run with


def test_secrets_are_given_to_the_watch_alone(workflow):
    assert re.findall(r"secrets\.(\w+)", PATH.read_text()) == [
        "GITHUB_TOKEN",
        "VLLM_CONFORMANCE_WEBHOOK",
    ]
    assert named(workflow, "watch", "watch")["env"].keys() == {
        "GITHUB_TOKEN",
        "VLLM_CONFORMANCE_WEBHOOK",
    }


# Its shell


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a state, whose origin is beside it."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "origin")
    git(tmp_path, "clone", "-q", "origin", "clone")
    folder = tmp_path / "clone"
    git(folder, "checkout", "-q", "-B", "main")
    (folder / STATE).parent.mkdir(parents=True)
    (folder / STATE).write_text("old\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "begin")
    git(folder, "push", "-q", "-u", "origin", "main")
    return folder


def run(script: str, folder: Path) -> None:
    # As GitHub runs a step.
    subprocess.run(["bash", "-e", "-c", script], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(("text", "said"), [("old\n", ""), ("new\n", "state=changed\n")])
def test_the_state_is_kept_if_it_changed(workflow, clone, tmp_path, monkeypatch, text, said):
    output = tmp_path / "output"
    output.write_text("")
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    (clone / STATE).write_text(text)
    run(named(workflow, "watch", "state")["run"], clone)
    assert output.read_text() == said


def test_a_state_that_git_does_not_know_is_kept_too(workflow, clone, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    git(clone, "rm", "-q", STATE)
    git(clone, "commit", "-q", "-m", "none")
    (clone / STATE).parent.mkdir(parents=True)
    (clone / STATE).write_text("new\n")
    run(named(workflow, "watch", "state")["run"], clone)
    assert (tmp_path / "output").read_text() == "state=changed\n"


def test_the_state_is_committed_alone_and_pushed(workflow, clone, tmp_path):
    (clone / STATE).write_text("new\n")
    (clone / "stray").write_text("")
    script = named(workflow, "state", "commit")["run"]
    run(script, clone)
    origin = tmp_path / "origin"
    assert git(origin, "show", f"main:{STATE}") == "new\n"
    assert git(origin, "show", "--format=", "--name-only", "main").split() == [STATE]
    run(script, clone)  # nothing is left to commit
    assert git(origin, "rev-list", "--count", "main") == "2\n"
