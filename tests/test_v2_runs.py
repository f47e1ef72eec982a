"""Runs of vLLM's V2 runner: how they are prepared, where they are refused, what fails their check.

Those that need the package triton are skipped without it.
"""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from conformance.scenarios import triton_backend
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host, HostError
from conformance.scenarios.observation import ChildRun, Exit, Phase, Raised
from conformance.scenarios.runs import Runs
from conformance.suite.cases import V2_RUNNERS, stopped
from conformance.suite.test_surface import unknown_in_v2
from conformance.surface.join import join, sites
from conformance.surface.model import Inventory, Row
from conformance.surface.recorder import Touch
from conformance.target import parse_subject

pytestmark = pytest.mark.xdist_group("host")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")

V2_RUNNER = V2_RUNNERS["upstream"]
UPSTREAM = parse_subject("upstream")


# The stand-in for Triton's backend.


class FakeBackend(NamedTuple):
    compiler: type
    driver: type


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The table of a package that passes for triton, in a process that interprets kernels."""
    package: Any = types.ModuleType("triton.backends")
    package.Backend, package.backends = FakeBackend, {"nvidia": FakeBackend(int, int)}
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.backends", package)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    table: dict[str, Any] = package.backends
    return table


def test_the_stand_in_is_never_active(backends: dict[str, Any]) -> None:
    triton_backend.register()
    assert set(backends) == {"nvidia", "cpu"}
    assert backends["cpu"].driver.is_active() is False


def test_a_backend_for_the_cpu_that_triton_has_is_kept(backends: dict[str, Any]) -> None:
    backends["cpu"] = FakeBackend(str, str)
    triton_backend.register()
    assert backends["cpu"] == FakeBackend(str, str)


def test_the_stand_in_comes_before_vllm(
    backends: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    with pytest.raises(RuntimeError, match="imported already"):
        triton_backend.register()
    assert set(backends) == {"nvidia"}


@pytest.mark.parametrize("value", [None, "0"])
def test_the_stand_in_is_for_interpreted_kernels_only(
    backends: dict[str, Any], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        triton_backend.register()
    assert set(backends) == {"nvidia"}


# The hosts of the two generations.


def test_without_triton_a_v2_run_is_refused_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_backend, "find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it was started"))
    with Host() as host, pytest.raises(HostError) as refusal:
        Runs(host).observe(UPSTREAM, SCENARIO["greedy"], generation="v2")
    assert str(refusal.value) == triton_backend.missing()
    assert "uv pip install triton" in str(refusal.value)


def test_there_is_one_host_for_each_generation() -> None:
    with Host() as host:
        assert host.of("v1") is host
        other = host.of("v2")
        assert (other.generation, other.cache) == ("v2", host.cache)
        assert host.of("v2") is other


def test_the_end_of_a_host_is_the_end_of_the_other_generations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    with Host() as host:
        monkeypatch.setattr(host.of("v2"), "close", lambda: closed.append("v2"))
    assert closed == ["v2"]


def test_a_v1_child_interprets_no_kernels_whatever_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with Host() as host:
        run = host.run("tests.child_entries:triton_mode", {}, label="a V1 child")
    assert run.failure is None, run.failure
    assert run.results == {"mode": [None, "0", False]}


@needs_triton
def test_a_v2_child_has_triton(host: Host) -> None:
    run = host.of("v2").run("tests.child_entries:triton_mode", {}, label="a V2 child")
    assert run.failure is None, run.failure
    assert run.results == {"mode": ["1", "1", True]}


# The check, on made-up runs.

TOUCH = Touch(
    attribute="torch.Event",
    phase="execute",
    module="vllm.v1.worker.gpu.async_utils",
    function="AsyncOutput.__init__",
    line=7,
    end_line=7,
    under_runner=True,
    importing=False,
    count=1,
)


def inventory_for(touches: tuple[Touch, ...], **given: Any) -> Inventory:
    """A V2 surface that has a row for each site, and no other."""
    rows = [
        Row(
            attribute=seen.attribute,
            kind="read",
            module=seen.module,
            function=seen.function,
            line=seen.line,
            end_line=seen.end_line,
            contexts=("execute",),
            tier="direct",
            chain=(),
            guards=(),
            **{"generation": "v2", "on_cpu": "true", "reason": "", **given},
        )
        for seen in sites(touches)
    ]
    return Inventory.of("0.99.0", rows)


def run_of(
    *touches: Touch, raised: Raised | None = None, runner: str = V2_RUNNER, done: bool = True
) -> ChildRun:
    return ChildRun(
        label="a run",
        exit=Exit(1 if raised else 0, None, False, 1.0),
        phases=(Phase("sample", ended=True, raised=raised),),
        results={
            "touches": [
                {name: getattr(touch, name) for name in Touch.__dataclass_fields__}
                for touch in touches
            ],
            "built": [["vllm.v1.worker.cpu_worker.CPUWorker", runner]],
        },
        done=done,
        stderr="",
        stdout="",
    )


INTERPRETER = Raised("InterpreterError", "AttributeError('planted')", "")
REFUSAL = Raised(
    "ValidationError",
    "1 validation error for VllmConfig\n  Value error, Model Runner V2 does not yet support: "
    "speculative method 'ngram' [type=value_error, input_value=ArgsKwargs(())]\n",
    "",
)
SURFACE = inventory_for((TOUCH,))
EMPTY = Inventory.of("0.99.0", [])


@pytest.mark.parametrize("raised", [None, INTERPRETER])
def test_a_run_whose_reads_are_on_the_v2_surface_is_no_finding(raised: Raised | None) -> None:
    assert unknown_in_v2(SURFACE, run_of(TOUCH, raised=raised), V2_RUNNER) is None


def test_a_run_that_vllm_refuses_before_it_reads_anything_is_no_finding() -> None:
    run = run_of(raised=REFUSAL)
    assert unknown_in_v2(EMPTY, run, V2_RUNNER) is None
    assert stopped(run) == (
        "vLLM refuses it: Model Runner V2 does not yet support: speculative method 'ngram'"
    )


@pytest.mark.parametrize(
    ("inventory", "run", "finding"),
    [
        (EMPTY, run_of(TOUCH), "has no such site"),
        (EMPTY, run_of(TOUCH, raised=INTERPRETER), "has no such site"),
        (inventory_for((TOUCH,), generation="v1"), run_of(TOUCH), "has no such site"),
        (
            inventory_for((TOUCH,), on_cpu="false", reason="planted"),
            run_of(TOUCH),
            "not reached on the CPU (planted)",
        ),
        (SURFACE, run_of(), "no read by vLLM was recorded"),
        (SURFACE, run_of(TOUCH, runner="vllm.a.V1Runner"), "and built vllm.a.V1Runner"),
        (SURFACE, run_of(TOUCH, raised=Raised("ValueError", "planted", "")), "ValueError"),
        (SURFACE, run_of(TOUCH, done=False), "exited with status 0"),
    ],
)
def test_what_fails_the_check(inventory: Inventory, run: ChildRun, finding: str) -> None:
    text = unknown_in_v2(inventory, run, V2_RUNNER)
    assert text is not None and finding in text


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (INTERPRETER, "Triton's interpreter stops at one of vLLM's kernels"),
        (REFUSAL, "vLLM refuses it"),
        (Raised("ValueError", "planted", ""), None),
        (None, None),
    ],
)
def test_only_the_interpreter_and_vllms_refusal_excuse_a_run(
    raised: Raised | None, reason: str | None
) -> None:
    found = stopped(run_of(TOUCH, raised=raised))
    assert found is None if reason is None else found is not None and found.startswith(reason)


# The check, on real runs.


@needs_triton
@pytest.mark.parametrize("scenario", ["greedy"])
def test_a_v2_run_gives_the_tokens_of_v1_and_misses_a_row_that_is_taken_out(
    host: Host, scenario: str
) -> None:
    runs = Runs(host)
    first, second = (
        runs.observe(UPSTREAM, SCENARIO[scenario], generation=generation)
        for generation in ("v1", "v2")
    )
    assert (first.failure, second.failure) == (None, None)
    assert first.results["built"] != second.results["built"]
    for step in SCENARIO[scenario].steps:
        one, two = ([got["tokens"] for got in run.results[step.name]] for run in (first, second))
        assert one == two

    surface = inventory_for(second.touches)
    assert unknown_in_v2(surface, second, V2_RUNNER) is None
    for row in surface.rows:
        without = Inventory.of("0.99.0", [other for other in surface.rows if other != row])
        (missed,) = join(without, second.touches, "v2").dynamic_only
        assert (missed.attribute, missed.module, missed.line) == (
            row.attribute,
            row.module,
            row.line,
        )
    wrong = replace(first, results={**first.results, "touches": second.results["touches"]})
    assert "the engine was to build" in (unknown_in_v2(surface, wrong, V2_RUNNER) or "")


@needs_triton
def test_the_v2_runner_is_imported_with_triton_where_there_is_one(host: Host) -> None:
    run = host.of("v2").run(
        "conformance.scenarios.importing:run", {"generation": "v2"}, label="an import"
    )
    assert run.failure is None, run.failure
    assert any(touch.by_vllm for touch in run.touches)
