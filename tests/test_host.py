"""The host of child processes: whatever a child does, the run goes on and says what happened."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from conformance.scenarios.host import Host, HostError

pytestmark = pytest.mark.xdist_group("host")


def test_a_child_reports_its_results_and_phases(host: Host) -> None:
    run = host.run("tests.child_entries:fine", {"value": 7}, label="a child")
    assert run.failure is None
    assert run.results == {"value": 7}
    assert [(phase.name, phase.ended) for phase in run.phases] == [("work", True)]
    assert run.phases[0].rss_bytes > 0


def test_an_exception_names_its_phase_and_its_message(host: Host) -> None:
    run = host.run("tests.child_entries:fails", {}, label="a child")
    assert run.exit.status == 1
    assert run.failure is not None
    assert "ValueError in phase 'work': planted" in run.failure


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_child_that_a_signal_ends_names_the_signal_and_the_phase(host: Host, signal: str) -> None:
    run = host.run("tests.child_entries:dies", {"name": signal}, label="a child")
    assert run.exit.signal == signal
    assert run.last_phase == "inner"
    assert run.failure is not None and signal in run.failure and "'inner'" in run.failure


def test_a_child_that_exits_in_the_middle_did_not_complete(host: Host) -> None:
    run = host.run("tests.child_entries:exits", {}, label="a child")
    assert run.exit.status == 0
    assert run.failure is not None and "phase 'work'" in run.failure


def test_an_interrupted_run_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with Host() as host:
        host.run("tests.child_entries:fine", {"value": 1}, label="the first")

        def interrupt() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(host, "_answer", interrupt)
            with pytest.raises(KeyboardInterrupt):
                host.run("tests.child_entries:hangs", {}, label="an interrupted one", limit=5)
        assert host.run("tests.child_entries:fine", {"value": 2}, label="n").results["value"] == 2


def test_a_child_that_hangs_is_stopped_at_its_limit(host: Host) -> None:
    run = host.run("tests.child_entries:hangs", {}, label="a child", limit=1.0)
    assert run.exit.timed_out
    assert run.failure is not None and "time limit" in run.failure


def test_the_next_child_runs_after_one_was_killed(host: Host) -> None:
    host.run("tests.child_entries:dies", {"name": "SIGKILL"}, label="a child")
    assert host.run("tests.child_entries:fine", {"value": 1}, label="the next").failure is None


def test_what_a_child_leaves_is_named_and_processes_are_ended(host: Host) -> None:
    run = host.run("tests.child_entries:leaves_things_behind", {}, label="a child")
    shared = run.results["shared"]
    os.unlink(shared)
    assert len(run.exit.processes_left) == 1
    assert "time.sleep(600)" in run.exit.processes_left[0]
    assert any(name.startswith("forgotten-") for name in run.exit.files_left)
    assert shared in run.exit.files_left
    ours = psutil.Process().children(recursive=True)
    assert not [p for p in ours if "time.sleep(600)" in " ".join(p.cmdline())]


def test_what_another_process_makes_in_shared_memory_is_not_the_childs(host: Host) -> None:
    done = threading.Event()

    def make() -> None:
        while not done.wait(0.01):
            with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="anothers-"):
                done.wait(0.3)

    maker = threading.Thread(target=make)
    maker.start()
    try:
        run = host.run("tests.child_entries:fine", {"value": 1}, label="a child")
    finally:
        done.set()
        maker.join()
    assert run.exit.files_left == ()


def test_a_closed_host_leaves_no_process_and_no_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(psutil.Process().children(recursive=True))
    with Host() as host:
        host.run("tests.child_entries:dies", {"name": "SIGSEGV"}, label="a child")
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_server_that_cannot_import_vllm_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "data" / "broken_vllm"))
    with Host() as host, pytest.raises(HostError, match="doctor"):
        host.run("tests.child_entries:fine", {"value": 1}, label="a child")
