"""The join of rows and touches, on recorded reads of modules that pass for vLLM's."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.surface.join import join, same_attribute, sites
from conformance.surface.model import Inventory, Row
from conformance.surface.recorder import Recorder, Touch
from conformance.target import WrongUse

SOURCE = """\
import torch

MADE_AT_IMPORT = torch.cuda.Stream


class GPUModelRunner:
    def execute(self, x):
        event = torch.Event
        helper()
        torch.cuda.nvtx.range_push
        return event, (
            torch
            .cuda.streams
            .Event
        )

    def stage(self, event):
        event.record


def helper():
    torch.accelerator.synchronize


class StandIn:
    record = None
"""
MODULE = "vllm.fake_x"


def row(attribute: str, function: str, line: int, end_line: int | None = None, **other) -> Row:
    given = {"kind": "read", "generation": "v1", "on_cpu": "true", "reason": "", **other}
    return Row(
        attribute=attribute,
        module=MODULE,
        function=function,
        line=line,
        end_line=end_line or line,
        contexts=("execute",),
        tier="direct",
        chain=(),
        guards=(),
        **given,
    )


ROWS = (
    row("torch.cuda.Stream", "", 3),
    row("torch.Event", "GPUModelRunner.execute", 8),
    row("torch.cuda.nvtx.range_push", "GPUModelRunner.execute", 10),
    row("torch.cuda.Event", "GPUModelRunner.execute", 12, 14),
    row("torch.Event.record", "GPUModelRunner.stage", 18),
    row("torch.accelerator.synchronize", "helper", 22),
)
"""The complete static surface of the source."""


@pytest.fixture(scope="module")
def touches() -> tuple[Touch, ...]:
    """What a recorder sees of the source at work."""
    torch = pytest.importorskip("torch")
    module = types.ModuleType(MODULE)
    recorder = Recorder()
    before = torch.cuda.Event
    with recorder.recording(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, MODULE, module)
        exec(compile(SOURCE, "fake_x.py", "exec"), vars(module))
        recorder.phase = "execute"
        runner = module.GPUModelRunner()
        runner.execute(None)
        recorder.phase = "shutdown"
        patch.setattr(torch.cuda, "Event", module.StandIn)
        runner.stage(module.StandIn())
    assert torch.cuda.Event is before
    return tuple(touch for touch in recorder.touches if touch.module == MODULE)


def joined(touches, rows=ROWS, generation="v1"):
    return join(Inventory.of("0", rows), touches, generation)


def test_a_complete_surface_has_nothing_to_complain_of(touches):
    result = joined(touches)
    assert result.holds and result.sentences() == ()
    assert result.both == Inventory.of("0", ROWS).rows
    assert result.counts == {
        "both": 6,
        "static_only": 0,
        "folded": 0,
        "dynamic_only": 0,
        "contradicted": 0,
    }


@pytest.mark.parametrize("missing", ROWS, ids=lambda row: f"{row.attribute}:{row.line}")
def test_a_row_that_is_taken_out_is_seen_by_the_recorder_only(touches, missing):
    result = joined(touches, [row for row in ROWS if row is not missing])
    assert not result.holds and len(result.both) == 5
    for found in result.dynamic_only:
        assert missing.line <= found.line <= missing.end_line
    assert len(result.sentences()) == len(result.dynamic_only) >= 1
    assert f"at {MODULE}:" in result.sentences()[0]


def test_the_sentence_says_what_where_when_and_how_to_reproduce(touches):
    (sentence,) = joined(touches, ROWS[:-1]).sentences()
    assert sentence == (
        "torch.accelerator.synchronize is reached at vllm.fake_x:22 (helper), in phase execute, "
        "and the static surface has no such site: a bug of the walker; "
        "reproduce it with `vllm-conformance surface --explain torch.accelerator.synchronize`."
    )


WRONG = [
    ("another line", lambda row: replace(row, line=23, end_line=23)),
    ("a line before", lambda row: replace(row, line=20, end_line=21)),
    ("another module", lambda row: replace(row, module="vllm.fake_y")),
    ("another attribute", lambda row: replace(row, attribute="torch.cuda.synchronize")),
    ("a longer name", lambda row: replace(row, attribute="torch.accelerator.synchronize_all")),
    ("another generation", lambda row: replace(row, generation="v2")),
]


@pytest.mark.parametrize(("change", "planted"), WRONG, ids=[name for name, _ in WRONG])
def test_a_row_about_something_else_does_not_match(
    touches, change: str, planted: Callable[[Row], Row]
):
    result = joined(touches, [*ROWS[:-1], planted(ROWS[-1])])
    assert [seen.line for seen in result.dynamic_only] == [22], change


def test_a_generation_has_its_own_rows_and_the_common_ones(touches):
    rows = [replace(row, generation="both") for row in ROWS]
    assert joined(touches, rows).holds and joined(touches, rows, "v2").holds
    assert joined(touches, ROWS, "v2").counts["dynamic_only"] > 0


def test_a_row_that_no_run_reaches_is_static_only(touches):
    never = row("torch.cuda.Graph", "helper", 23)
    folded = replace(never, line=24, end_line=24, on_cpu="false")
    result = joined(touches, [*ROWS, never, folded])
    assert result.holds and result.static_only == (never, folded)
    assert (result.counts["static_only"], result.counts["folded"]) == (2, 1)


@pytest.mark.parametrize("planted", ROWS, ids=lambda row: f"{row.attribute}:{row.line}")
def test_a_touch_where_the_walker_folded_contradicts_it(touches, planted):
    wrong = replace(planted, on_cpu="false", reason="is_rocm() is false")
    result = joined(touches, [wrong if row is planted else row for row in ROWS])
    assert not result.holds and not result.dynamic_only
    assert {found.row for found in result.contradicted} == {wrong}
    assert "is not reached on the CPU (is_rocm() is false)" in result.sentences()[0]
    assert f"--explain {planted.attribute}`" in result.sentences()[0]


@pytest.mark.parametrize("on_cpu", ["true", "unknown"])
def test_two_rows_of_one_line_contradict_only_together(touches, on_cpu):
    second = replace(ROWS[-1], on_cpu="false", kind="call")
    rows = [*ROWS[:-1], replace(ROWS[-1], on_cpu=on_cpu), second]
    assert joined(touches, rows).holds


IGNORED = [
    {"under_runner": False, "importing": False},
    {"module": "transformers.fake_x"},
    {"module": "vllmish.fake_x"},
]


@pytest.mark.parametrize("planted", IGNORED, ids=str)
def test_a_touch_that_is_no_reach_of_the_runner_does_not_count(touches, planted):
    (touch,) = [touch for touch in touches if touch.line == 22]
    assert joined([touch], []).counts["dynamic_only"] == 1
    assert joined([replace(touch, **planted)], []).counts["dynamic_only"] == 0


def test_import_and_runner_each_suffice(touches):
    (touch,) = [touch for touch in touches if touch.line == 22]
    for planted in ({"importing": True}, {"under_runner": True}):
        only = replace(touch, **{"importing": False, "under_runner": False, **planted})
        assert joined([only], []).counts["dynamic_only"] == 1


def test_runs_and_phases_of_one_site_are_one(touches):
    (touch,) = [touch for touch in touches if touch.line == 22]
    other = replace(touch, phase="shutdown", count=4, outcome="RuntimeError: no device")
    (seen,) = sites([touch, other, touch])
    assert (seen.count, seen.phases) == (6, ("execute", "shutdown"))
    assert seen.outcomes == ("RuntimeError: no device", "read")
    assert "in phases execute, shutdown" in seen.place


SAME = [
    ("torch.cuda.Event", "torch.cuda.Event", True),
    ("torch.cuda.Event", "torch.cuda.streams.Event", True),
    ("torch.cuda.streams.Event", "torch.cuda.Event", True),
    ("torch.cuda.memory_allocated", "torch.cuda.memory.memory_allocated", True),
    ("torch.cuda.nvtx.range_push", "torch.cuda.nvtx", True),
    ("torch.cuda.nvtx.range_push", "torch.cuda.nvtx.range_push", True),
    ("torch.cuda.memory.MemPool", "torch.cuda.memory", True),
    ("torch.cuda.streams.Stream.priority_range", "torch.cuda.Stream", True),
    ("torch.Event.record", "torch.cuda.Event.record", True),
    ("torch.Stream.record_event", "torch.cuda.Stream.record_event", True),
    ("torch.cuda.Event.synchronize", "torch.Stream.synchronize", True),
    ("torch.cuda.streams.Event.wait", "torch.Event.wait", True),
    ("torch.Event.record", "torch.cuda.Event.wait", False),
    ("torch.Event", "torch.cuda.Event", False),
    ("torch.cuda.nvtx", "torch.cuda.nvtx.range_push", False),
    ("torch.cuda.Event", "torch.cuda.Even", False),
    ("torch.cuda.synchronize", "torch.accelerator.synchronize", False),
    ("torch.Tensor.cuda", "torch.cuda", False),
]


@pytest.mark.parametrize(("static", "dynamic", "same"), SAME)
def test_which_names_are_one_thing(static, dynamic, same):
    assert same_attribute(static, dynamic) is same


def test_a_generation_that_is_none_is_refused():
    with pytest.raises(WrongUse, match="'v3' is no runner generation: give one of v1, v2"):
        joined((), generation="v3")
