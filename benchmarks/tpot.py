"""Time per output token of a CPU runner against vLLM's own, measured side by side.

    python benchmarks/tpot.py [--subject ours] [--batch 1 --batch 4] [--rounds 32] [--starts 4]
    python benchmarks/tpot.py --control

Two processes, one per runner, hold an engine each and take turns at the same request; the one whose
turn it is not waits for its pipe. The order is swapped every round, so that neither runner is
always the one that comes second. A round gives one ratio, runner to upstream, of two
measurements a second apart, a start of the pair the median of its rounds; the report is the
geometric mean over the starts, with an interval.

Time is wall-clock time. Beside it stands the same ratio of CPU time, all threads together, which
other programs on the machine disturb less; with ``--threads 1`` it counts work alone, as then no
thread of the engine spins while it waits for another.

``--control`` puts a second upstream process in the runner's place: what it shows is noise.

The engines run in the child processes; the parent imports neither torch nor vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import geometric_mean, median
from types import TracebackType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from conformance.cache import default_cache  # noqa: E402
from conformance.scenarios.host import CHILD_ENVIRONMENT  # noqa: E402
from conformance.scenarios.observation import tail  # noqa: E402
from conformance.scenarios.recipes import RECIPES, materialise  # noqa: E402
from conformance.scenarios.smollm2 import PackageMissing  # noqa: E402
from conformance.target import (  # noqa: E402
    Subject,
    Versions,
    WrongUse,
    parse_subject,
    require_vllm,
)

SCHEMA = "vllm-conformance/tpot/2"
UPSTREAM = parse_subject("upstream")
RESAMPLES = 2000
SETTLE_SECONDS = 0.03
"""Pause before each turn: the OpenMP threads of the turn before spin a moment before they sleep."""


@dataclass(frozen=True)
class Request:
    """What one turn generates: ``batch`` prompts at once, each to its full length."""

    batch: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Turn:
    """What one process took, in seconds per output token; ``cpu`` is summed over its threads."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Round:
    """One turn of each process; ``start`` counts the pairs of processes from 0."""

    start: int
    subject: Turn
    upstream: Turn

    @property
    def ratio(self) -> float:
        """Subject to upstream, wall-clock time."""
        return self.subject.wall / self.upstream.wall

    @property
    def cpu_ratio(self) -> float:
        """Subject to upstream, CPU time."""
        return self.subject.cpu / self.upstream.cpu


@dataclass(frozen=True)
class Ratio:
    """The mean of the starts' ratios, and its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Summary:
    """What the rounds of one batch size say. Times are in milliseconds."""

    batch: int
    rounds: int
    subject_ms: float
    upstream_ms: float
    subject_cpu_ms: float
    upstream_cpu_ms: float
    ratio: Ratio
    cpu_ratio: Ratio
    ratio_per_start: tuple[float, ...]


@dataclass(frozen=True)
class Conditions:
    """What the figures depend on."""

    date: str
    vllm: str | None
    vllm_distribution: str | None
    torch: str | None
    python: str
    processor: str
    cores: int
    threads: int
    load_before: float
    model: str
    dtype: str
    prompt_tokens: int
    output_tokens: int
    warmup_rounds: int
    starts: int


@dataclass(frozen=True)
class Report:
    """The figures of one run."""

    subject: str
    control: bool
    conditions: Conditions
    results: tuple[Summary, ...]
    rounds: dict[str, tuple[Round, ...]]

    def to_json(self) -> str:
        """Return the report as JSON, every round included."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    def to_table(self) -> str:
        """Return the report as text for a terminal."""
        is_ = self.conditions
        first = "upstream again" if self.control else self.subject
        lines = [
            f"{first} against upstream: {is_.model}, {is_.dtype}, eager, "
            f"{is_.prompt_tokens} + {is_.output_tokens} tokens",
            f"{is_.date}, {is_.vllm_distribution} {is_.vllm}, torch {is_.torch}, "
            f"Python {is_.python}, {is_.processor}, {is_.cores} cores, {is_.threads} threads, "
            f"load {is_.load_before:.1f} before",
            "",
            f"{'batch':>5}  {'subject ms':>10}  {'upstream ms':>11}  {'ratio (95% interval)':>22}  "
            f"{'of CPU time':>22}  {'rounds':>6}  ratio per start",
        ]
        for row in self.results:
            starts = " ".join(f"{ratio:.3f}" for ratio in row.ratio_per_start)
            lines.append(
                f"{row.batch:>5}  {row.subject_ms:>10.2f}  {row.upstream_ms:>11.2f}  "
                f"{row.ratio!s:>22}  {row.cpu_ratio!s:>22}  {row.rounds:>6}  {starts}"
            )
        return "\n".join(lines)


