"""``vllm-conformance replay``: the history, what it comes to, and what contradicts it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance import expectations
from conformance.cache import FIXTURES
from conformance.cli import main
from conformance.drift.compare import Version
from conformance.replay import installed
from conformance.replay import kept as kept_data
from conformance.replay.command import Options, replay_of, run
from conformance.replay.history import (
    HISTORY,
    DriftLook,
    Fault,
    Shown,
    SuiteLook,
    SurfaceLook,
    chosen,
    load,
)
from conformance.replay.model import Answer, Replay
from conformance.replay.render import to_markdown, to_table
from conformance.report.model import Cell, Report, Row, State
from conformance.surface.model import Inventory
from conformance.target import WrongUse
from tests.test_drift import row

_DOCS = Path(__file__).parents[1] / "docs"


def no_suite(checks: Iterable[str]) -> Mapping[str, Answer]:
    assert not list(checks)
    return {}


@functools.cache
def kept() -> Replay:
    """All that the committed data show."""
    return replay_of(load(), run_suite=no_suite)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", *arguments])


def only(name: str, by: str = "") -> tuple[Fault, Shown]:
    """A fault, and its first look of a sort."""
    (fault,) = chosen(load(), [name])
    return fault, next(shown for shown in fault.shown if by in ("", shown.by))


def replayed(fault: Fault, shown: Shown, **options: Any) -> Replay:
    return replay_of([replace(fault, shown=(shown,))], **{"run_suite": no_suite, **options})


# The history.


def test_nothing_that_is_kept_contradicts_the_history() -> None:
    assert not kept().fails, to_table(kept())


def test_every_look_at_a_kept_release_was_answered() -> None:
    unanswered = [
        (item.fault.id, checked.version)
        for item in kept().faults
        for look in item.looks
        for checked in (*look.red, *look.green)
        if not isinstance(look.shown.look, SuiteLook)
        and checked.answer.colour == "not checked"
        and all(map(kept_data.is_kept, kept_data.needed(look.shown.look, checked.version)))
    ]
    assert unanswered == []


def test_every_look_has_a_version_that_is_green_or_says_why_there_is_none() -> None:
    for fault in load():
        for shown in fault.shown:
            assert shown.green or shown.unfixed, fault.id


@pytest.mark.parametrize("name", ["vllm#41033", "vllm#41932"])
def test_faults_of_published_wheels_are_shown_themselves(name: str) -> None:
    (item,) = [item for item in kept().faults if item.fault.id == name]
    assert item.state == "shown"


def test_the_shutdown_of_0_20_is_red_in_each_release_that_had_it_and_names_the_cause() -> None:
    fault, shown = only("vllm#41033", "drift")
    (look,) = replayed(fault, shown).faults[0].looks
    assert [(c.version, c.answer.colour) for c in look.red] == [
        ("0.20.0", "red"),
        ("0.20.1", "red"),
        ("0.20.2", "red"),
    ]
    assert "torch.accelerator.synchronize is reached in shutdown" in look.red[0].answer.text
    assert [(c.version, c.answer.colour) for c in look.green] == [("0.21.0", "green")]


def test_checks_of_the_suite_are_known_failures_of_the_versions_that_have_to_be_red() -> None:
    known = expectations.load(FIXTURES / "expectations")

    def is_known(check: str, version: str) -> bool:
        names = {check, f"{check.rpartition('@')[0]}]"}
        return any(
            item.subject == "upstream" and item.speaks_of(version) and names & set(item.checks)
            for item in known
        )

    for fault in load():
        for shown in fault.shown:
            if isinstance(shown.look, SuiteLook):
                for version in shown.had:
                    assert is_known(shown.look.check, version), (fault.id, version)
                if shown.green:
                    assert not is_known(shown.look.check, shown.green), (fault.id, shown.green)


# Contradictions.


@pytest.mark.parametrize(
    ("name", "by"),
    [("vllm#41033", "drift"), ("vllm#41033", "facts"), ("vllm#36078", "facts")],
)
def test_a_version_that_mended_it_and_is_said_to_have_had_it_fails(name: str, by: str) -> None:
    fault, shown = only(name, by)
    replay = replayed(fault, replace(shown, had=(shown.green,)))
    assert replay.fails
    assert f"{shown.green} has to be red, and is green" in to_table(replay)


@pytest.mark.parametrize(
    ("name", "by"),
    [("vllm#41033", "drift"), ("vllm#41033", "facts"), ("vllm#36078", "facts")],
)
def test_a_version_that_had_it_and_is_said_to_have_mended_it_fails(name: str, by: str) -> None:
    fault, shown = only(name, by)
    replay = replayed(fault, replace(shown, fixed=shown.had[-1], before=""))
    assert replay.fails
    assert f"{shown.had[-1]} has to be green, and is red" in to_table(replay)


def test_a_site_that_is_handled_and_is_said_not_to_be_fails() -> None:
    fault, shown = only("vllm#37546", "surface")
    replay = replayed(fault, replace(shown, had=("0.19.1",)))
    assert "0.19.1 has to be red, and is green" in to_table(replay)
    assert "vLLM's CPU runner: overridden" in to_table(replay)


def test_a_finding_that_does_not_say_what_it_has_to_fails() -> None:
    fault, shown = only("vllm#41033", "drift")
    replay = replayed(fault, replace(shown, says="is reached in the kitchen"))
    assert replay.fails
    assert "does not say 'is reached in the kitchen'" in to_table(replay)


def test_a_finding_of_another_function_is_not_the_one() -> None:
    fault, shown = only("vllm#41033", "drift")
    assert isinstance(shown.look, DriftLook)
    look = replace(shown.look, function="GPUModelRunner.elsewhere")
    assert replayed(fault, replace(shown, look=look)).fails


def test_a_contradiction_makes_the_exit_status_1(tmp_path: Path) -> None:
    path = tmp_path / "history.toml"
    path.write_text(HISTORY.read_text().replace(
        'says = "is reached in shutdown, where it was not before"', 'says = "all is well"'
    ))  # fmt: skip
    text, status = run(Options(("vllm#41033",), history=path))
    assert status == 1
    assert "other than it has to be" in text


def test_a_release_of_which_nothing_is_kept_is_not_checked_and_says_what_to_run() -> None:
    fault, shown = only("vllm#41033", "drift")
    replay = replayed(fault, replace(shown, had=("0.17.1",)))
    assert not replay.fails
    assert "vllm-conformance replay --fetch" in to_table(replay)
    assert replay.faults[0].looks[0].red[0].answer.colour == "not checked"


def test_sources_of_other_releases_are_read_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def versions(specs: tuple[str, ...], cache: Path) -> list[Version]:
        asked.extend(specs)
        return [Version(Inventory.of(specs[0], [replace(row(), upstream="none")]))]

    monkeypatch.setattr(kept_data, "versions", versions)
    fault, shown = only("vllm#37546", "surface")
    look = SurfaceLook(attribute=row().attribute, upstream="none")
    shown = replace(shown, look=look, had=("0.17.98",), fixed="0.19.1")
    assert replayed(fault, shown).faults[0].looks[0].red[0].answer.colour == "not checked"
    assert asked == []
    replay = replayed(fault, replace(shown, fixed="", unfixed="?"), fetch=True)
    assert replay.faults[0].looks[0].red[0].answer.colour == "red"
    assert asked == ["0.17.98"]


# Checks of the suite.


def suite_of(**colours: str) -> Any:
    """A suite that gives what it is told, and the texts that the history wants."""

    def run_suite(checks: Iterable[str]) -> dict[str, Answer]:
        return {name: Answer(colours["colour"], colours["text"]) for name in checks}  # type: ignore[arg-type]

    return run_suite


def test_a_check_is_run_for_the_installed_version_and_for_no_other() -> None:
    fault, shown = only("vllm#31679")
    suite = suite_of(colour="red", text=f"the {shown.says}")
    (look,) = replayed(fault, shown, installed="0.31.0", run_suite=suite).faults[0].looks
    assert {c.version: c.answer.colour for c in look.red} == {
        "0.30.0": "not checked",
        "0.31.0": "red",
        "0.32.0": "not checked",
    }
    assert "tox exec -e v0300 -- vllm-conformance replay" in look.red[0].answer.text


def test_a_check_that_passes_where_it_has_to_be_red_fails() -> None:
    fault, shown = only("vllm#31679")
    suite = suite_of(colour="green", text="it holds")
    assert replayed(fault, shown, installed="0.31.0", run_suite=suite).fails


def test_a_check_that_the_suite_has_not_got_fails() -> None:
    fault, shown = only("vllm#31679")
    suite = suite_of(colour="absent", text="the suite has no check of that name")
    assert replayed(fault, shown, installed="0.31.0", run_suite=suite).fails


def test_no_suite_is_run_where_another_vllm_is_installed() -> None:
    fault, shown = only("vllm#31679")
    assert not replayed(fault, shown, installed="0.29.0").fails


def test_installed_only_leaves_out_what_is_kept() -> None:
    suite = suite_of(colour="red", text="?")
    replay = replay_of(load(), installed="0.31.0", installed_only=True, run_suite=suite)
    looks = [look for item in replay.faults for look in item.looks]
    assert looks
    assert all(isinstance(look.shown.look, SuiteLook) for look in looks)
    assert replay_of(load(), installed=None, installed_only=True, run_suite=no_suite).faults == ()


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        (State.RED, "red"),
        (State.EXPECTED_RED, "red"),
        (State.OK, "green"),
        (State.NOT_CHECKED, "not checked"),
        (State.NOT_APPLICABLE, "not checked"),
    ],
)
def test_a_cell_of_the_suites_report_has_a_colour(state: State, colour: str) -> None:
    report = Report(versions={}, environment={}, subjects=())
    check = Row("area::check", "area", "claim", "reference")
    report.add(check, "upstream", Cell(state, "why\nmore"))
    assert installed.answer(report, "area::check").colour == colour
    assert installed.answer(report, "area::other").colour == "absent"


def test_why_a_failure_is_expected_is_not_what_the_check_says() -> None:
    report = Report(versions={}, environment={}, subjects=())
    check = Row("area::check", "area", "claim", "reference")
    report.add(check, "upstream", Cell(State.EXPECTED_RED, "a known cause\nwhat was found\nmore"))
    found = installed.answer(report, "area::check")
    assert found.text == "what was found"
    assert found.says("more") and not found.says("a known cause")


# The command.


def test_one_entry_is_told_with_its_versions_and_sums() -> None:
    done = command("vllm#41033")
    assert done.exit_code == 0, done.output
    assert "0.20.0 to 0.20.2; fixed 0.21.0" in done.stdout
    assert "1 fault: 1 shown." in done.stdout


def test_json_has_a_schema_and_a_member_for_each_version() -> None:
    done = command("vllm#41033", "pytorch#193951", "--format", "json")
    data = json.loads(done.stdout)
    assert data["schema"] == "vllm-conformance/replay/1"
    first, second = data["faults"]
    assert first["state"] == "shown"
    assert [item["found"] for item in first["shown"][0]["had"]] == ["red"] * 3
    assert second["state"] == "not here" and second["not_here"]


def test_an_unknown_id_is_one_sentence_and_exit_status_2() -> None:
    done = command("vllm#1")
    assert done.exit_code == 2
    assert done.stderr.startswith("The history has no entry vllm#1; it has vllm#41033")
    assert len(done.stderr.splitlines()) == 1


def test_the_page_has_the_table_of_today() -> None:
    text = (_DOCS / "replay.md").read_text()
    table = text.partition("<!-- table -->\n")[2].partition("<!-- end of table -->")[0]
    assert table == to_markdown(kept()), (
        "out of date: python -m conformance.replay.page writes it anew"
    )


# The file.

_ENTRY = """\
[[fault]]
id = "vllm#1"
link = "https://github.com/vllm-project/vllm/issues/1"
what = "it broke"
kind = "a break"
reported = "0.20.0"

