"""Recording on a GPU, as far as a machine without one can tell. Nothing here is a GPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.cache import FIXTURES
from conformance.cli import main
from conformance.kernels import store as kernel_store
from conformance.kernels.carried import CannotCarry, cut_out, launch
from conformance.kernels.example import Memory
from conformance.references import on_cuda
from conformance.references.bounds import bound
from conformance.references.compare import Observed, judge
from conformance.references.on_cuda import Options
from conformance.references.stages import Piece, Skipped, Stage, Tally, run
from conformance.references.store import Store
from conformance.references.transformers_reference import compute
from conformance.scenarios import recording
from conformance.scenarios.asking import asked_of_transformers, greedy_queries
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.checkpoints import checkpoint, checkpoint_hash
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun, Exit
from conformance.scenarios.runs import Runs
from conformance.scenarios.scenario import TRANSFORMERS
from conformance.surface.sources import memory_tree
from conformance.target import WrongUse

_ROOT = Path(__file__).parents[1]
_REFERENCES = FIXTURES / "references"
_CUDA = _REFERENCES / "cuda"
_NOT_A_GPU = {"source": "cuda", "device": "a test, and no GPU", "driver": "none", "versions": {}}
_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")


def _recorded(folder: str) -> Any:
    found = sorted((_CUDA / folder).glob("*.json"))
    return pytest.mark.parametrize("path", found, ids=[path.stem for path in found])


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _piece(name: str, record: Callable[[], Any], there: bool = False, seconds: float = 60) -> Piece:
    return Piece(name, seconds, lambda: there, lambda: record() or "done")


def _run(*stages: Stage, minutes: float = 8.0, **options: Any) -> tuple[Tally, list[str]]:
    said: list[str] = []
    return run(stages, minutes, said.append, **options), said


def test_stages_go_in_order_and_a_failure_ends_nothing() -> None:
    done: list[str] = []

    def fails() -> None:
        raise RuntimeError("out of memory\nmore")

    first = Stage("one", lambda: [_piece("a", fails), _piece("b", lambda: done.append("b"))])
    second = Stage("two", lambda: [_piece("c", lambda: done.append("c"))])
    tally, said = _run(first, second)
    assert done == ["b", "c"]
    assert said[0] == "one/a: failed: RuntimeError: out of memory ... more"
    assert (tally.recorded, tally.failed, tally.status) == (["one/b", "two/c"], ["one/a"], 1)


def test_nothing_is_begun_that_may_end_too_late() -> None:
    clock = _Clock()

    def works() -> None:
        clock.now += 50

    pieces = [_piece("a", works), _piece("b", works), _piece("short", works, seconds=20)]
    tally, said = _run(Stage("one", lambda: pieces), minutes=2, clock=clock)
    assert (tally.recorded, tally.left) == (["one/a", "one/b", "one/short"], [])
    clock.now = 0
    tally, said = _run(Stage("one", lambda: pieces), minutes=1.2, clock=clock)
    assert (tally.recorded, tally.left) == (["one/a", "one/short"], ["one/b"])
    assert said[-1] == "1 are left for another call: one/b"


def test_what_is_there_is_kept_even_when_there_is_no_time() -> None:
    tally, _ = _run(Stage("one", lambda: [_piece("a", pytest.fail, there=True)]), minutes=0)
    assert (tally.kept, tally.status) == (["one/a"], 0)


def test_what_is_missing_is_said_and_skipped() -> None:
    def unable() -> None:
        raise Skipped("no model")

    tally, said = _run(
        Stage("one", pytest.fail, ("vllm", "click")),
        Stage("two", lambda: [_piece("a", unable)]),
        has=lambda package: package != "vllm",
    )
    assert said == ["one: skipped: no vllm here", "two/a: skipped: no model"]
    assert tally.status == 2


def test_an_interrupt_ends_what_runs_and_begins_nothing_else() -> None:
    ended, begun = [], []

    def interrupt() -> None:
        raise KeyboardInterrupt

    pieces = [_piece("a", interrupt), *[_piece("b", lambda: begun.append(1))] * 50]
    with pytest.raises(KeyboardInterrupt):
        _run(
            Stage("one", lambda: pieces),
            Stage("two", pytest.fail),
            interrupted=lambda: ended.append(1),
        )
    assert ended and len(begun) < 50


def _prepared(folder: Path) -> kernel_store.Record:
    """A kernel that adds one to numbers, with a record that says so; no interpreter made it."""
    memory = Memory(-77)
    given = memory.tensor("x_ptr", [1, 2, 3], "int32")
    example = memory.example({"x_ptr": given}, (3,))
    before = example.regions[0].content
    after = b"".join(
        (int.from_bytes(before[i : i + 4], "little", signed=True) + (4 <= i < 16)).to_bytes(
            4, "little", signed=True
        )
        for i in range(0, len(before), 4)
    )
    provenance = {"source": "gpu-code", "tolerance": 0.0, "versions": {"vllm": "0"}}
    record = kernel_store.Record("triton:add", ("x_ptr",), (), (example,), ((after,),), provenance)
    folder.mkdir()
    kernel_store.write(folder / "add.json", record)
    (folder / "add.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef add(x_ptr):\n"
        "    at = x_ptr + tl.program_id(0)\n    tl.store(at, tl.load(at) + 1)\n"
    )
    return record


class _Asked(on_cuda._Children):
    """A piece's process that is this one, so that it can be interrupted where it hurts."""

    def __init__(self, record: kernel_store.Record, raised: BaseException | None) -> None:
        super().__init__()
        self._record, self._raised = record, raised

    def ask(self, entry: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        where = {**self._record.provenance, **arguments["where"]}
        kernel_store.write(Path(arguments["path"]), replace(self._record, provenance=where))
        if self._raised is not None:
            raise self._raised
        return {"examples": 1, "carried": 1, "differ": 0, "first": None, "source": "gpu-code"}


_MACHINE = {**_NOT_A_GPU, "torch": "2", "cuda": "13", "python": "3.11", "capability": [0, 0]}


def test_a_kernel_is_recorded_whole_or_not_and_not_twice(tmp_path: Path) -> None:
    record, out = _prepared(tmp_path / "in"), tmp_path / "out"
    options = Options(out, tmp_path, tmp_path / "in")
    for raised in (KeyboardInterrupt(), on_cuda.Failed("x")):
        (piece,) = on_cuda._kernels(options, _MACHINE, _Asked(record, raised))
        with pytest.raises(type(raised)):
            piece.record()
        assert not [path for path in out.rglob("*") if path.is_file()] and not piece.is_there()
    (piece,) = on_cuda._kernels(options, _MACHINE, _Asked(record, None))
    assert piece.record() == "1 of 1 launches; all as in gpu-code"
    assert piece.is_there()
    kept = kernel_store.read(out / "cuda" / "kernels" / "add.json")
    assert (kept.provenance["source"], kept.provenance["driver"]) == ("cuda", "none")
    (other,) = on_cuda._kernels(options, {**_MACHINE, "driver": "2"}, _Asked(record, None))
    assert not other.is_there()


def _python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@_TRITON
def test_a_carried_kernel_is_launched_and_compared(tmp_path: Path) -> None:
    _prepared(tmp_path / "in")
    code = (
        "import json; from pathlib import Path; from conformance.kernels.carried import launch;"
        "print(json.dumps(launch(Path('in'), 'add', Path('add.json'), 'cpu', 9.0,"
        " {'source': 'no GPU', 'versions': {}})))"
    )
    done = _python("-c", code, cwd=tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    held = {"source": "gpu-code", "examples": 1, "carried": 1, "differ": 0, "first": None}
    assert json.loads(done.stdout) == held
    assert kernel_store.read(tmp_path / "add.json").provenance["held against"] == held


@_TRITON
def test_an_interpreter_is_refused_in_the_gpus_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="no GPU's"):
        launch(tmp_path, "add", tmp_path / "x.json", "cuda", 1.0, _NOT_A_GPU)


def test_a_kernel_that_needs_more_of_vllm_is_not_carried() -> None:
    text = "from vllm.far import away\n@triton.jit\ndef kernel(x):\n    away(x)\n"
    tree = memory_tree({"vllm/__init__.py": "", "vllm/a.py": f"import triton\n{text}"})
    with pytest.raises(CannotCarry, match=r"no module vllm\.far, which has away"):
        cut_out(tree, "vllm.a", "kernel")


@_TRITON
@pytest.mark.timeout(400)
def test_carried_kernels_do_what_vllms_do_and_compile_for_a_gpu(host: Host, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "examples": 2}
    run = host.of("v2").run(
        "tests.child_entries:launch_carried", arguments, label="carried", limit=300
    )
    assert run.failure is None, run.failure
    assert run.results["differ"] == {}
    assert sum(run.results["launches"].values()) > 25
    for path in tmp_path.glob("*.py"):
        assert "import vllm" not in path.read_text() and "from vllm" not in path.read_text()
    heads = sorted(map(str, tmp_path.glob("*.json")))
    done = _python("-m", "tests.carried_kernels", *heads, cwd=_ROOT, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(heads) > 15


def test_float32_of_transformers_is_within_the_bounds_of_float64() -> None:
    with Host() as host:
        recipe = "tiny-llama+lora-mlp"
        asked = asked_of_transformers()[recipe]
        model = checkpoint(recipe, host.cache / "models")
        answers = compute(model, asked, dtype="float32")
    assert (answers.provenance.source, answers.provenance.dtype) == ("transformers", "float32")
    _agrees(answers.sequences, recipe)


def test_a_record_of_cuda_is_read_like_any_other(tmp_path: Path) -> None:
    recipe = "tiny-llama+lora-mlp"
    record = Store(_REFERENCES).load("transformers", recipe)
    assert record is not None
    where = replace(record.references.provenance, source="cuda", device="a test, and no GPU")
    synthetic = replace(record, references=replace(record.references, provenance=where))
    path = Store(tmp_path).save(synthetic)
    assert path == tmp_path / "cuda" / "transformers" / f"{recipe}.json"
    asked, read = asked_of_transformers()[recipe], Store(tmp_path)
    assert read.recipes("cuda") == (recipe,)
    _agrees(read.answers("cuda", recipe, checkpoint_hash(recipe), asked), recipe)
    with pytest.raises(WrongUse, match=f"stale.*--source cuda --recipe {recipe[:10]}"):
        read.answers("cuda", recipe, "another", asked)


def _agrees(sequences: Any, recipe: str) -> None:
    """Hold sequences against what transformers gave in float64."""
    asked = asked_of_transformers()[recipe]
    references = Store(_REFERENCES).answers(TRANSFORMERS, recipe, checkpoint_hash(recipe), asked)

    def ask(queries: Any) -> Any:
        with Host() as host:
            return compute(checkpoint(recipe, host.cache / "models"), queries).sequences

    observed = [Observed(s.tokens, tuple({x.token: x.logprob} for x in s.steps)) for s in sequences]
    margin, logprob = bound("margin", "float32").value, bound("logprob", "float32").value
    for found in judge(observed, references, ask, token_bound=margin, logprob_bound=logprob):
        assert found.tokens.conforms, str(found.tokens)
        assert found.logprobs is not None and found.logprobs.conforms, str(found.logprobs)


def _run_of(worker: str) -> ChildRun:
    """A run of ``greedy`` that gave what the committed references have, by such a worker."""
    scenario, results = SCENARIO["greedy"], {"built": [[worker, "a runner"]]}
    for step, name in scenario.runs:
        record = Store(_REFERENCES).load(TRANSFORMERS, scenario.recipe)
        assert record is not None
        answers = [record.answer(query) for query in greedy_queries(step)]
        results[name] = [
            {"prompt": list(found.prompt), "tokens": list(found.tokens), "logprobs": []}
            for found in answers
            if found is not None
        ]
    return ChildRun("a run", Exit(0, None, False, 1.0), (), results, True, "", "")


def test_a_scenario_is_recorded_and_held_against_transformers(tmp_path: Path) -> None:
    scenario, path = SCENARIO["greedy"], tmp_path / "greedy.json"
    with pytest.raises(recording.NotRecorded, match=r"cpu_worker.*not on a GPU"):
        recording.write(_run_of("vllm.v1.worker.cpu_worker.CPUWorker"), scenario, path, _NOT_A_GPU)
    assert not path.exists()
    run = _run_of("vllm.v1.worker.gpu_worker.Worker")
    assert recording.write(run, scenario, path, _NOT_A_GPU) > 1
    assert _wrong(path) == []
    data = json.loads(path.read_text())
    data["steps"]["single"][0]["tokens"][0] ^= 1
    path.write_text(json.dumps(data))
    assert len(_wrong(path)) == 1
    changed = replace(scenario, recipe="tiny-llama-8")
    with pytest.raises(WrongUse, match=r"stale.*record --source cuda --scenario greedy"):
        recording.load(path, changed)
    path.write_text("{")
    with pytest.raises(WrongUse, match="no recording of a scenario"):
        recording.load(path, scenario)


def _wrong(path: Path) -> list[str]:
    """What of a scenario's recording is other than transformers has it."""
    scenario = SCENARIO[path.stem]
    _, steps = recording.load(path, scenario)
    with Host() as host:
        runs = Runs(host)
        return [
            f"{name}, request {number}: {found.tokens}"
            for step, name in scenario.runs
            if step.against == TRANSFORMERS
            for number, found in enumerate(runs.judge(scenario, name, steps[name]))
            if not found.tokens.conforms
        ]


@_recorded("scenarios")
def test_a_scenario_on_a_gpu_gives_what_transformers_does(path: Path) -> None:
    assert _wrong(path) == []


@_recorded("transformers")
def test_transformers_on_a_gpu_agrees_with_float64(path: Path) -> None:
    asked = asked_of_transformers()[path.stem]
    read = Store(_REFERENCES).answers("cuda", path.stem, checkpoint_hash(path.stem), asked)
    _agrees(read, path.stem)


@_TRITON
@_recorded("kernels")
def test_a_kernel_on_a_gpu_leaves_what_the_interpreter_does(path: Path, host: Host) -> None:
    assert kernel_store.read(path).provenance["source"] == "cuda"
    run = host.of("v2").run(
        "tests.child_entries:held_to_the_interpreter", {"path": str(path)}, label=path.stem
    )
    assert run.failure is None, run.failure
    assert run.results["differ"] == []


@pytest.mark.parametrize("option", ["--scenario=greedy", "--prepare=x"])
def test_options_of_cuda_are_refused_elsewhere(option: str) -> None:
    done = CliRunner().invoke(main, ["record", "--source", "transformers", option])
    assert done.exit_code == 2 and "go with --source cuda" in done.output
