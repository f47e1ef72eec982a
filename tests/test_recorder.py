"""The dynamic recorder, in this process, on torch and on modules that pass for vLLM's."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun, Exit
from conformance.scenarios.runs import Runs
from conformance.surface import recorder as recorder_module
from conformance.surface.import_run import main as import_run
from conformance.surface.recorder import TENSOR_METHODS, Recorder, Touch, held_copies
from conformance.target import parse_subject

torch: Any = None
"""Imported when the first test of this module runs: collecting imports nothing heavy."""

Fake = Callable[..., types.ModuleType]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    global torch
    torch = pytest.importorskip("torch")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Make a loaded module from source text, so that its lines are known."""

    def make(source: str, name: str = "vllm.fake_x", **names: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, f"{name}.py", "exec"), vars(module))
        return module

    return make


def snapshot() -> dict[str, Any]:
    """Every object that the recorder could exchange: classes, attributes, methods, globals."""
    taken: dict[str, Any] = {}
    for name in [n for n in sys.modules if n == "torch" or recorder_module._is_recorded(n)]:
        module = sys.modules[name]
        taken[f"class of {name}"] = type(module)
        taken.update({f"{name}.{key}": value for key, value in vars(module).items()})
    classes = [torch.Tensor, torch.Event, torch.Stream]
    classes += [value for value in taken.values() if isinstance(value, type)]
    for cls in classes:
        prefix = f"{cls.__module__}.{cls.__qualname__}"
        taken.update({f"{prefix}.{key}": value for key, value in vars(cls).items()})
        taken[f"{prefix} reads by"] = cls.__getattribute__
    for name, module in sys.modules.items():
        if name.startswith("vllm."):
            taken.update({f"{name}.{key}": value for key, value in vars(module).items()})
    return taken


def changed(before: dict[str, Any]) -> list[str]:
    after = snapshot()
    absent = object()
    names = before.keys() | after.keys()
    return [n for n in sorted(names) if before.get(n, absent) is not after.get(n, absent)]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder after which everything is the identical object."""
    import torch._dynamo  # noqa: F401  # which the register imports, and which imports much

    before = snapshot()
    yield Recorder()
    assert changed(before) == []


def recorded(recorder: Recorder, *calls: Callable[[], Any]) -> tuple[Touch, ...]:
    with recorder.recording():
        for call in calls:
            call()
    return seen_by(recorder)


def seen_by(recorder: Recorder) -> tuple[Touch, ...]:
    """All touches but those of this file."""
    return tuple(touch for touch in recorder.touches if touch.module != __name__)


def names(touches: tuple[Touch, ...]) -> list[str]:
    return sorted({touch.attribute for touch in touches})


class StandInEvent:
    """What a runner binds to the name."""

    def __init__(self) -> None:
        self.record = lambda: None

    def elapsed_time(self, other: Any) -> float:
        return 1.0


EXPRESSIONS = [
    ("torch.cuda.is_available", ["torch.cuda.is_available"]),
    ("torch.cuda.is_available()", ["torch.cuda.is_available"]),
    ("torch.cuda.Event", ["torch.cuda.Event"]),
    ("torch.cuda.streams.Event", ["torch.cuda.streams.Event"]),
    ("torch.cuda.nvtx.range_push", ["torch.cuda.nvtx.range_push"]),
    ("torch.cuda.nvtx", []),
    ("torch.accelerator.is_available()", ["torch.accelerator.is_available"]),
    ("torch.Event", ["torch.Event"]),
    ("isinstance(1, torch.Stream)", ["torch.Stream"]),
    ("getattr(torch.cuda, 'stream')", ["torch.cuda.stream"]),
    ("hasattr(torch.cuda, 'no_such')", ["torch.cuda.no_such"]),
    ("torch.empty(0).cuda", []),
    ("torch.long, torch.nn.Module, torch.cuda.__name__", []),
]


@pytest.mark.parametrize(("expression", "attributes"), EXPRESSIONS, ids=[e for e, _ in EXPRESSIONS])
def test_a_read_is_seen(recorder, fake, expression, attributes):
    module = fake(f"import torch\ndef read():\n    return {expression}\n")
    touches = recorded(recorder, module.read)
    assert names(touches) == attributes
    for touch in touches:
        assert (touch.module, touch.function, touch.line) == ("vllm.fake_x", "read", 3)
        assert (touch.phase, touch.count, touch.importing) == ("import", 1, False)


def test_a_copy_that_is_taken_while_recording_is_seen(recorder, fake):
    touches = recorded(recorder, lambda: fake("from torch.cuda import (\n  Event, stream,\n)\n"))
    by_vllm = [touch for touch in touches if touch.by_vllm]
    assert names(tuple(by_vllm)) == ["torch.cuda.Event", "torch.cuda.stream"]
    assert all(touch.importing and touch.function == "<module>" for touch in by_vllm)
    assert names(touches) == names(tuple(by_vllm))


def test_a_submodule_that_is_imported_meanwhile_is_recorded_too(recorder, fake, monkeypatch):
    late = types.ModuleType("torch.cuda.late")
    late.name = 1
    read = fake("import torch\ndef read():\n    return torch.cuda.late.name\n").read
    monkeypatch.setitem(vars(torch.cuda), "late", late)
    assert names(recorded(recorder, read, read)) == ["torch.cuda.late.name"]
    assert type(late) is types.ModuleType
    monkeypatch.undo()


def test_a_class_body_imports_and_a_function_does_not(recorder, fake):
    source = "import torch\nclass A:\n    x = torch.cuda.Event\n    def f(self):\n" + (
        "        return torch.cuda.Stream\n"
    )
    touches = recorded(recorder, lambda: fake(source).A().f())
    assert {(t.attribute, t.function, t.importing) for t in touches} == {
        ("torch.cuda.Event", "A", True),
        ("torch.cuda.Stream", "A.f", False),
    }


def test_the_lines_are_those_of_the_expression(recorder, fake):
    source = """
