"""Recordings of a GPU: where they can be made, and that those there are agree with the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.cache import FIXTURES
from conformance.cli import main
from conformance.contract import CLAUSE
from conformance.references import recording
from conformance.scenarios.host import Host
from conformance.target import WrongUse

_RECORDINGS = sorted((FIXTURES / "references" / "cuda").glob("*.json"))


def test_a_machine_without_a_gpu_records_nothing_and_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["record", "--source", "cuda", "--out", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert "finds no CUDA device" in done.output or "cannot be imported" in done.output
    assert not (tmp_path / "new").exists()


def test_what_is_asked_of_bare_torch_is_answered_clause_by_clause(host: Host) -> None:
    run = host.run("tests.child_entries:ask_clauses", {}, label="asked")
    answers: dict[str, dict[str, Any]] = run.results["asked"]
    assert {answer["state"] for answer in answers.values()} >= {"holds", "raises"}
    assert answers["devices/what-annotations-name-is-a-class"] == {"state": "holds", "said": ""}
    assert answers["accelerator/synchronize-returns"]["state"] == "raises"
    assert not {name for name in answers if CLAUSE[name].host_only}


@pytest.mark.parametrize("path", _RECORDINGS, ids=[path.stem for path in _RECORDINGS])
def test_a_gpu_does_what_every_clause_says(path: Path) -> None:
    data = recording.load(path)
    states = {name: answer for name, answer in data["clauses"].items() if name in CLAUSE}
    assert not {n: a for n, a in states.items() if a["state"] not in ("holds", "not asked")}


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other", "source": "cuda"}'])
def test_what_is_no_recording_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(WrongUse, match="no recording of a GPU"):
        recording.load(tmp_path / "x.json")
