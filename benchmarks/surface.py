"""What the static walk of a vLLM costs, beside other tools on the same tree, and how it grows.

    python benchmarks/surface.py [--source installed] [--turns 3]
    python benchmarks/surface.py --griffe-python PATH --pyan-python PATH
    python benchmarks/surface.py --source 0.20.0 --source 0.26.0 --source 0.32.0

With one source, these take turns, each in a fresh process that is pinned to one core:

- ``walk``: `conformance.surface.walker.walk` of the source, nothing cached;
- ``command``: ``vllm-conformance surface --format json`` with the inventory in its cache;
- ``parse``: `ast.parse` of every file, and nothing else: the unit;
- ``griffe``: ``griffe.load("vllm")`` of all files, aliases unresolved (package ``griffelib``);
- ``pyan3``: the call graph of ``vllm/v1``, as its command writes it (package ``pyan3``).

The last two work on a copy of the tree's files, and are left out, with a sentence, where the
interpreter that is given for them (this one by default) has no such module. Whoever comes first
changes from turn to turn. A turn gives one ratio, the walk to each of the others; the report has
the median of these ratios, and their lowest and highest.

With several sources, ``walk`` and ``parse`` of each take turns; there is a line for each source.

Times are of whole processes, from start to end; ``walk``, ``parse`` and ``griffe`` end without
freeing what they made, for which no user has to wait. The peak of memory is the kernel's
(``ru_maxrss``), which is never below what this process had when it started the other: the floor.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from conformance.cache import default_cache  # noqa: E402
from conformance.surface.sources import SourceTree, decode, open_source  # noqa: E402
from conformance.target import WrongUse  # noqa: E402

SCHEMA = "vllm-conformance/bench-surface/1"
PARTS = ("walk", "command", "parse", "griffe", "pyan3")
LIMIT = 900
"""Seconds of CPU time after which a process is ended."""

_PEERS = {"griffe": ("griffe", "griffelib"), "pyan3": ("pyan", "pyan3")}
"""The module that a part is run from, and the distribution that has it."""
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""No process imports what happens to lie in the working directory."""
_VERSION = (
    "import importlib.util, importlib.metadata as m, sys\n"
    "if importlib.util.find_spec(sys.argv[1]) is None: sys.exit(3)\n"
    "try: print(m.version(sys.argv[2]))\n"
    "except m.PackageNotFoundError: print('of unknown version')\n"
)
_GRIFFE = (
    "import os, sys, griffe\n"
    "griffe.load('vllm', search_paths=[sys.argv[1]], allow_inspection=False,"
    " resolve_aliases=False)\n"
    "os._exit(0)\n"
)


@dataclass(frozen=True)
class Taken:
    """What one process took: seconds from start to end and of CPU time, and its peak in MiB."""

    wall: float
    cpu: float
    mib: float


@dataclass(frozen=True)
class Size:
    """How much source there is. ``v1`` is the part below ``vllm/v1``."""

    modules: int
    lines: int
    v1_modules: int
    v1_lines: int


@dataclass(frozen=True)
class Ratio:
    """The median of the turns' ratios, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Part:
    """One part's figures: medians of its turns, and the walk's turns divided by its own.

    ``lines`` are those of the files that it is given.
    """

    name: str
    version: str | None
    lines: int
    seconds: float
    cpu_seconds: float
    mib: float
    walk_to_it: Ratio
    walk_to_it_cpu: Ratio
    walk_to_it_mib: Ratio


@dataclass(frozen=True)
class Release:
    """One source's line: medians of the walk's turns, and ratios of its turns.

    ``functions`` are those that the walk went through, None if it does not say; ``growth`` is its
    wall-clock time to that of the first source, ``walk_to_parse`` the same to parsing all files.
    """

    source: str
    version: str | None
    lines: int
    modules: int
    functions: int | None
    sites: int
    seconds: float
    cpu_seconds: float
    mib: float
    walk_to_parse: Ratio
    growth: Ratio


@dataclass(frozen=True)
class Conditions:
    """What the figures depend on. ``floor_mib`` is the peak of a process that does nothing."""

    date: str
    python: str
    processor: str
    cores: int
    core: int
    load_before: float
    load_after: float
    turns: int
    floor_mib: float


@dataclass(frozen=True)
class Report:
    """The figures of one run; either ``parts`` or ``releases`` is empty.

    ``rounds`` has every turn, by part or by source and part; ``left_out`` says what is missing.
    """

    sources: tuple[str, ...]
    conditions: Conditions
    parts: tuple[Part, ...]
    releases: tuple[Release, ...]
    left_out: tuple[str, ...]
    rounds: dict[str, tuple[Taken, ...]]

    def to_json(self) -> str:
        """Return the report as JSON, every turn included."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    def to_table(self) -> str:
        """Return the report as text for a terminal; its table is at most 120 columns wide."""
        at = self.conditions
        lines = [
            f"the static walk of {', '.join(self.sources)}",
            f"{at.date}, Python {at.python}, {at.processor}, {at.cores} cores, pinned to core "
            f"{at.core}",
            f"load {at.load_before:.1f} before, {at.load_after:.1f} after, turns {at.turns}, "
            f"doing nothing has a peak of {at.floor_mib:.0f} MiB",
            "",
        ]
        lines += _parts_table(self.parts) if self.parts else _releases_table(self.releases)
        if self.left_out:
            lines += ["", *self.left_out]
        return "\n".join(lines)