import torch
def read():
    x = [
        (torch.
         cuda
         .Event),
        torch.cuda.Stream,
    ]
"""
    touches = recorded(recorder, fake(source).read)
    assert [(t.attribute, t.line, t.end_line) for t in touches] == [
        # Python 3.11 and 3.12 give the line of the last name.
        ("torch.cuda.Event", 7, 7),
        ("torch.cuda.Stream", 8, 8),
    ]


def test_two_expressions_of_one_line_are_two_touches_and_a_loop_is_one(recorder, fake):
    source = "import torch\ndef read():\n    for _ in range(3): torch.Event\n" + (
        "    torch.Event, torch.Event\n"
    )
    touches = recorded(recorder, fake(source).read)
    assert [(t.line, t.count) for t in touches] == [(3, 3), (4, 1), (4, 1)]


def test_reads_count_in_their_phase(recorder, fake):
    read = fake("import torch\ndef read():\n    torch.Event\n").read
    with recorder.recording():
        for phase in ("load", "execute", "execute"):
            recorder.phase = phase
            read()
    assert [(t.phase, t.count) for t in recorder.touches] == [("execute", 2), ("load", 1)]


@pytest.mark.parametrize(
    ("caller", "seen"),
    [
        ("vllm.v1.fake_x", True),
        ("vllm", True),
        ("transformers.fake_x", True),
        ("vllm.v1.worker.cpu_model_runner_of_another", True),
        ("torch", False),
        ("torch.fake_x", False),
        ("conformance.fake_x", False),
        ("runner_under_test.worker", False),
        ("vllm.v1.worker.cpu_model_runner", False),
        ("vllm.v1.worker.cpu.fake_x", False),
        ("importlib._bootstrap", False),
    ],
)
def test_who_reads_decides_whether_it_is_a_reach(recorder, fake, monkeypatch, caller, seen):
    read = fake("import torch\ndef read():\n    torch.Event, torch.cuda.Event\n").read
    monkeypatch.setitem(read.__globals__, "__name__", caller)
    touches = recorded(recorder, read)
    assert bool(touches) is seen
    assert all(t.by_vllm is caller.startswith("vllm") for t in touches)


def test_a_read_below_a_method_of_a_runner_is_under_it(recorder, fake):
    source = """
import torch
def helper():
    return torch.Event
def outside():
    return helper()
class WorkerBase:
    pass
