"""The state of a watch: its file, its lock, and what it makes new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.target import WrongUse
from conformance.watch.lock import only_one
from conformance.watch.news import PACKAGES, begin, predecessor, unchecked
from conformance.watch.state import SCHEMA, Entry, State, dumps, load, save

ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "fixtures" / "watch" / "state.json"
DAY = "2026-11-30"


def entry(version: str, outcome: str = "clean") -> Entry:
    reason = "never published whole" if outcome == "skipped" else ""
    return Entry(version, outcome, DAY, reason=reason)  # type: ignore[arg-type]


FULL = State().having(
    "vllm",
    [
        entry("0.10.0"),
        entry("0.9.0", "baseline"),
        Entry("0.11.0", "findings", DAY, "0.10.0", errors=3),
    ],
)


def test_the_committed_state_is_what_the_harness_writes():
    state = load(COMMITTED)
    assert state is not None
    assert tuple(state.packages) == PACKAGES
    assert COMMITTED.read_text() == dumps(state)


def test_a_state_is_read_as_it_was_written_and_its_order_is_stable(tmp_path):
    save(FULL, tmp_path / "state.json")
    assert load(tmp_path / "state.json") == FULL
    assert [e.version for e in FULL.of("vllm")] == ["0.9.0", "0.10.0", "0.11.0"]
    shuffled = State().having("vllm", reversed(FULL.of("vllm")))
    assert dumps(shuffled.having("a", [entry("1")])) == dumps(
        State().having("a", [entry("1")]).having("vllm", FULL.of("vllm"))
    )
    assert json.loads(dumps(FULL))["schema"] == SCHEMA
    # A release has a line of its own.
    assert [line[:21] for line in dumps(FULL).splitlines()[2:5]] == [
        '{"version": "0.9.0", ',
        '{"version": "0.10.0",',
        '{"version": "0.11.0",',
    ]


def test_a_release_that_is_entered_again_takes_its_own_place():
    again = FULL.having("vllm", [entry("0.11.0")])
    assert [e.outcome for e in again.of("vllm")] == ["baseline", "clean", "clean"]


def test_there_may_be_no_state(tmp_path):
    assert load(tmp_path / "state.json") is None


def written(**changes: object) -> str:
    item = {"version": "0.9.0", "outcome": "clean", "date": DAY, **changes}
    kept = {key: value for key, value in item.items() if value is not None}
    return json.dumps({"schema": SCHEMA, "packages": {"vllm": [kept]}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no JSON"),
        ("\x00", "is no JSON"),
        ('{"schema": "vllm-conformance/watch/2"}', "'vllm-conformance/watch/2' and not"),
        ("null", "its schema is None"),
        (json.dumps({"schema": SCHEMA}), "a schema and packages"),
        (json.dumps({"schema": SCHEMA, "packages": {}, "more": 1}), "and nothing else"),
        (json.dumps({"schema": SCHEMA, "packages": {"vllm": ["x"]}}), "'x' is no release"),
        (written(version="x"), "'x' is no version"),
        (written(version=None), "has no version"),
        (written(outcome="good"), "'good' is no outcome"),
        (written(outcome="skipped"), "without a reason"),
        (written(date="yesterday"), "yesterday"),
        (written(errors="3"), "errors is '3'"),
        (written(errors=True), "errors is True"),
        (written(colour="red"), "'colour' is unknown"),
        (dumps(FULL).replace("0.10.0", "0.9"), "has a release twice"),
    ],
)
def test_a_file_that_is_no_state_is_refused_in_a_sentence(tmp_path, text, reason):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(WrongUse, match="restore it from git, or move it away") as error:
        load(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert path.read_text() == text


def test_a_state_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(WrongUse, match="cannot be read"):
        load(tmp_path)


def test_a_state_that_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path):
    path = tmp_path / "state.json"
    save(FULL, path)
    code = """\
import resource, sys
from pathlib import Path
from conformance.target import WrongUse
from conformance.watch.state import Entry, load, save
path = Path(sys.argv[1])
state = load(path).having("vllm", [Entry("0.12.0", "clean", "2026-11-30")])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    save(state, path)
except WrongUse as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "cannot be written (File too large), and is as it was" in done.stderr
    assert load(path) == FULL
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_state_in_a_folder_that_is_not_there_cannot_be_written(tmp_path):
    with pytest.raises(WrongUse, match="cannot be written"):
        save(FULL, tmp_path / "none" / "state.json")


