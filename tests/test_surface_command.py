"""``vllm-conformance surface``: what it lists, explains, writes and refuses; and the checks."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance import cli
from conformance.cli import main
from conformance.report.model import Cell, Report, State
from conformance.report.model import Row as ReportRow
from conformance.report.surface import Shown, lines, to_table
from conformance.report.terminal import render, verdict
from conformance.suite.test_surface import changed, unknown
from conformance.surface.inventory import INVENTORIES, inventory_of, load
from conformance.surface.model import CONTEXTS, SCHEMA, Inventory, Row
from conformance.surface.recorder import Touch
from conformance.surface.sources import memory_tree
from tests.walker_cases.case import RUNNER, in_execute

_CASE = in_execute(
    "surface",
    """\
    event = torch.cuda.Event(enable_timing=True)
    if current_platform.is_rocm():
        torch.cuda.synchronize()
    helper(flag)
    """,
    head="""\
    def helper(flag):
        if flag:
            torch.accelerator.synchronize()
    """,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CONFORMANCE_CACHE", str(tmp_path / "cache"))


def write_tree(root: Path, *, version: str | None = "0.99.0") -> Path:
    for path, text in _CASE.tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    if version is not None:
        (root / "PKG-INFO").write_text(f"Name: vllm\nVersion: {version}\n")
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with a tiny vLLM 0.99.0."""
    return write_tree(tmp_path / "tree")


def surface(source: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["surface", "--source", str(source), *arguments])