class LoRAWorker(WorkerBase):
    def load(self):
        return (lambda: helper())()
class Scheduler:
    def step(self):
        return helper()
"""
    module = fake(source)
    outside = recorded(recorder, module.outside, module.Scheduler().step)
    assert [(t.under_runner, t.count) for t in outside] == [(False, 2)]
    both = recorded(recorder, module.LoRAWorker().load, module.outside)
    assert [(t.under_runner, t.count) for t in both] == [(True, 4)]


@pytest.mark.parametrize("base", ["GPUModelRunner", "WorkerBase", "AsyncModelRunnerOutput"])
def test_the_classes_of_runners_are_known_by_their_bases(recorder, fake, base):
    source = f"import torch\nclass {base}: pass\nclass X({base}):\n    def f(self): torch.Event\n"
    (touch,) = recorded(recorder, fake(source).X().f)
    assert touch.under_runner


MEMBERS = """
import torch
def make():
    return torch.cuda.Event()
def use(event):
    event.record()
    event.elapsed_time(event)
    event.no_such
"""


@pytest.mark.parametrize("bound", ["before", "while recording"])
def test_members_of_a_stand_in_are_seen(recorder, fake, monkeypatch, bound):
    module = fake(MEMBERS)
    with monkeypatch.context() as patch:
        if bound == "before":
            patch.setattr(torch.cuda, "Event", StandInEvent)
        with recorder.recording(), monkeypatch.context() as inner:
            if bound == "while recording":
                inner.setattr(torch.cuda, "Event", StandInEvent)
            event = module.make()
            assert type(event) is torch.cuda.Event is StandInEvent
            with pytest.raises(AttributeError, match="no_such"):
                module.use(event)
    outcomes = {t.attribute: (t.line, t.outcome.partition(":")[0]) for t in recorder.touches}
    assert outcomes == {
        "torch.cuda.Event": (4, "read"),
        "torch.cuda.Event.record": (6, "read"),
        "torch.cuda.Event.elapsed_time": (7, "read"),
        "torch.cuda.Event.no_such": (8, "AttributeError"),
    }
    assert "__getattribute__" not in vars(StandInEvent)


def test_a_stand_in_that_reads_its_own_way_gets_it_back_and_can_be_recorded_again(recorder, fake):
    class Event:
        def __getattribute__(self, name: str) -> str:
            return name

    own = vars(Event)["__getattribute__"]
    use = fake("def use(event):\n    return event.record\n").use
    before = torch.cuda.Event
    for count in (1, 2):
        with recorder.recording():
            try:
                torch.cuda.Event = Event
                assert use(Event()) == "record"
            finally:
                torch.cuda.Event = before
        assert vars(Event)["__getattribute__"] is own
        assert [(t.attribute, t.count) for t in seen_by(recorder)] == [
            ("torch.cuda.Event.record", count)
        ]


def test_an_inherited_member_is_seen_once_and_by_the_name_of_its_own_class(recorder, fake):
    class CudaEvent(StandInEvent):
        pass

    class Unbound(StandInEvent):
        pass

    use = fake("def use(event):\n    event.record()\n").use
    before = torch.Event, torch.cuda.Event
    for order in ((0, 1), (1, 0)):
        counting = Recorder()
        with counting.recording():
            try:
                for index in order:
                    if index:
                        torch.cuda.Event = CudaEvent
                    else:
                        torch.Event = StandInEvent
                use(CudaEvent())
                use(StandInEvent())
                use(Unbound())
            finally:
                torch.Event, torch.cuda.Event = before
        seen = {t.attribute: t.count for t in counting.touches}
        assert seen == {"torch.cuda.Event.record": 1, "torch.Event.record": 2}


def test_members_of_torchs_own_cuda_classes_are_seen(recorder, fake):
    use = fake("def use(event):\n    event.record, event.wait\n").use
    event = object.__new__(torch.cuda.Event)
    assert names(recorded(recorder, lambda: use(event))) == [
        "torch.cuda.Event.record",
        "torch.cuda.Event.wait",
    ]


class OutOfMemory(Exception):
    """What a runner may bind in a recorded module, and nobody has objects of."""


NO_STAND_INS = [OutOfMemory, OSError, threading.Event, int, lambda: None, None]


@pytest.mark.parametrize("stand_in", NO_STAND_INS)
def test_what_is_no_stand_in_for_a_class_is_left_alone(recorder, monkeypatch, stand_in):
    with recorder.recording(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Event", stand_in)
        patch.setattr(torch, "Event", stand_in)
        if isinstance(stand_in, type):
            reads = vars(stand_in).get("__getattribute__")
            assert not isinstance(reads, types.FunctionType)
        assert torch.Event is torch.cuda.Event is stand_in


def test_tensor_methods_are_seen_with_their_caller_and_outcome(recorder, fake):
    source = """