class MeasurementFailed(RuntimeError):
    """A process could not be measured; the message is one sentence, and what it printed last."""


def order(turn: int, count: int) -> list[int]:
    """Return who comes when in a turn, as indices; whoever was first is last in the next one."""
    return [(turn + place) % count for place in range(count)]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median, lowest and highest of the ratios, each of one turn.

    Raises:
        ValueError: there is none, or the two differ in length.
    """
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    if not ratios:
        raise ValueError("a ratio needs a turn")
    return Ratio(median(ratios), min(ratios), max(ratios))


def summarise_part(
    name: str,
    version: str | None,
    lines: int,
    walk: Sequence[Taken],
    taken: Sequence[Taken],
) -> Part:
    """Return a part's figures; turn by turn, ``walk`` was taken beside ``taken``."""
    return Part(
        name=name,
        version=version,
        lines=lines,
        seconds=median(turn.wall for turn in taken),
        cpu_seconds=median(turn.cpu for turn in taken),
        mib=median(turn.mib for turn in taken),
        walk_to_it=ratio([turn.wall for turn in walk], [turn.wall for turn in taken]),
        walk_to_it_cpu=ratio([turn.cpu for turn in walk], [turn.cpu for turn in taken]),
        walk_to_it_mib=ratio([turn.mib for turn in walk], [turn.mib for turn in taken]),
    )


def summarise_release(
    source: str,
    version: str | None,
    size: Size,
    found: Mapping[str, Any],
    walk: Sequence[Taken],
    parse: Sequence[Taken],
    first: Sequence[Taken],
) -> Release:
    """Return a source's line. ``found`` is what its walk said, ``first`` the first source's."""
    walls = [turn.wall for turn in walk]
    return Release(
        source=source,
        version=version,
        lines=size.lines,
        modules=size.modules,
        functions=found.get("functions"),
        sites=found["sites"],
        seconds=median(walls),
        cpu_seconds=median(turn.cpu for turn in walk),
        mib=median(turn.mib for turn in walk),
        walk_to_parse=ratio(walls, [turn.wall for turn in parse]),
        growth=ratio(walls, [turn.wall for turn in first]),
    )


def measure_size(tree: SourceTree, copy: Path | None = None) -> Size:
    """Count a tree's modules and lines; with ``copy``, write its files below that directory.

    Raises:
        WrongUse: a file can no longer be read.
    """
    modules = lines = v1_modules = v1_lines = 0
    for module, file in tree.files.items():
        data = tree.read(module)
        count = len(data.splitlines())
        modules, lines = modules + 1, lines + count
        if file.path.startswith("vllm/v1/"):
            v1_modules, v1_lines = v1_modules + 1, v1_lines + count
        if copy is not None:
            path = copy / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return Size(modules, lines, v1_modules, v1_lines)


def run_pinned(
    name: str, command: Sequence[str], core: int, environment: Mapping[str, str]
) -> tuple[Taken, str]:
    """Run a command on one core until it ends; return what it took, and what it printed.

    Its input is empty.

    Raises:
        WrongUse: it ended with status 2, which is how children say so; the message is its own.
        MeasurementFailed: it ended in any other way than well.
    """

    def pin() -> None:
        os.sched_setaffinity(0, {core})
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        before = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment,
            preexec_fn=pin,
        )  # fmt: skip
        # Popen's own waiting does not tell what the process used.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - before
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if process.returncode == 2:
        raise WrongUse(texts[1].strip())
    if process.returncode == -signal.SIGXCPU:
        raise MeasurementFailed(f"{name} took more than {LIMIT} s of CPU time, and was ended.")
    if process.returncode != 0:
        last = "\n".join(texts[1].strip().splitlines()[-5:])
        raise MeasurementFailed(f"{name} ended with status {process.returncode}; it said:\n{last}")
    return Taken(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), texts[0]


