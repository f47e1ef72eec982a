"""Results merged to a matrix: what goes in is what comes out, and the committed page is the data's.

The reports are written here by hand, and so is what is expected of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from conformance import plugin
from conformance.cli import main
from conformance.report.matrix import LETTERS, Matrix, load, merge
from conformance.report.matrix_page import to_markdown
from conformance.report.model import Cell, Report, Row, State
from conformance.target import WrongUse

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "fixtures" / "matrix.json"
PAGE = ROOT / "docs" / "matrix.md"
EVENT = "contract::presence[torch.cuda.Event@execute]"
STREAM = "contract::behaviour[streams/they-compare@load]"
RUN = "engine::runs_from_start_to_exit[greedy]"


def report(vllm: str, torch: str = "2.13.0+cpu", triton: str | None = "3.9.0", **rows) -> Report:
    """A report whose rows are given as check -> {subject: state}."""
    environment = {"python": "3.11.7", "cpus": "2", "selected": rows.pop("selected", "all")}
    versions = {"vllm": vllm, "torch": torch, "transformers": "5.19.0", "triton": triton}
    found = Report(versions, environment, ("upstream", "ours"), seconds=90.0)
    for check, cells in rows.get("rows", {RUN: {"ours": State.OK}}).items():
        for subject, state in cells.items():
            found.add(Row(check, "area", "claim", ""), subject, Cell(state, "why"))
    return found


def cells_of(page: str, first: str) -> list[list[str]]:
    """The cells of the page's table rows that begin with some text."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {first} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def written(tmp_path: Path, name: str, found: Report) -> str:
    return str(found.write(tmp_path / name).parent)


def matrix_command(tmp_path: Path, *results: str):
    files = ["--data", str(tmp_path / "matrix.json"), "--page", str(tmp_path / "matrix.md")]
    return CliRunner().invoke(main, ["matrix", *results, *files])


def test_a_letter_stands_for_each_state_and_the_oldest_version_is_the_first():
    assert set(LETTERS) == set(State)
    states = dict(enumerate(State))
    new = report("0.32.0", rows={f"{RUN}{n}": {"ours": state} for n, state in states.items()})
    old = report("0.9.0", rows={f"{RUN}0": {"ours": State.RED, "upstream": State.OK}})
    found = merge({"new": new, "old": old})
    assert [column.label for column in found.columns] == ["0.9.0", "0.32.0"]
    assert found.checks[f"{RUN}0"] == {"ours": f"R{LETTERS[states[0]]}", "upstream": "o."}
    assert [found.checks[f"{RUN}{n}"]["ours"] for n in states][1:] == [".R", ".r", ".-", ".n"]


def test_a_merged_matrix_is_the_same_after_it_was_written_and_read():
    found = merge({"a": report("0.32.0"), "b": report("0.31.0", triton=None)})
    text = found.to_text()
    assert Matrix.from_text(text) == found
    assert Matrix.from_text(text).to_text() == text
    assert [line for line in text.splitlines() if line.startswith(f'"{RUN}"')] == [
        f'"{RUN}": {{"ours": "oo"}}'
    ]


def test_the_same_results_make_the_same_matrix_in_whatever_order_they_are_given():
    one, other = report("0.32.0"), report("0.31.0")
    assert merge({"a": one, "b": other}) == merge({"b": other, "a": one})


def test_environments_of_one_version_are_told_apart_and_the_usual_one_stands_for_it():
    found = merge(
        {
            "cuda": report("0.32.0", torch="2.13.0", triton=None),
            "plain": report("0.32.0", triton=None),
            "usual": report("0.32.0"),
            "old": report("0.26.0", torch="2.11.0", triton=None),
        }
    )
    labels = [column.label for column in found.columns]
    assert labels == ["0.26.0", "0.32.0", "0.32.0, without triton", "0.32.0, torch 2.13.0"]
    assert [labels[index] for index in found.versions] == ["0.26.0", "0.32.0"]


@pytest.mark.parametrize(
    ("reports", "sentence"),
    [
        ({"a": report("0.32.0"), "b": report("0.32.0")}, "a and b are both of vLLM 0.32.0"),
        ({"a": Report({"vllm": None}, {}, ())}, "a does not say which vLLM"),
        ({"a": Report({"vllm": "0.32.0"}, {}, ())}, "a has no checks"),
    ],
)
def test_results_that_make_no_column_are_refused(reports, sentence):
    with pytest.raises(WrongUse, match=sentence):
        merge(reports)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.update(schema="other"),
        lambda data: data["checks"][RUN].update(ours="o"),
        lambda data: data["checks"][RUN].update(ours="ox"),
        lambda data: data["environments"][0].update(more=1),
        lambda data: data.pop("checks"),
    ],
)
def test_a_damaged_matrix_is_refused(tmp_path, damage):
    data = json.loads(merge({"a": report("0.32.0"), "b": report("0.31.0")}).to_text())
    damage(data)
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(data))
    with pytest.raises(WrongUse, match="cannot be read as a matrix"):
        load(path)


