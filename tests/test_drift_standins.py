"""What a package binds anew is read from its source: targets, signatures, members, for how long.

Each text is a module of its own; what is expected is written beside it, by hand.
"""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from conformance.drift import measure
from conformance.drift.classes import overrides_of, refusals_of
from conformance.drift.shapes import Shape, differences
from conformance.drift.side import Side
from conformance.drift.standins import Source, StandIn, stand_ins
from conformance.surface.model import Call
from conformance.target import WrongUse
from tests.test_drift import row

_BASES = {
    "vllm.v1.worker.gpu_model_runner": (
        "class Mixin:\n    def profile(self, n): pass\n\n"
        "class GPUModelRunner(Mixin):\n    def execute_model(self, ids, wait=False): pass\n"
    )
}


def read(text: str, **other: str) -> list[StandIn]:
    texts = {"m": dedent(text), **other}
    return list(stand_ins(Source(texts), iter(["m"])))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import torch\ntorch.cuda.Event = f", "torch.cuda.Event"),
        ("from torch import cuda as c\nc.Event = f", "torch.cuda.Event"),
        ("import torch\nsetattr(torch.cuda, 'Event', f)", "torch.cuda.Event"),
        (
            "import torch\ndef g():\n    n = 'Event'\n    setattr(torch.cuda, n, f)",
            "torch.cuda.Event",
        ),
        ("from unittest import mock\nmock.patch('torch.cuda.Event', f)", "torch.cuda.Event"),
        ("import vllm.a.b as x\nx.K = f", "vllm.a.b.K"),
        ("from vllm.a import b\nif b:\n    b.K = f", "vllm.a.b.K"),
        ("import sys\ndef g():\n    m = sys.modules.get('vllm.a.b')\n    m.K = f", "vllm.a.b.K"),
        ("register_kernels({'vllm.a.b.K': f})", "vllm.a.b.K"),
    ],
)
def test_every_way_to_bind_a_name_is_read(text: str, target: str) -> None:
    found = read(f"def f(a, b=1): pass\n{text}\n")
    assert [item.target for item in found] == [target]
    assert found[0].shape == Shape(("a", "b"), 1)


@pytest.mark.parametrize(
    "text",
    ["import torch\ntorch.cuda.x = 1", "import os\nos.environ = f", "config.a.b = f", "self.x = f"],
)
def test_settings_and_other_packages_are_no_stand_ins(text: str) -> None:
    assert read(text) == []


def test_what_a_context_manager_binds_and_takes_back_is_for_a_while() -> None:
    found = read(
        """\
        import torch
        from contextlib import contextmanager

        @contextmanager
        def bound():
            class Stream:
                def __init__(self, *args):
                    self.wait_stream = lambda *a: None
            before = torch.cuda.Stream
            try:
                torch.cuda.Stream = Stream
                yield
            finally:
                torch.cuda.Stream = before
        """
    )
    assert [(item.target, item.scoped) for item in found] == [("torch.cuda.Stream", True)]
    assert set(found[0].members or ()) == {"__init__", "wait_stream"}


def test_members_of_a_base_in_the_package_are_members_and_an_unknown_base_may_have_any() -> None:
    text = "import torch\nfrom n import Base\nclass E(Base):\n    def record(self): pass\n"
    bound = f"{text}torch.cuda.Event = E\n"
    inherited = read(bound, n="class Base:\n    def wait(self, stream=None): pass\n")
    assert inherited[0].members == {"wait": Shape(("stream",)), "record": Shape()}
    assert read(bound)[0].members is None


def test_a_wrapper_takes_what_it_wraps() -> None:
    found = read("import vllm.a as x\ndef f(a): pass\nw = FuncWrapper(f)\nx.K = w\n")
    assert found[0].shape == Shape(("a",), 1)