class MeasurementFailed(RuntimeError):
    """A child process could not measure; the message is one sentence, and what it printed last."""


def turns(rounds: int) -> Iterator[tuple[int, int]]:
    """Yield who goes first and who second in each round, as indices: 0 1, 1 0, 0 1, ..."""
    return itertools.islice(itertools.cycle(((0, 1), (1, 0))), rounds)


def time_per_output_token(first: float, last: float, tokens: int) -> float:
    """Return the mean seconds between output tokens, given when the first and the last came.

    Raises:
        ValueError: fewer than two tokens, between which there is no time.
    """
    if tokens < 2:
        raise ValueError(f"the time between output tokens needs two of them, not {tokens}")
    return (last - first) / (tokens - 1)


def summarise(batch: int, rounds: Sequence[Round]) -> Summary:
    """Return the medians of a batch size's rounds, and of their ratios with intervals."""
    starts = [
        list(group)
        for _, group in itertools.groupby(
            sorted(rounds, key=lambda taken: taken.start), key=lambda taken: taken.start
        )
    ]
    ratios = [[taken.ratio for taken in group] for group in starts]
    return Summary(
        batch=batch,
        rounds=len(rounds),
        subject_ms=1e3 * median(taken.subject.wall for taken in rounds),
        upstream_ms=1e3 * median(taken.upstream.wall for taken in rounds),
        subject_cpu_ms=1e3 * median(taken.subject.cpu for taken in rounds),
        upstream_cpu_ms=1e3 * median(taken.upstream.cpu for taken in rounds),
        ratio=mean_ratio(ratios),
        cpu_ratio=mean_ratio([[taken.cpu_ratio for taken in group] for group in starts]),
        ratio_per_start=tuple(map(median, ratios)),
    )


def mean_ratio(groups: Sequence[Sequence[float]], seed: int = 0) -> Ratio:
    """Return the geometric mean of the groups' medians and its 95% interval by bootstrap.

    A group is one start of the two processes. The process that is started first can be slower than
    the other by far more than what is looked for, whatever runner it is (the control shows it), and
    the order alternates: in the geometric mean of two neighbouring starts that cancels, while in a
    median of all rounds it does not. The bootstrap draws such pairs of starts, and rounds in each.
    """
    chance = random.Random(seed)
    pairs = [groups[index : index + 2] for index in range(0, len(groups), 2)]
    means = sorted(
        geometric_mean(
            median(chance.choices(group, k=len(group)))
            for pair in chance.choices(pairs, k=len(pairs))
            for group in pair
        )
        for _ in range(RESAMPLES)
    )
    return Ratio(
        geometric_mean(map(median, groups)),
        means[int(0.025 * RESAMPLES)],
        means[int(0.975 * RESAMPLES)],
    )


