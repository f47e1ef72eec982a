"""The static walker gives the rows that the micro-cases are marked with, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from conformance.surface.model import CONTEXTS, GENERATIONS, Call, Kind, OnCpu, Row, Tier
from conformance.surface.sources import memory_tree
from conformance.surface.walker import walk
from tests.walker_cases import CASES, TABLES
from tests.walker_cases.case import (
    OPTIONS,
    RUNNER,
    Case,
    Mark,
    disagreements,
    in_execute,
    marks_of,
    module_of,
)

_VALUES = {
    "cpu": get_args(OnCpu),
    "tier": get_args(Tier),
    "generation": (*GENERATIONS, "both"),
}


def _ids(cases: tuple[Case, ...]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("case", CASES, ids=_ids(CASES))
def test_the_walker_gives_exactly_the_marked_rows(case: Case):
    inventory = walk(memory_tree(case.tree, package="vllm"))
    assert not disagreements(case, inventory.rows), "\n" + "\n".join(
        disagreements(case, inventory.rows)
    )


@pytest.mark.parametrize("case", CASES, ids=_ids(CASES))
def test_a_case_is_consistent(case: Case):
    for path, text in case.tree.items():
        compile(text, path, "exec")
    marks = case.marks
    assert [mark for mark in marks if not mark.optional], "a case needs a row that must be there"
    assert len({mark.key for mark in marks}) == len(marks), "a row is marked twice"
    for mark in marks:
        _check(mark, case.files[mark.path].splitlines()[mark.line - 1])


def test_cases_have_names_of_their_own():
    for table in TABLES:
        names = _ids(table.CASES)
        assert len(set(names)) == len(names)
    assert len(CASES) >= 70


def test_a_mark_is_read_from_the_line_or_from_the_line_above():
    text = "a.b()  #! a.b call init,load cpu=true; c.d read\n\n#! ?e.f write +async\n\ne.f = 1\n"
    first, second, third = marks_of("vllm/x.py", text)
    assert first.key == ("vllm.x", 1, "a.b", "call")
    assert (first.contexts, first.at_least) == (frozenset({"init", "load"}), False)
    assert first.options == {"cpu": "true"}
    assert (second.key, second.contexts) == (("vllm.x", 1, "c.d", "read"), None)
    assert (third.optional, third.at_least) == (True, True)


_CASE = in_execute(
    "for the comparison",
    """
    if flag:
        #! torch.cuda.Event call execute tier=direct cpu=true keywords=blocking=True guard=flag
        torch.cuda.Event(blocking=True)
    torch.cuda.init  #! ?torch.cuda.init read cpu=false
    """,
)
_REQUIRED, _OPTIONAL = _CASE.marks


def _row(mark: Mark) -> Row:
    return Row(
        attribute=mark.attribute,
        kind="call" if mark.kind == "call" else "read",
        module=module_of(RUNNER),
        function="GPUModelRunner.execute_model",
        line=mark.line,
        end_line=mark.line,
        contexts=("execute",),
        tier="direct",
        chain=(),
        guards=("flag",),
        generation="v1",
        on_cpu="true",
        reason="",
        call=Call(keywords=("blocking=True",)),
    )


def test_the_rows_of_a_case_agree_with_it():
    assert disagreements(_CASE, [_row(_REQUIRED)]) == []
    assert disagreements(_CASE, [_row(_REQUIRED), replace(_row(_OPTIONAL), on_cpu="false")]) == []
    elsewhere = replace(_row(_REQUIRED), module="vllm.platforms")
    assert disagreements(_CASE, [_row(_REQUIRED), elsewhere]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "there is no such row"),
        ([replace(_row(_REQUIRED), kind="read")], "not expected here"),
        ([replace(_row(_REQUIRED), line=1)], "not expected here"),
        ([_row(_REQUIRED), replace(_row(_REQUIRED), attribute="torch.cuda.x")], "not expected"),
        ([replace(_row(_REQUIRED), contexts=("execute", "load"))], "contexts are"),
        ([replace(_row(_REQUIRED), contexts=())], "contexts are"),
        ([replace(_row(_REQUIRED), tier="by-name")], "tier is by-name, not direct"),
        ([replace(_row(_REQUIRED), on_cpu="unknown")], "cpu is unknown, not true"),
        ([replace(_row(_REQUIRED), guards=())], "guard is (), not flag"),
        ([replace(_row(_REQUIRED), call=None)], "keywords is , not blocking=True"),
        ([_row(_REQUIRED), _row(_OPTIONAL)], "cpu is true, not false"),
    ],
)
def test_a_difference_is_told(rows: list[Row], said: str):
    assert any(said in sentence for sentence in disagreements(_CASE, rows))


def _check(mark: Mark, line: str) -> None:
    code = line.partition("#!")[0]
    assert mark.text in code, f"{mark.path}:{mark.line} does not spell {mark.attribute}: {code!r}"
    assert mark.kind in get_args(Kind)
    assert mark.contexts is None or mark.contexts <= set(CONTEXTS)
    for name, value in mark.options.items():
        assert name in OPTIONS
        assert set(value.split("|")) <= set(_VALUES.get(name, value.split("|")))