import torch
def use(x):
    y = (
        x
        .pin_memory()
    )
"""
    with recorder.recording(), pytest.raises(RuntimeError):
        fake(source).use(torch.empty(1))
    (touch,) = seen_by(recorder)
    assert touch.attribute == "torch.Tensor.pin_memory"
    assert (touch.module, touch.function) == ("vllm.fake_x", "use")
    assert 5 <= touch.line <= touch.end_line == 6
    assert touch.outcome.startswith("RuntimeError: ")


def test_tensor_methods_of_a_runner_that_patches_while_recording_are_seen(recorder, fake):
    use = fake("def use(x):\n    return x.pin_memory()\n").use
    x, made = torch.empty(1), []

    def patched(self: Any) -> Any:
        made.append(self)
        return self

    with recorder.recording():
        own = vars(torch.Tensor)["pin_memory"]  # as a runner keeps it
        for hint in ("phase", "touch", "rebinding torch"):
            torch.Tensor.pin_memory = patched
            if hint == "phase":
                recorder.phase = hint
            elif hint == "touch":
                _ = torch.cuda.Event
            else:
                torch.no_such_name = 1
                del torch.no_such_name
            assert use(x) is x
            torch.Tensor.pin_memory = own
            with pytest.raises(RuntimeError):
                use(x)
    assert len(made) == 3 and sum(t.count for t in seen_by(recorder)) == 6
    assert "pin_memory" not in vars(torch.Tensor)


def test_what_a_runner_leaves_on_the_tensor_is_left(fake):
    before = snapshot()

    def patched(self: Any) -> Any:
        return self

    with Recorder().recording() as _:
        torch.Tensor.pin_memory = patched
        _ = torch.cuda.Event
    assert vars(torch.Tensor)["pin_memory"] is patched
    del torch.Tensor.pin_memory
    assert changed(before) == []


def test_a_call_that_ends_the_recording_gives_its_site_the_outcome(recorder, fake):
    source = """
import torch
def fail():
    device = torch.cuda.device_count()
    torch.cuda.Stream
    torch.cuda.fail(torch.cuda.device_count(), device)
"""
    module = fake(source)

    def fails(*_: Any) -> None:
        raise ValueError("planted")

    before = vars(torch.cuda)
    assert "fail" not in before
    torch.cuda.fail = fails
    try:
        with pytest.raises(RuntimeError, match="wrapped"), recorder.recording():
            try:
                module.fail()
            except ValueError as error:
                raise RuntimeError("wrapped") from error
    finally:
        del torch.cuda.fail
    outcomes = {(t.attribute, t.line): t.outcome for t in recorder.touches}
    assert outcomes == {
        ("torch.cuda.device_count", 4): "read",
        ("torch.cuda.Stream", 5): "read",
        ("torch.cuda.fail", 6): "ValueError: planted",
        ("torch.cuda.device_count", 6): "read",
    }


def test_in_a_chain_of_calls_the_one_that_raised_has_the_outcome(recorder, fake, monkeypatch):
    class Stream:
        def wait_stream(self, stream: Any) -> None:
            raise ValueError("planted")

    source = """
import torch
def fail():
    torch.cuda.Stream().wait_stream(torch.cuda.Stream())