class Engine:
    """A child process with one engine; a context manager whose end ends the process."""

    def __init__(
        self, subject: Subject, model: Path, request: Request, threads: int | None
    ) -> None:
        self._name = subject.name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, until close()
        arguments = {
            "worker_cls": subject.worker_cls,
            "model": str(model),
            "max_model_len": request.prompt_tokens + request.output_tokens,
            "max_num_seqs": request.batch,
        }
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **CHILD_ENVIRONMENT, **limit, "PYTHONPATH": path},
            text=True,
        )
        self.threads = 0

    def __enter__(self) -> Engine:
        try:
            self.threads = int(self._answer()["threads"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def measure(self, request: Request) -> Turn:
        """Let the process take its turn."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the missing answer says so
            print(json.dumps(asdict(request)), file=self._process.stdin, flush=True)
        return Turn(**self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise MeasurementFailed(
                f"the process of {self._name} ended with status {self._process.returncode}, "
                f"and said last:\n{tail(self._log.read())}"
            )
        answer = dict(json.loads(line))
        if "refused" in answer:
            raise WrongUse(f"{answer['refused']}.")
        return answer


def measure(
    subject: Subject,
    model: Path,
    requests: Sequence[Request],
    rounds: int,
    warmup_rounds: int,
    starts: int,
    threads: int | None,
    progress: Callable[[str], None],
) -> tuple[dict[int, list[Round]], int]:
    """Start the pair of processes ``starts`` times and take turns; return rounds and threads.

    ``rounds`` are per batch size, shared out evenly among the starts.
    """
    largest = max(requests, key=lambda request: request.batch)
    collected: dict[int, list[Round]] = {request.batch: [] for request in requests}
    used = 0
    for start in range(starts):
        with ExitStack() as stack:
            # Which is started first changes too.
            pair: dict[int, Engine] = {}
            for index in (0, 1) if start % 2 == 0 else (1, 0):
                progress(f"start {start + 1} of {starts}: {('subject', 'upstream')[index]}")
                engine = Engine((subject, UPSTREAM)[index], model, largest, threads)
                pair[index] = stack.enter_context(engine)
            if pair[0].threads != pair[1].threads:
                raise MeasurementFailed(
                    f"{subject.name} computes with {pair[0].threads} threads and upstream with "
                    f"{pair[1].threads}, so their times cannot be compared."
                )
            used = pair[0].threads
            for request in requests:
                progress(f"start {start + 1} of {starts}: batch {request.batch}")
                for number, order in enumerate(turns(warmup_rounds + rounds // starts)):
                    taken = {}
                    for index in order:
                        time.sleep(SETTLE_SECONDS)
                        taken[index] = pair[index].measure(request)
                    if number >= warmup_rounds:
                        collected[request.batch].append(Round(start, taken[0], taken[1]))
    return collected, used


def conditions(versions: Versions, arguments: argparse.Namespace, load: float) -> Conditions:
    """Return what is known before the processes run; the number of threads comes later."""
    return Conditions(
        date=date.today().isoformat(),
        vllm=versions.vllm,
        vllm_distribution=versions.vllm_distribution,
        torch=versions.torch,
        python=platform.python_version(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        threads=0,
        load_before=load,
        model=arguments.model,
        dtype="float32",
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        warmup_rounds=arguments.warmup,
        starts=arguments.starts,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


# What follows runs in the child processes.


def serve(arguments: dict[str, Any]) -> int:
    """Build an engine, then measure one request per line of the input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with the answers

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    import torch
    from vllm import LLM

    from conformance.scenarios.subjects import NoRunner, worker_argument

    try:
        worker = worker_argument(arguments["worker_cls"])
    except NoRunner as error:
        answer(refused=str(error))
        return 0
    llm = LLM(
        model=arguments["model"],
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=arguments["max_model_len"],
        max_num_seqs=arguments["max_num_seqs"],
        # Every prompt is prefilled in the first step, so that all later ones decode.
        max_num_batched_tokens=arguments["max_model_len"] * arguments["max_num_seqs"],
        num_gpu_blocks_override=64,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        distributed_executor_backend="uni",
        seed=0,
        **worker,
    )
    numbers = itertools.count()
    answer(threads=torch.get_num_threads())
    for line in sys.stdin:
        request = Request(**json.loads(line))
        answer(**asdict(_generate(llm.llm_engine, request, numbers)))
    llm.llm_engine.engine_core.shutdown()
    return 0


def _generate(engine: Any, request: Request, numbers: Iterator[int]) -> Turn:
    """Run a request to its end; its prompts begin and end in the same steps."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True, detokenize=False
    )
    tokens: dict[str, int] = {}
    steps: list[tuple[float, float]] = []
    for row in range(request.batch):
        name = str(next(numbers))
        tokens[name] = 0
        prompt = [100 + 50 * row + place for place in range(request.prompt_tokens)]
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps.append((time.perf_counter(), time.process_time()))
        for output in outputs:
            tokens[output.request_id] = len(output.outputs[0].token_ids)
    if {len(steps), *tokens.values()} != {request.output_tokens}:
        raise RuntimeError(f"{request} took {len(steps)} steps for {tokens} tokens")
    wall, cpu = (
        time_per_output_token(first, last, request.output_tokens)
        for first, last in zip(steps[0], steps[-1], strict=True)
    )
    return Turn(wall, cpu)


# The command line.


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"a whole number of at least {least} is needed, not {text!r}"
            )
        return value

    return number


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a mistake ends the process with status 2 and one sentence."""
    parser = _Parser(
        prog="tpot.py",
        description="Time per output token of a CPU runner against vLLM's own, side by side.",
    )
    parser.add_argument(
        "--subject",
        default="ours",
        help="the runner to measure: ours (default), bare or package.module:Class",
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="measure upstream against a second upstream process: the noise floor",
    )
    parser.add_argument(
        "--batch",
        type=_at_least(1),
        action="append",
        help="how many prompts at once; may be repeated (default: 1 and 4)",
    )
    parser.add_argument(
        "--rounds",
        type=_at_least(2),
        default=32,
        help="turns of each process per batch size, all starts together (default: 32)",
    )
    parser.add_argument(
        "--starts",
        type=_at_least(2),
        default=4,
        help="how often both processes are started anew, an even number (default: 4)",
    )
    parser.add_argument(
        "--warmup",
        type=_at_least(0),
        default=2,
        help="rounds after each start that do not count (default: 2)",
    )
    parser.add_argument(
        "--threads",
        type=_at_least(1),
        help="OpenMP threads of each engine (default: as the environment has it, or every core)",
    )
    parser.add_argument(
        "--model",
        choices=sorted(RECIPES),
        default="smollm2-135m",
        help="a recipe (default: smollm2-135m); a tiny one shows a step's cost beside the model",
    )
    parser.add_argument("--prompt-tokens", type=_at_least(1), default=16)
    parser.add_argument("--output-tokens", type=_at_least(2), default=32)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    parsed.batch = sorted(set(parsed.batch or (1, 4)))
    if parsed.control and parsed.subject != "ours":
        parser.error("--control compares upstream with itself: leave --subject out")
    if parsed.starts % 2:
        parser.error(
            f"--starts {parsed.starts} starts one runner first more often than the other: "
            "give an even number"
        )
    if parsed.rounds % (2 * parsed.starts):
        parser.error(
            f"--rounds {parsed.rounds} does not share out into both orders of {parsed.starts} "
            f"starts: give a multiple of {2 * parsed.starts}"
        )
    return parsed


def run(arguments: argparse.Namespace) -> Report:
    """Measure what the command line asks for.

    Raises:
        WrongUse: there is no vLLM, or no such runner.
        PackageMissing: the model's distribution is not installed.
        MeasurementFailed: a child process ended.
    """
    subject = UPSTREAM if arguments.control else parse_subject(arguments.subject)
    versions = require_vllm()
    load = os.getloadavg()[0]
    model = materialise(RECIPES[arguments.model], default_cache() / "models")
    requests = [
        Request(batch, arguments.prompt_tokens, arguments.output_tokens)
        for batch in arguments.batch
    ]
    rounds, threads = measure(
        subject,
        model,
        requests,
        arguments.rounds,
        arguments.warmup,
        arguments.starts,
        arguments.threads,
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    return Report(
        subject=subject.name,
        control=arguments.control,
        conditions=replace(conditions(versions, arguments, load), threads=threads),
        results=tuple(summarise(batch, taken) for batch, taken in rounds.items()),
        rounds={str(batch): tuple(taken) for batch, taken in rounds.items()},
    )


def main(arguments: Sequence[str]) -> int:
    """Print a report; exit status 2, with the reason on standard error, when there is none."""
    parsed = parse_arguments(arguments)
    if parsed.serve is not None:
        return serve(json.loads(parsed.serve))
    try:
        report = run(parsed)
    except (WrongUse, PackageMissing, MeasurementFailed) as error:
        print(f"tpot.py: {error}", file=sys.stderr)
        return 2
    print(report.to_json() if parsed.format == "json" else report.to_table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