def sites(source: Path, *arguments: str) -> list[dict[str, Any]]:
    result = surface(source, "--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["sites"]


def test_json_is_an_object_with_a_schema_and_the_rows(source: Path):
    result = surface(source, "--format", "json")
    data = json.loads(result.stdout)
    assert [*data] == ["schema", "vllm", "source", "sites"]
    assert (data["schema"], data["vllm"]) == (SCHEMA, "0.99.0")
    assert data["source"] == f"directory {source}"
    tree = memory_tree(_CASE.tree, version="0.99.0")
    assert data["sites"] == [row.to_json() for row in inventory_of(tree, None).rows]
    by_name = {site["attribute"]: site["on_cpu"] for site in data["sites"]}
    assert by_name["torch.cuda.Event"] is True
    assert by_name["torch.cuda.synchronize"] is False
    assert result.stderr == ""


SELECTIONS: list[tuple[list[str], Callable[[dict[str, Any]], bool]]] = [
    (["--attribute", "torch.cuda.*"], lambda site: site["attribute"].startswith("torch.cuda.")),
    (["--attribute", "torch.Nothing"], lambda site: False),
    (["--on-cpu", "false"], lambda site: site["on_cpu"] is False),
    (["--on-cpu", "unknown"], lambda site: site["on_cpu"] == "unknown"),
    (["--on-cpu", "true", "--on-cpu", "false"], lambda site: site["on_cpu"] != "unknown"),
    (["--tier", "direct"], lambda site: site["tier"] == "direct"),
    (["--context", "shutdown"], lambda site: "shutdown" in site["contexts"]),
    (
        ["--context", "execute", "--context", "shutdown"],
        lambda site: not {"execute", "shutdown"}.isdisjoint(site["contexts"]),
    ),
    (["--generation", "v1"], lambda site: site["generation"] in ("v1", "both")),
    (["--generation", "v2"], lambda site: site["generation"] in ("v2", "both")),
    (
        ["--tier", "direct", "--attribute", "torch.*"],
        lambda site: site["tier"] == "direct" and site["attribute"].startswith("torch."),
    ),
]


@pytest.mark.parametrize(
    ("arguments", "holds"), SELECTIONS, ids=[" ".join(given) for given, _ in SELECTIONS]
)
def test_an_option_that_selects_gives_what_it_asks_for(
    arguments: list[str], holds: Callable[[dict[str, Any]], bool], source: Path
):
    assert sites(source, *arguments) == [site for site in sites(source) if holds(site)]


def test_the_table_has_sums_a_line_for_each_attribute_and_the_next_step(source: Path):
    result = surface(source)
    assert result.exit_code == 0 and result.stderr == ""
    text = result.stdout
    count = len(sites(source))
    assert text.startswith(f"vLLM 0.99.0 (directory {source}): {count} sites of ")
    for sentence in ("v1 only", "on the CPU path", "on a GPU only", "direct"):
        assert sentence in text.split("\n\n")[0]
    table = text.split("\n\n")[1].splitlines()
    assert table[0].split()[:2] == ["attribute", "CPU"]
    attributes = [line.split()[0] for line in table[1:]]
    assert sorted(attributes) == sorted({site["attribute"] for site in sites(source)})
    assert attributes[:2] == ["torch.accelerator.synchronize", "torch.cuda.Event"]
    assert f"--source {source} --explain torch.accelerator.synchronize`" in text


def row(attribute: str, on_cpu: str, upstream: str, kind: str = "call", line: int = 1) -> Row:
    return Row(
        attribute=attribute,
        kind=kind,
        module="vllm.a",
        function="f",
        line=line,
        end_line=line,
        contexts=("import", "execute"),
        tier="direct",
        chain=(f"vllm.a:f:{line}",),
        guards=(),
        generation="v1",
        on_cpu=on_cpu,
        reason="planted",
        upstream=upstream,
    )


_IN_ORDER = (
    row("torch.b.handled_by_nobody", "true", "none"),
    row("torch.c.perhaps_on_the_cpu", "unknown", "none"),
    row("torch.d.rebound", "true", "rebound"),
    row("torch.a.gpu_only", "false", "none"),
    row("platform.is_rocm", "true", "none", kind="predicate"),
)


def test_what_is_reached_on_the_cpu_and_handled_by_nobody_comes_first():
    assert [line.rows for line in lines(reversed(_IN_ORDER))] == [(row,) for row in _IN_ORDER]


def test_the_first_site_is_the_one_to_look_at():
    rows = [row("torch.x", cpu, up, line=n) for n, (cpu, up) in enumerate(
        [("false", "none"), ("unknown", "none"), ("true", "rebound"), ("true", "none")]
    )]  # fmt: skip
    (line,) = lines(rows)
    assert line.first.line == 3
    assert (line.count("true"), line.count("unknown"), line.count("false")) == (2, 1, 1)
    assert line.open == 1


def test_no_line_is_folded():
    long = replace(_IN_ORDER[0], attribute="torch." + "long_" * 20, module="vllm." + "m" * 100)
    text = to_table(Shown("0", "memory", (long,)))
    (line,) = [line for line in text.splitlines() if line.startswith("torch.long_")]
    assert f"{long.module}:1" in line


@pytest.mark.parametrize(
    ("contexts", "text"),
    [
        (("execute",), "execute"),
        (("import", "init", "sample"), "import, init, sample"),
        (("init", "load", "profile", "stream", "shutdown"), "init..profile, stream, shutdown"),
        (CONTEXTS[:-1], "import..async"),
        (CONTEXTS, "all"),
    ],
)
def test_contexts_in_a_row_are_shortened(contexts: tuple[str, ...], text: str):
    (line,) = lines([replace(_IN_ORDER[0], contexts=contexts)])
    assert line.contexts == text


def test_nothing_that_matches_is_a_sentence(source: Path):
    result = surface(source, "--context", "shutdown", "--attribute", "torch.Nothing")
    assert result.exit_code == 0
    assert result.stdout.startswith("No site of vLLM 0.99.0")


def test_an_explanation_has_the_chain_with_files_and_lines(source: Path):
    result = surface(source, "--explain", "torch.accelerator.synchronize")
    assert result.exit_code == 0, result.output
    text = (source / RUNNER).read_text().splitlines()
    used = next(n for n, line in enumerate(text, 1) if "accelerator.synchronize()" in line)
    called = next(n for n, line in enumerate(text, 1) if "  helper(flag)" in line)
    assert result.stdout == (
        f"1 site in vLLM 0.99.0 (directory {source})\n"
        "\n"
        "torch.accelerator.synchronize\n"
        f"  where      {RUNNER}:{used} in helper\n"
        "  kind       call\n"
        "  arguments  ()\n"
        "  contexts   execute\n"
        "  runner     v1 only\n"
        "  guards     flag\n"
        "  CPU        on the CPU path: no condition on the way excludes a CPU\n"
        "  upstream   nothing about it\n"
        "  chain      resolved\n"
        f"    {RUNNER}:{called} GPUModelRunner.execute_model\n"
        f"    {RUNNER}:{used} helper\n"
    )


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("torch.cuda.synchronize", ["torch.cuda.synchronize"]),
        ("cuda.synchronize", ["torch.cuda.synchronize"]),
        ("synchronize", ["torch.accelerator.synchronize", "torch.cuda.synchronize"]),
        ("*.sync*", ["torch.accelerator.synchronize", "torch.cuda.synchronize"]),
        ("Event", ["torch.cuda.Event"]),
    ],
)
def test_an_attribute_is_explained_by_its_name_its_end_or_a_glob(
    name: str, attributes: list[str], source: Path
):
    found = sites(source, "--explain", name)
    assert sorted({site["attribute"] for site in found}) == attributes


