"""The pages of ``docs/drift``: judgements are kept, and what they judge must be there."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from conformance.drift import pages
from conformance.drift.model import SEVERITIES
from conformance.drift.rules import BY_ID
from conformance.drift.side import State
from conformance.target import WrongUse
from tests.test_drift import drift_of

_JUDGEMENT = """\
[[step]]
step = "0.98.0..0.99.0"
text = "What it came to."

[[judgement]]
step = "0.98.0..0.99.0"
rule = "ADDED"
attribute = "torch.accelerator.synchronize"
path = "vllm/v1/worker/gpu_model_runner.py"
verdict = false
why = "read and dismissed"
"""


def judgements(folder: Path, text: str) -> pages.Judgements:
    (folder / "judgements.toml").write_text(text)
    return pages.load(folder / "judgements.toml")


def test_a_page_keeps_what_was_judged(tmp_path: Path) -> None:
    text = pages.page(drift_of("ADDED"), judgements(tmp_path, _JUDGEMENT))
    assert "**Judged false**: read and dismissed" in text
    assert "What it came to." in text
    assert "Not judged" not in text


def test_a_page_says_what_is_not_judged(tmp_path: Path) -> None:
    assert "**Not judged yet.**" in pages.page(drift_of("ADDED"), judgements(tmp_path, ""))


def test_the_table_of_steps_counts_judgements(tmp_path: Path) -> None:
    text = pages.overview([drift_of("ADDED")], judgements(tmp_path, _JUDGEMENT))
    assert "| 1 | 0 | 1 | 0 | 0 | 0 |" in text
    assert "Of 1 judged error 1 were false." in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[other]\n", "nothing else"),
        (_JUDGEMENT + "more = 1\n", "has the keys"),
        (_JUDGEMENT.replace("verdict = false", 'verdict = "no"'), "true or false"),
        (_JUDGEMENT.replace("read and dismissed", " "), "says why"),
        ("[[step\n", "as TOML"),
    ],
)
def test_a_file_of_judgements_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        judgements(tmp_path, text)


def test_a_judgement_of_what_is_no_error_is_refused(tmp_path: Path) -> None:
    found = judgements(tmp_path, _JUDGEMENT.replace("ADDED", "GUARD"))
    with pytest.raises(WrongUse, match="no error any more"):
        pages._require_findings(found, [drift_of("ADDED")], tmp_path / "judgements.toml")


def test_every_step_has_a_page_and_every_page_a_step() -> None:
    names = {f"{old}-{new}.md" for old, new in pages.steps()}
    found = {path.name for path in pages.DIRECTORY.glob("*-*.md")} - {"how-to.md"}
    assert found == names, "write them anew: python -m conformance.drift.pages"


def test_at_most_one_judged_error_in_ten_is_false() -> None:
    found = pages.load(pages.DIRECTORY / pages.JUDGEMENTS).found
    assert found
    assert sum(not judgement.verdict for judgement in found) <= len(found) / 10


def test_the_guide_names_every_rule_severity_and_state() -> None:
    guide = (pages.DIRECTORY / "how-to.md").read_text()
    for name in (*BY_ID, *(state for state in get_args(State) if state != "not checked")):
        assert f"`{name}`" in guide, name
    for severity in SEVERITIES:
        assert f"| {severity} |" in guide