def find_peer(name: str, python: str | None) -> tuple[str, str] | str:
    """Return a peer's interpreter and version, or a sentence if the interpreter does not have it.

    ``name`` is ``griffe`` or ``pyan3``; without ``python`` it is looked for in this interpreter.

    Raises:
        WrongUse: ``python`` was given, and is no interpreter that runs.
    """
    module, distribution = _PEERS[name]
    option = f"--{name.removesuffix('3')}-python"
    interpreter = python or sys.executable
    try:
        done = subprocess.run(
            [interpreter, "-c", _VERSION, module, distribution],
            capture_output=True, text=True, timeout=60, env={**os.environ, **_SAFE_PATH},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or "it does not answer"
        raise WrongUse(
            f"{option} {interpreter} cannot be run ({why}): give the path of a Python that has "
            f"{distribution}."
        ) from error
    if done.returncode == 3:
        return (
            f"{name} is left out: {interpreter} has no module {module}; install {distribution} "
            f"into a virtual environment and give its Python with {option}."
        )
    if done.returncode != 0:
        raise WrongUse(
            f"{option} {interpreter} is no Python that answers (status {done.returncode}): give "
            f"the path of a Python that has {distribution}."
        )
    return interpreter, done.stdout.strip()


class _Run:
    """The processes of one run, with a temporary folder for what they need."""

    def __init__(
        self, arguments: argparse.Namespace, folder: Path, progress: Callable[[str], None]
    ) -> None:
        self.core: int = arguments.core
        self.turns: int = arguments.turns
        self.progress = progress
        self.copy = folder / "copy"
        self.cache = folder / "cache"
        self.copy.mkdir()
        self.cache.mkdir()
        # Releases that are there already are not fetched again; inventories are not shared.
        sources = default_cache() / "sources"
        if sources.is_dir():
            (self.cache / "sources").symlink_to(sources.resolve())
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.environment = {
            **os.environ,
            **_SAFE_PATH,
            "PYTHONPATH": path,
            "VLLM_CONFORMANCE_CACHE": str(self.cache),
        }

    def command(self, part: str, source: str, python: str = sys.executable) -> list[str]:
        """Return what is run for a part."""
        if part == "command":
            words = ["surface", "--format", "json", "--source", source]
            return [python, "-m", "conformance.cli", *words]
        if part == "griffe":
            return [python, "-c", _GRIFFE, str(self.copy)]
        if part == "pyan3":
            files = sorted(map(str, (self.copy / "vllm" / "v1").rglob("*.py")))
            options = ["--uses", "--no-defines", "--dot", "--root", str(self.copy)]
            return [python, "-m", "pyan", *options, "--file", os.devnull, *files]
        return [python, str(Path(__file__).resolve()), "--child", part, "--source", source]

    def run(self, name: str, command: Sequence[str]) -> tuple[Taken, str]:
        """Run one of them, having said so."""
        self.progress(name)
        return run_pinned(name, command, self.core, self.environment)


def compare(
    run: _Run, source: str, tree: SourceTree, peers: Mapping[str, tuple[str, str]]
) -> tuple[list[Part], dict[str, list[Taken]], list[str]]:
    """Take turns at one source; return figures, turns, and sentences on what failed.

    Raises:
        WrongUse: the source cannot be walked.
        MeasurementFailed: one of our own processes failed; another tool's is left out.
    """
    size = measure_size(tree, run.copy)
    commands = {
        part: run.command(part, source, peers[part][0]) if part in peers
        else run.command(part, source)
        for part in PARTS if part in peers or part not in _PEERS
    }  # fmt: skip
    failed: list[str] = []
    rounds: dict[str, list[Taken]] = {part: [] for part in commands}
    run.run("to fill the cache: command", commands["command"])
    for turn in range(run.turns):
        names = list(commands)
        for index in order(turn, len(names)):
            part = names[index]
            if part not in rounds:
                continue
            try:
                taken, _ = run.run(f"turn {turn + 1} of {run.turns}: {part}", commands[part])
            except (MeasurementFailed, WrongUse) as error:
                if part not in peers:
                    raise
                failed.append(f"{part} is left out: {error}")
                del rounds[part]
                continue
            rounds[part].append(taken)
    parts = [
        summarise_part(
            part,
            peers[part][1] if part in peers else None,
            size.v1_lines if part == "pyan3" else size.lines,
            rounds["walk"],
            taken,
        )
        for part, taken in rounds.items()
    ]
    return parts, rounds, failed


def grow(
    run: _Run, trees: Mapping[str, SourceTree]
) -> tuple[list[Release], dict[str, list[Taken]]]:
    """Take turns at several sources; return a line for each, and the turns.

    Raises:
        WrongUse: a source cannot be walked.
        MeasurementFailed: a process failed.
    """
    sizes = {source: measure_size(tree) for source, tree in trees.items()}
    subjects = [(part, source) for source in trees for part in ("walk", "parse")]
    rounds: dict[str, list[Taken]] = {f"{part} {source}": [] for part, source in subjects}
    found: dict[str, dict[str, Any]] = {}
    for turn in range(run.turns):
        for index in order(turn, len(subjects)):
            part, source = subjects[index]
            name = f"{part} {source}"
            command = run.command(part, source)
            taken, text = run.run(f"turn {turn + 1} of {run.turns}: {name}", command)
            rounds[name].append(taken)
            if part == "walk":
                found[source] = json.loads(text)
    first = rounds[f"walk {next(iter(trees))}"]
    releases = [
        summarise_release(
            source,
            tree.version,
            sizes[source],
            found[source],
            rounds[f"walk {source}"],
            rounds[f"parse {source}"],
            first,
        )
        for source, tree in trees.items()
    ]
    return releases, rounds


def _parts_table(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"{'':<14}  {'lines':>9}  {'seconds':>8}  {'of CPU':>8}  {'MiB':>6}  "
        f"{'walk / it: time':>22}  {'CPU time':>22}  {'memory':>6}"
    ]
    for part in parts:
        name = part.name if part.version is None else f"{part.name} {part.version}"
        lines.append(
            f"{name:<14}  {part.lines:>9,}  {part.seconds:>8.2f}  {part.cpu_seconds:>8.2f}  "
            f"{part.mib:>6,.0f}  {part.walk_to_it!s:>22}  {part.walk_to_it_cpu!s:>22}  "
            f"{part.walk_to_it_mib.median:>6.2f}"
        )
    return lines


def _releases_table(releases: Sequence[Release]) -> list[str]:
    lines = [
        f"{'source':<14}  {'lines':>9}  {'modules':>7}  {'functions':>9}  {'sites':>6}  "
        f"{'seconds':>8}  {'of CPU':>8}  {'MiB':>6}  {'walk / parse':>12}  {'/ the first':>11}"
    ]
    for row in releases:
        functions = "-" if row.functions is None else f"{row.functions:,}"
        lines.append(
            f"{row.source[-14:]:<14}  {row.lines:>9,}  {row.modules:>7,}  {functions:>9}  "
            f"{row.sites:>6,}  {row.seconds:>8.2f}  {row.cpu_seconds:>8.2f}  {row.mib:>6,.0f}  "
            f"{row.walk_to_parse.median:>12.2f}  {row.growth.median:>11.2f}"
        )
    return lines


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


# What follows runs in the child processes.


def child(part: str, source: str) -> int:
    """Walk or parse a source; print, as JSON, how much was found."""
    try:
        found = _walk(source) if part == "walk" else _parse(source)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found), flush=True)
    os._exit(0)  # as the command does: what it made is not freed object by object