# The lock


def test_one_holds_the_lock_and_leaves_nothing_behind(tmp_path):
    state = tmp_path / "folder" / "state.json"
    with only_one(state):
        assert os.listdir(state.parent) == ["state.json.lock"]
        with pytest.raises(WrongUse, match="Another watch is at work"), only_one(state):
            pass
        with only_one(tmp_path / "other.json"):
            pass
    assert os.listdir(state.parent) == []
    with only_one(state):
        pass


def test_a_lock_of_a_watch_that_was_killed_holds_nobody_up(tmp_path):
    (tmp_path / "state.json.lock").write_text("")
    with only_one(tmp_path / "state.json"):
        pass


def test_who_waited_at_a_removed_lock_takes_the_new_one(tmp_path, monkeypatch):
    """A watch opens the lock's file, and its holder removes it before the watch has locked it."""
    path = tmp_path / "state.json.lock"
    opened = os.open
    removed = []

    def late(*arguments, **options):
        descriptor = opened(*arguments, **options)
        if not removed:
            removed.append(True)
            path.unlink()
        return descriptor

    monkeypatch.setattr("conformance.watch.lock.os.open", late)
    with only_one(tmp_path / "state.json"):
        assert path.exists()


# What is new


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ([], None),
        (["0.9.0"], "0.9.0"),
        (["0.8.0", "0.9.0", "0.10.0"], "0.9.0"),
        (["0.9.0", "0.10.0", "0.11.0rc1"], "0.9.0"),
        (["0.9.0rc1", "0.9.0rc2"], "0.9.0rc1"),
    ],
)
def test_a_watch_begins_so_that_the_newest_final_release_is_new(listed, first):
    assert begin(listed) == first


@pytest.mark.parametrize(
    ("known", "listed", "new"),
    [
        (["0.9.0"], ["0.8.0", "0.9.0"], []),
        (["0.9.0"], ["0.9"], []),
        (["0.9.0"], ["0.10.0", "0.9.1"], ["0.9.1", "0.10.0"]),
        (["0.9.0", "0.11.0"], ["0.9.0", "0.9.1", "0.10.0", "0.11.0"], ["0.9.1", "0.10.0"]),
        (["0.9.0", "0.11.0"], ["0.10.0rc1", "0.11.0rc1", "0.12.0rc1"], ["0.12.0rc1"]),
        (["0.9.0", "0.10.0rc1"], ["0.10.0rc1", "0.10.0rc2", "0.10.0"], ["0.10.0rc2", "0.10.0"]),
        (["0.10.0rc1"], ["0.10.0rc2", "0.9.0"], ["0.10.0rc2"]),
    ],
)
def test_what_is_newer_than_the_first_and_not_known_is_new_the_oldest_first(known, listed, new):
    assert unchecked([entry(version) for version in known], listed) == new


@pytest.mark.parametrize(
    ("known", "version", "against"),
    [
        (["0.9.0", "0.10.0"], "0.11.0", "0.10.0"),
        (["0.9.0", "0.10.0", "0.11.0"], "0.9.1", "0.9.0"),
        (["0.10.0", "0.11.0rc1"], "0.11.0", "0.10.0"),
        (["0.10.0", "0.11.0rc1"], "0.11.0rc2", "0.11.0rc1"),
        (["0.11.0rc1"], "0.11.0", "0.11.0rc1"),
        (["0.11.0"], "0.10.0", None),
    ],
)
def test_a_release_is_compared_with_the_newest_checked_one_below_it(known, version, against):
    assert predecessor([entry(known) for known in known], version) == against


def test_a_release_that_is_skipped_is_not_new_and_nothing_is_compared_with_it():
    entries = [entry("0.9.0"), entry("0.10.0", "skipped")]
    assert unchecked(entries, ["0.9.0", "0.10.0", "0.11.0"]) == ["0.11.0"]
    assert predecessor(entries, "0.11.0") == "0.9.0"