@pytest.mark.parametrize(
    ("signature", "call", "said"),
    [
        ("a, b=1", Call(("x",)), None),
        ("a, b=1", Call(("x", "y", "z")), "takes 2 arguments"),
        ("a, b=1", Call((), ("b=1",)), "needs a"),
        ("a, b=1", Call(("x",), ("c=1",)), "does not take c"),
        ("a, **k", Call(("x",), ("c=1",)), None),
        ("*a", Call(("x", "y")), None),
        ("a, /", Call((), ("a=1",)), "does not take a"),
        ("*, a", Call(), "needs a"),
        ("a", Call(("*x",)), None),
        ("a", Call((), ("**k",)), None),
        ("a", None, None),
    ],
)
def test_a_call_fits_a_signature_or_it_is_said_why_not(
    signature: str, call: Call | None, said: str | None
) -> None:
    node = ast.parse(f"def f({signature}): pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    refused = Shape.of(node, bound=False).refuses(call)
    assert refused is None if said is None else said in (refused or "")


def test_a_shape_is_the_same_after_being_written_and_read() -> None:
    shape = Shape(("a", "b"), 1, ("c",), ("c",), True, True, 1)
    assert Shape.from_json(shape.to_json()) == shape
    assert differences(shape, shape) == ()
    assert differences(Shape(("a",)), Shape(("b",))) == (
        "it takes `b` now",
        "it no longer takes `a`",
    )


def test_overrides_know_what_they_replace_through_mixins_and_whether_they_call_it() -> None:
    source = Source(
        {
            "m": (
                "from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
                "class R(GPUModelRunner):\n"
                "    def profile(self, n): pass\n"
                "    def execute_model(self, ids):\n"
                "        return super().execute_model(ids, wait=True, more=1)\n"
                "    def own(self): pass\n"
            )
        }
    )
    found = overrides_of(source, [("m", "R", "v1")], Source(_BASES))["v1"]
    assert found["profile"].base == Shape(("n",), 1) and not found["profile"].calls_super
    assert found["own"].base is None
    assert found["execute_model"].calls_super
    assert "does not take more" in found["execute_model"].refused[0]


def side(*items: StandIn) -> Side:
    return Side("x", items)


def test_a_stand_in_covers_a_member_only_if_it_has_it_and_it_takes_the_call() -> None:
    event = StandIn("torch.cuda.Event", "m:1", Shape(), {"record": Shape()})
    assert side(event).cover(row("torch.cuda.Event")).state == "rebound"
    assert side(event).cover(row("torch.cuda.Event.record")).state == "rebound"
    with_stream = row("torch.cuda.Event.record", call=Call(("stream",)))
    assert side(event).cover(with_stream).state == "refused"
    assert side(event).cover(row("torch.cuda.Event.query")).state == "incomplete"
    assert side(event).cover(row("torch.cuda.Stream")).state == "none"


def test_a_stand_in_for_a_while_covers_construction_only() -> None:
    event = StandIn("torch.Event", "m:1", Shape(), {}, scoped=True)
    assert side(event).cover(row("torch.Event", contexts=("init",))).state == "rebound"
    assert side(event).cover(row("torch.Event")).state == "for construction"


def test_a_function_of_vllm_that_is_bound_anew_covers_what_it_does() -> None:
    bound = StandIn("vllm.v1.worker.gpu_model_runner.GPUModelRunner", "m:1")
    assert side(bound).cover(row()).state == "overridden"


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("raise ImportError('broken')", "cannot be imported"),
        ("class accelerator:\n    is_available = staticmethod(lambda: True)", "has an accelerator"),
    ],
)
def test_nothing_is_measured_where_torch_is_missing_or_sees_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, said: str
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WrongUse, match=said):
        measure.measure([])


def test_what_differs_from_machine_to_machine_is_left_out_of_a_table() -> None:
    assert (
        measure._text("<E at 0x7f00ab> in /usr/lib/x/torch.so\nmore") == "<E at 0x...> in torch.so"
    )


def test_what_a_constructor_asserts_to_be_absent_is_refused() -> None:
    text = (
        "class R:\n"
        "    def __init__(self):\n"
        "        assert self.speculative_config is None, 'no'\n"
        "        assert not self.other\n"
        "        assert self.needed\n"
    )
    found = refusals_of(Source({"m": text}), [("m", "R", "v1")])
    assert found == {"v1": ("speculative_config", "other")}
    refusing = Side("x", refuses=found)
    assert refusing.refused(row(guards=("self.speculative_config.use_eagle()",)))
    assert refusing.refused(row(guards=("self.other is not None",)))
    assert refusing.refused(row(chain=("vllm.v1.spec_decode.eagle:propose:1",)))
    for denied in ("not (self.other)", "self.other is None"):
        assert refusing.refused(row(guards=(denied,))) is None
    assert refusing.refused(row(guards=("self.other",), generation="v2")) is None