def test_the_page_tells_sums_findings_and_what_differs():
    old = report(
        "0.31.0",
        rows={
            EVENT: {"upstream": State.EXPECTED_RED, "ours": State.OK},
            STREAM: {"upstream": State.OK, "ours": State.OK},
            RUN: {"upstream": State.NOT_CHECKED, "ours": State.OK},
        },
    )
    new = report(
        "0.32.0",
        rows={
            EVENT: {"upstream": State.OK, "ours": State.OK},
            STREAM: {"upstream": State.OK, "ours": State.RED},
            RUN: {"upstream": State.NOT_APPLICABLE, "ours": State.OK},
        },
    )
    page = to_markdown(merge({"old": old, "new": new}))
    sums, differing = page.split("## Sums")[1].split("## Findings")
    assert cells_of(sums, "0.31.0") == [["0.31.0", "1 ok, 1 red, 1 -", "3 ok"]]
    assert cells_of(sums, "0.32.0") == [["0.32.0", "2 ok, 1 n/a", "2 ok, 1 **RED**"]]
    findings, differing = differing.split("## What differs between versions")
    assert "- `upstream`: none, in 0.31.0, 0.32.0." in findings
    stream = ["`contract::behaviour`", "`streams/they-compare` (load)", "ok", "**RED**"]
    assert cells_of(findings, "`contract::behaviour`") == [stream]
    of_upstream, of_ours = differing.split("### `ours`")
    event = ["`contract::presence`", "`torch.cuda.Event` (execute)", "red", "ok"]
    assert cells_of(of_upstream, "`contract::presence`") == [event]
    assert cells_of(of_upstream, "`engine::runs_from_start_to_exit`") == [], "n/a is no difference"
    assert cells_of(of_ours, "`contract::behaviour`") == [stream]


def test_the_page_says_where_only_a_part_was_run_and_where_torch_differs_too():
    part = report("0.31.0", selected='-k "contract"')
    page = to_markdown(merge({"a": part, "b": report("0.26.0", "2.11.0", None)}))
    assert '| `-k "contract"` | 1.5 |' in page
    assert "From 0.26.0 to 0.31.0 torch and triton differ too" in page
    assert "How the checks change" not in page, "a part says nothing about what is new"


def test_checks_that_come_to_the_same_share_a_row_and_only_some_are_named():
    names = [f"contract::signature[triton:k{n}(_)@{c}]" for n in range(8) for c in ("load", "init")]
    rows = {name: {"ours": State.OK} for name in names}
    red = {name: {"ours": State.RED} for name in names}
    page = to_markdown(merge({"a": report("0.31.0", rows=rows), "b": report("0.32.0", rows=red)}))
    (row,) = cells_of(page.split("### `ours`")[1], "`contract::signature`")
    assert row[1].startswith("`triton:k0(_)` (init, load); ")
    assert row[1].endswith("; and 3 more")
    assert row[2:] == ["ok", "**RED**"]


def test_one_version_in_two_builds_is_compared_with_itself():
    usual = report("0.32.0", rows={EVENT: {"ours": State.OK}, RUN: {"ours": State.OK}})
    cuda = report("0.32.0", "2.13.0", None, rows={EVENT: {"ours": State.RED}})
    page = to_markdown(merge({"a": usual, "b": cuda}))
    apart = page.split("## What differs with 0.32.0, torch 2.13.0")[1]
    assert cells_of(apart, "`contract::presence`")[0][2:] == ["ok", "**RED**"]
    assert "engine::" not in apart, "a check that was not run there is no difference"


@pytest.mark.parametrize(
    ("keyword", "markers", "arguments", "text"),
    [
        ("", "", ["conformance/suite"], "all"),
        ("contract", "not real", ["conformance/suite"], '-k "contract" -m "not real"'),
        ("", "", ["conformance/suite/test_engine.py::test_x"], "test_engine.py::test_x"),
    ],
)
def test_a_session_says_which_part_of_the_checks_it_runs(keyword, markers, arguments, text):
    option = SimpleNamespace(keyword=keyword, markexpr=markers)
    assert plugin._selected(SimpleNamespace(option=option, args=arguments)) == text


def test_the_command_writes_data_and_page_and_makes_the_page_anew(tmp_path):
    results = [written(tmp_path, "v0320", report("0.32.0")), written(tmp_path, "v", report("0.1"))]
    done = matrix_command(tmp_path, *results)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 checks in 2 environments (0.1; 0.32.0)\n")
    page = (tmp_path / "matrix.md").read_text()
    (tmp_path / "matrix.md").unlink()
    assert matrix_command(tmp_path).exit_code == 0
    assert (tmp_path / "matrix.md").read_text() == page


def test_the_command_refuses_what_is_no_result_and_writes_nothing(tmp_path):
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    done = matrix_command(tmp_path, str(tmp_path / "other.json"))
    assert done.exit_code == 2
    assert "other.json cannot be read as results" in done.output
    assert not (tmp_path / "matrix.json").exists()


def test_the_committed_page_is_that_of_the_committed_data():
    assert PAGE.read_text(encoding="utf-8") == to_markdown(load(DATA)), (
        "docs/matrix.md is not what fixtures/matrix.json gives: run `vllm-conformance matrix`"
    )


def test_the_committed_data_is_written_as_the_command_writes_it():
    assert load(DATA).to_text() == DATA.read_text(encoding="utf-8")