def _walk(source: str) -> dict[str, Any]:
    from conformance.surface import walker as walker_module

    walker: Any = walker_module
    # The inventory does not say what the walk went through, so its last step is listened to.
    functions: int | None = None
    last_step: Callable[..., Any] | None = getattr(walker, "rows", None)

    def listening(solver: Any, *rest: Any) -> Any:
        nonlocal functions
        functions = count_functions(getattr(solver, "functions", None))
        assert last_step is not None
        return last_step(solver, *rest)

    if last_step is not None:
        walker.rows = listening
    inventory = walker.walk(open_source(source))
    return {"functions": functions, "sites": len(inventory.rows)}


def count_functions(functions: Sequence[Any] | None) -> int | None:
    """Count what has a body of its own: no module's body, and none that the walker made up.

    None if the walker has no such list.
    """
    if functions is None:
        return None
    try:
        return len([one for one in functions if not one.is_module and one.kind != "hub"])
    except AttributeError:
        return None


def _parse(source: str) -> dict[str, Any]:
    tree = open_source(source)
    for module, file in tree.files.items():
        try:
            ast.parse(decode(tree.read(module), file.path), file.path)
        except SyntaxError as error:
            raise WrongUse(f"{file.path} of {tree.label} cannot be parsed ({error}).") from error
    return {"modules": len(tree.files)}