"""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", Stream)
        with pytest.raises(ValueError, match="planted"), recorder.recording():
            fake(source).fail()
    assert [(t.attribute, t.outcome) for t in seen_by(recorder)] == [
        ("torch.cuda.Stream", "read"),
        ("torch.cuda.Stream", "read"),
        ("torch.cuda.Stream.wait_stream", "ValueError: planted"),
    ]


def test_a_read_of_what_does_not_exist_has_its_outcome(recorder, fake):
    module = fake("import torch\ndef read():\n    return hasattr(torch.cuda, 'no_such')\n")
    (touch,) = recorded(recorder, module.read)
    assert touch.outcome == "AttributeError: module 'torch.cuda' has no attribute 'no_such'"


def test_a_name_that_torch_has_not_is_missing_while_recording_too(recorder, monkeypatch):
    with recorder.recording(), monkeypatch.context() as patch:
        patch.delattr(torch, "Event")
        with pytest.raises(AttributeError, match="no attribute 'Event'"):
            _ = torch.Event


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_is_left_behind(recorder, fake, monkeypatch, error):
    fake("from torch.cuda import set_stream as held\nimport torch.cuda.nvtx as nvtx\n")
    before = snapshot()
    event = torch.Event
    try:
        with recorder.recording():
            assert "class of torch" in changed(before)
            monkeypatch.setattr(torch, "Event", StandInEvent)
            monkeypatch.undo()
            if error is not None:
                raise error("planted")
    except (ValueError, KeyboardInterrupt):
        pass
    assert torch.Event is event
    gc.collect()
    monkeypatch.undo()


def test_a_recorder_that_cannot_start_leaves_nothing_behind(recorder, monkeypatch):
    def fails(*_: Any) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_record_module", fails)
        with pytest.raises(RuntimeError, match="planted"), recorder.recording():
            raise AssertionError("it started")


def test_only_the_classes_of_a_device_are_changed(recorder):
    with recorder.recording():
        classes = set(recorder._classes)
    assert {torch.cuda.Stream, torch.cuda.Event} <= classes
    others = {cls for cls in classes if not recorder_module._is_recorded(cls.__module__)}
    assert others == {torch.Event, torch.Stream}


def test_what_is_read_is_the_identical_object(recorder):
    modules = [torch.cuda, torch.accelerator, torch.cuda.nvtx]
    expected = [(module, dict(vars(module))) for module in modules]
    classes = torch.Event, torch.Stream
    with recorder.recording():
        assert (torch.Event, torch.Stream) == classes
        for module, values in expected:
            for name, value in values.items():
                assert getattr(module, name) is value
        assert isinstance(torch, types.ModuleType) and isinstance(torch.cuda, types.ModuleType)


def test_one_recorder_is_at_work_at_a_time(recorder):
    for other in (recorder, Recorder()):
        with (
            recorder.recording(),
            pytest.raises(RuntimeError, match="one at a time"),
            other.recording(),
        ):
            raise AssertionError("it started")
    with Recorder().recording():
        pass


def test_a_wrapper_that_somebody_kept_records_no_more(recorder, fake):
    use = fake("def use(method, x):\n    return method(x)\n").use
    with recorder.recording():
        kept = vars(torch.Tensor)["cuda"]
    with pytest.raises((RuntimeError, AssertionError)):
        use(kept, torch.empty(1))
    assert recorder.touches == ()


def test_copies_that_were_taken_before_are_listed(fake):
    fake("from torch.cuda import set_stream as held, Event\nx = 1\nclass A:\n    f = held\n")
    assert [copy for copy in held_copies() if copy.startswith("vllm.fake_x")] == [
        "vllm.fake_x.A.f: torch.cuda.set_stream",
        "vllm.fake_x.Event: torch.cuda.streams.Event",
        "vllm.fake_x.held: torch.cuda.set_stream",
    ]


def test_the_register_of_patches_applies_and_restores_under_a_recorder(recorder, fake):
    patches = [
        importlib.import_module(f"runner_under_test.patches.{family}").PATCHES
        for family in ("events", "accelerator", "pinned")
    ]
    register = importlib.import_module("runner_under_test.patches.register").Register(
        patch for family in patches for patch in family
    )
    source = """
import torch
def use(x):
    event = torch.Event()
    event.record()
    torch.accelerator.synchronize()
    return x.pin_memory()