def test_why_a_site_is_not_reached_is_said(source: Path):
    text = surface(source, "--explain", "torch.cuda.synchronize").stdout
    assert "  guards     current_platform.is_rocm()\n" in text
    assert "  CPU        on a GPU only: current_platform.is_rocm() is false on a CPU\n" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--explain", "torch.cuda.synchronise"], "the nearest are torch.cuda.synchronize"),
        (["--explain", "torch.xpu.synchronize"], "torch.accelerator.synchronize"),
        (["--explain", "zzz"], "without --explain all are listed"),
        (["--explain", "Event", "--context", "shutdown"], "as far as the options go"),
        (["--source", "no/such/place"], "does not exist"),
        (["--source", ""], "names no source"),
        (["--context", "lunch"], "lunch"),
        (["--generation", "v9"], "v9"),
        (["--write", "--explain", "Event"], "leave the options that select out"),
        (["--write", "--generation", "v1"], "leave the options that select out"),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(arguments: list[str], sentence: str, source: Path):
    result = surface(source, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


def test_a_source_that_does_not_parse_is_status_2(source: Path):
    (source / RUNNER).write_text("def broken(:\n")
    result = surface(source)
    assert result.exit_code == 2
    assert "gpu_model_runner.py" in result.stderr and "Traceback" not in result.output


def test_the_inventory_is_written_where_it_is_asked_for(source: Path, tmp_path: Path):
    result = surface(source, "--write", str(tmp_path / "new"))
    path = tmp_path / "new" / "0.99.0.json"
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{len(sites(source))} sites of vLLM 0.99.0: {path}\n"
    assert [row.to_json() for row in load(path).rows] == sites(source)


def test_the_inventory_is_written_among_the_known_ones(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert INVENTORIES.parts[-2:] == ("fixtures", "inventories")
    monkeypatch.setattr("conformance.surface.inventory.INVENTORIES", tmp_path / "known")
    assert surface(source, "--write").exit_code == 0
    assert [path.name for path in (tmp_path / "known").iterdir()] == ["0.99.0.json"]


def test_a_source_without_a_version_is_not_written(tmp_path: Path):
    result = surface(write_tree(tmp_path / "tree", version=None), "--write", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert "is no version" in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_second_time_nothing_is_walked(source: Path, monkeypatch: pytest.MonkeyPatch):
    first = surface(source).stdout
    monkeypatch.setattr("conformance.surface.walker.walk", None)
    assert surface(source).stdout == first


def test_from_the_cache_nothing_heavy_is_imported(source: Path):
    surface(source)
    code = (
        "import sys\n"
        "from conformance.cli import main\n"
        "try:\n"
        f"    main(['surface', '--source', {str(source)!r}, '--context', 'execute'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "heavy = ['torch', 'vllm', 'numpy', 'pytest', 'pypi_simple', 'requests',\n"
        "         'conformance.surface.walker', 'conformance.scenarios.host']\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "said"),
    [(_Terminal, 1.3, "reading it ...\n"), (_Terminal, 0.0, ""), (io.StringIO, 1.3, "")],
)
def test_what_takes_longer_than_a_second_is_said_on_a_terminal(
    stream: type[io.StringIO], seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
):
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    with cli._said_if_slow("reading it ..."):
        time.sleep(seconds)
    assert screen.getvalue() == said


# What the suite's checks make of planted faults.

_KNOWN = Inventory.of("0.99.0", _IN_ORDER)


def test_a_surface_that_is_known_is_no_finding():
    assert changed(_KNOWN, _KNOWN) is None


@pytest.mark.parametrize("missing", _IN_ORDER, ids=lambda row: row.attribute)
def test_a_row_that_is_missing_or_new_is_a_finding(missing: Row):
    fewer = replace(_KNOWN, rows=tuple(row for row in _KNOWN.rows if row is not missing))
    for known, found, word in ((_KNOWN, fewer, "removed"), (fewer, _KNOWN, "added")):
        text = changed(known, found)
        assert text is not None
        assert f"{word}: {missing.attribute} ({missing.kind}) at vllm.a:1" in text
        assert "`vllm-conformance surface --source installed --write`" in text


def test_many_differences_are_twenty_lines():
    rows = [row(f"torch.x{n}", "true", "none") for n in range(50)]
    for count in (20, 21, 50):
        text = changed(Inventory.of("0.99.0", rows[:count]), Inventory("0.99.0", ()))
        assert text is not None
        assert len(text.splitlines()) == 21
        assert text.startswith(f"{count} sites")
    assert text.splitlines()[-1] == "  ... and 31 more"


_TOUCH = Touch(
    attribute="torch.b.handled_by_nobody",
    phase="execute",
    module="vllm.a",
    function="f",
    line=1,
    end_line=1,
    under_runner=True,
    importing=False,
    count=1,
)


def test_reads_that_are_on_the_surface_are_no_finding():
    assert unknown(_KNOWN, [_TOUCH]) is None


@pytest.mark.parametrize(
    ("touches", "sentence"),
    [
        ([replace(_TOUCH, line=9, end_line=9)], "has no such site"),
        ([replace(_TOUCH, attribute="torch.a.gpu_only")], "not reached on the CPU (planted)"),
        ([], "no read by vLLM was recorded"),
        ([replace(_TOUCH, module="transformers.a")], "no read by vLLM was recorded"),
    ],
)
def test_a_read_that_the_surface_denies_is_a_finding(touches: list[Touch], sentence: str):
    text = unknown(_KNOWN, touches)
    assert text is not None and sentence in text


def test_a_check_without_a_subject_has_a_column_of_its_own():
    report = Report({}, {}, ("bare", "ours"))
    report.add(ReportRow("engine::a", "engine", "a", ""), "ours", Cell(State.OK))
    assert report.subjects == ("bare", "ours")
    report.add(ReportRow("surface::b", "surface", "b", ""), "harness", Cell(State.RED, "planted"))
    assert report.subjects == ("bare", "ours", "harness")
    (line,) = [line for line in render(report).splitlines() if line.startswith("  b ")]
    assert line.split() == ["b", "RED"]
    assert verdict(report, failed=True).startswith("1 finding")