# The command line.


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _turns(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text!r}")
    return int(text)


def _core(text: str) -> int:
    allowed = sorted(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) not in allowed:
        known = ", ".join(map(str, allowed))
        raise argparse.ArgumentTypeError(f"there is no core {text!r} here: give one of {known}")
    return int(text)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a mistake ends the process with status 2 and one sentence."""
    parser = _Parser(
        prog="surface.py",
        description="What the static walk of a vLLM costs, beside other tools on the same tree.",
    )
    parser.add_argument(
        "--source",
        action="append",
        help="as in vllm-conformance surface (default: installed); several show the growth",
    )
    parser.add_argument("--turns", type=_turns, default=3, help="of each process (default: 3)")
    parser.add_argument(
        "--core",
        type=_core,
        default=max(os.sched_getaffinity(0)),
        help="the core that all processes are pinned to (default: the last)",
    )
    parser.add_argument("--griffe-python", metavar="PATH", help="a Python that has griffelib")
    parser.add_argument("--pyan-python", metavar="PATH", help="a Python that has pyan3")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--child", choices=("walk", "parse"), help=argparse.SUPPRESS)
    parsed = parser.parse_args(words)
    parsed.source = parsed.source or ["installed"]
    twice = next((text for text in parsed.source if parsed.source.count(text) > 1), None)
    if twice is not None:
        parser.error(f"--source {twice} is given twice: give each source once")
    if len(parsed.source) > 1 and (parsed.griffe_python or parsed.pyan_python):
        parser.error(
            "several sources show how the walk grows, and no other tool: leave --griffe-python "
            "and --pyan-python out, or give one --source"
        )
    return parsed


def measure(arguments: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Measure what the command line asks for.

    Raises:
        WrongUse: a source cannot be read or walked, or an interpreter cannot be run.
        MeasurementFailed: a process failed.
    """
    load = os.getloadavg()[0]
    trees = {source: open_source(source) for source in arguments.source}
    left_out: list[str] = []
    peers: dict[str, tuple[str, str]] = {}
    if len(arguments.source) == 1:
        for name, python in (("griffe", arguments.griffe_python), ("pyan3", arguments.pyan_python)):
            peer = find_peer(name, python)
            if isinstance(peer, str):
                progress(peer)
                left_out.append(peer)
            else:
                peers[name] = peer
    parts: list[Part] = []
    releases: list[Release] = []
    with tempfile.TemporaryDirectory(prefix="bench-surface-") as folder:
        run = _Run(arguments, Path(folder), progress)
        if len(trees) == 1:
            ((source, tree),) = trees.items()
            parts, rounds, failed = compare(run, source, tree, peers)
            left_out += failed
        else:
            releases, rounds = grow(run, trees)
        floor = run.run("nothing", [sys.executable, "-I", "-S", "-c", ""])[0].mib
    return Report(
        sources=tuple(tree.label for tree in trees.values()),
        conditions=Conditions(
            date=date.today().isoformat(),
            python=platform.python_version(),
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            core=arguments.core,
            load_before=load,
            load_after=os.getloadavg()[0],
            turns=arguments.turns,
            floor_mib=floor,
        ),
        parts=tuple(parts),
        releases=tuple(releases),
        left_out=tuple(left_out),
        rounds={name: tuple(taken) for name, taken in rounds.items()},
    )


def main(words: Sequence[str]) -> int:
    """Print a report; exit status 2, with the reason on standard error, when there is none."""
    arguments = parse_arguments(words)
    if arguments.child is not None:
        return child(arguments.child, arguments.source[0])
    try:
        report = measure(arguments, lambda text: print(text, file=sys.stderr, flush=True))
    except (WrongUse, MeasurementFailed) as error:
        print(f"surface.py: {error}", file=sys.stderr)
        return 2
    print(report.to_json() if arguments.format == "json" else report.to_table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
