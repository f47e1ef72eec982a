"""The command's answers to wrong use: one sentence that says what to do, and exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--subject", "nobody"], "names no runner"),
        (["run", "--subject", "a.b:c-d"], "names no runner"),
        (["run", "--subject", "no_such_module:Runner"], "no_such_module cannot be imported"),
        (["run", "--subject", "collections:OrderedDict"], "neither a vLLM worker nor a subclass"),
        (["run", "--subject", "collections:Nothing"], "collections has no Nothing"),
        (["run", "--subject", "tests.data.raises_at_import:Runner"], "ZeroDivisionError: planted"),
        (["run", "--subject", "tests.data.exits_at_import:Runner"], "ended the process"),
        (["run", "-n", "many"], "is no number of processes"),
        (["run", "--generation", "v9"], "v9"),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_a_report_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["run", "--report", str(tmp_path / "file")])
    assert result.exit_code == 2


def test_no_vllm_is_one_sentence_and_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.target._version", lambda distribution: None)
    result = CliRunner().invoke(main, ["run"])
    assert result.exit_code == 2
    assert "vLLM is not installed here" in result.stderr
    assert "doctor" in result.stderr


def test_an_expression_that_matches_no_check_is_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", "-k", "no_such_check", "-n", "0"])
    assert result.exit_code == 2
    assert "No check matches" in result.stderr