"""
    module, x = fake(source), torch.empty(1)
    with recorder.recording():
        for _ in range(2):
            register.hold()
            register.apply()
            _ = torch.cuda.Event
            assert module.use(x) is x
            register.release()
    assert [(t.attribute, t.count, t.outcome) for t in seen_by(recorder)] == [
        ("torch.Event", 2, "read"),
        ("torch.Event.record", 2, "read"),
        ("torch.Tensor.pin_memory", 2, "read"),
        ("torch.accelerator.synchronize", 2, "read"),
    ]


def test_touches_survive_the_journey_from_the_child(recorder, fake):
    module = fake("import torch\ndef read():\n    torch.Event\n")
    touches = recorded(recorder, module.read, module.read)
    data = json.loads(json.dumps([asdict(touch) for touch in touches]))
    run = ChildRun("a run", Exit(0, None, False, 1.0), (), {"touches": data}, True, "", "")
    assert run.touches == touches
    assert run.summary["touched"] == {"import": {"torch.Event": 2}}


def test_the_tensor_methods_exist():
    assert all(callable(getattr(torch.Tensor, name)) for name in TENSOR_METHODS)


@pytest.mark.parametrize("words", [[], ["v3"], ["v1", "v2"]])
def test_the_import_run_says_what_it_takes(capsys, words):
    assert import_run(words) == 2
    assert capsys.readouterr() == ("", "import_run: give one of v1, v2.\n")


def test_the_recorder_imports_no_torch():
    code = (
        "import sys, conformance.surface.recorder, conformance.surface.join\n"
        "import conformance.surface.import_run\n"
        "print([name for name in ('torch', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.xdist_group("host")
@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_what_the_runners_modules_read_at_import_is_seen_in_a_fresh_process(
    host: Host, generation: str
) -> None:
    run = host.run(
        "conformance.scenarios.importing:run", {"generation": generation}, label="an import"
    )
    assert run.failure is None, run.failure
    by_vllm = [touch for touch in run.touches if touch.by_vllm]
    assert {touch.phase for touch in by_vllm} == {"import"}
    assert all(touch.importing or touch.function != "<module>" for touch in by_vllm)
    copied = [t for t in by_vllm if t.attribute == "torch.cuda.set_stream"]
    assert {t.module for t in copied} == {"vllm.utils.torch_utils"}
    held = run.results["held_copies"]
    assert "vllm.utils.torch_utils.prev_set_stream: torch.cuda.set_stream" in held


@pytest.mark.xdist_group("host")
def test_an_import_that_fails_says_why(host: Host) -> None:
    run = host.run("conformance.scenarios.importing:run", {"generation": "v3"}, label="an import")
    assert run.failure is not None and "give one of v1, v2" in run.failure


@pytest.mark.xdist_group("host")
def test_a_speculating_engine_touches_streams_and_events_under_its_runner(host: Host) -> None:
    run = Runs(host).observe(parse_subject("ours"), SCENARIO["spec-draft"])
    assert run.failure is None, run.failure
    assert run.results["patches_left"] == []
    under_runner = {touch.attribute for touch in run.touches if touch.under_runner}
    assert under_runner >= {
        "torch.cuda.Stream",
        "torch.cuda.Stream.wait_stream",
        "torch.cuda.current_stream",
        "torch.cuda.stream",
        "torch.Event",
        "torch.Event.record",
        "torch.Event.synchronize",
        "torch.accelerator.synchronize",
    }


@pytest.mark.xdist_group("host")
def test_the_call_that_ends_an_engine_has_its_outcome(host: Host) -> None:
    run = Runs(host).observe(
        parse_subject("ours"),
        SCENARIO["greedy"],
        environment={"RUNNER_UNDER_TEST_WITHOUT": "torch.accelerator.synchronize"},
    )
    outcomes = {touch.outcome for touch in run.touches if touch.outcome != "read"}
    (outcome,) = outcomes
    assert outcome.startswith("RuntimeError: ")
    assert {t.attribute for t in run.touches if t.outcome == outcome} == {
        "torch.accelerator.synchronize"
    }


@pytest.mark.parametrize(
    "words", ["--rounds 3", "--batch 0", "--output-tokens 1", "--model no-such", "--starts many"]
)
def test_the_benchmark_says_what_it_takes(words):
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "recorder.py"
    done = subprocess.run(
        [sys.executable, str(script), *words.split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "recorder.py: error: " in done.stderr