[[fault.shown]]
by = "drift"
of = "fault"
old = "0.19.1"
rule = "CONTEXT"
attribute = "torch.accelerator.synchronize"
had = ["0.20.0"]
fixed = "0.21.0"
says = "is reached"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "history.toml"
    path.write_text(text)
    return path


def test_an_entry_has_defaults_for_what_it_leaves_out(tmp_path: Path) -> None:
    (fault,) = load(written(tmp_path, _ENTRY))
    assert fault.not_here == ""
    look = fault.shown[0].look
    assert isinstance(look, DriftLook)
    assert (look.severity, look.generation) == ("error", "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[[fault]]", "[[faults]]", "and nothing else"),
        ('kind = "a break"', 'sort = "a break"', "unknown: sort; missing: kind"),
        ('rule = "CONTEXT"', 'rule = "CONTEXT"\ncolour = "red"', "unknown: colour"),
        ('rule = "CONTEXT"', 'rule = "CONTEXT"\ncover = "none"', "unknown: cover"),
        ('rule = "CONTEXT"\n', "", "missing: rule"),
        ('"CONTEXT"', '"KONTEXT"', "rule is one of ADDED"),
        ('by = "drift"', 'by = "magic"', "by is one of drift"),
        ('of = "fault"', 'of = "all"', "of is fault or kind"),
        ('of = "fault"', 'of = "kind"', "not_here has to say why"),
        ('fixed = "0.21.0"\n', "", "or says why it is unfixed"),
        ('fixed = "0.21.0"', 'fixed = "0.21.0"\nunfixed = "so"', "or says why it is unfixed"),
        ('fixed = "0.21.0"', 'fixed = "0.21.0"\nbefore = "0.19.1"', "before is for"),
        ('"0.21.0"', '"the next"', "is no version"),
        ('["0.20.0"]', "[]", "list of the versions"),
        ('says = "is reached"', 'says = " "', "says something"),
        ('"https://github', '"github', "address of the public report"),
        ("[[fault]]", "[[fault]", "as TOML"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in _ENTRY
    with pytest.raises(WrongUse, match=said):
        load(written(tmp_path, _ENTRY.replace(old, new, 1)))


def test_two_entries_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="more than one entry for vllm#1"):
        load(written(tmp_path, _ENTRY + _ENTRY))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot be read"):
        load(tmp_path / "absent.toml")
