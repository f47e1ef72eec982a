"""What the dynamic recorder costs a decode step, measured side by side.

    python benchmarks/recorder.py [--batch 4] [--rounds 32] [--starts 4] [--threads 1]
    python benchmarks/recorder.py --control

Two processes hold the same engine, one of them under a recorder, and take turns as in `tpot.py`,
whose measurement this is. A round gives one ratio, recorded to unrecorded time per output token.
``--control`` records in neither: what it shows is noise. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tpot

from conformance.cache import default_cache
from conformance.scenarios.host import CHILD_ENVIRONMENT
from conformance.scenarios.recipes import RECIPES, materialise
from conformance.scenarios.smollm2 import PackageMissing
from conformance.surface.recorder import Recorder
from conformance.target import WrongUse, parse_subject, require_vllm

SCHEMA = "vllm-conformance/recorder-overhead/1"


class RecordedEngine(tpot.Engine):
    """A child process with one engine, under a recorder or not."""

    def __init__(self, model: Path, request: tpot.Request, threads: int, recorded: bool) -> None:
        self._name = "the recorded engine" if recorded else "the engine"
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, until close()
        self.threads = 0
        arguments = {
            "recorded": recorded,
            "worker_cls": parse_subject("ours").worker_cls,
            "model": str(model),
            "max_model_len": request.prompt_tokens + request.output_tokens,
            "max_num_seqs": request.batch,
        }
        path = os.pathsep.join(filter(None, (str(tpot.ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                **CHILD_ENVIRONMENT,
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": path,
            },
            text=True,
        )


def measure(arguments: argparse.Namespace, model: Path) -> list[tpot.Round]:
    """Take turns; in a round, ``subject`` is the recorded engine and ``upstream`` the other."""
    request = tpot.Request(arguments.batch, 16, arguments.output_tokens)
    rounds = []
    for start in range(arguments.starts):
        with ExitStack() as stack:
            pair = {}
            for index in (0, 1) if start % 2 == 0 else (1, 0):
                recorded = index == 0 and not arguments.control
                engine = RecordedEngine(model, request, arguments.threads, recorded)
                pair[index] = stack.enter_context(engine)
            for number, order in enumerate(tpot.turns(2 + arguments.rounds // arguments.starts)):
                taken = {}
                for index in order:
                    time.sleep(tpot.SETTLE_SECONDS)
                    taken[index] = pair[index].measure(request)
                if number >= 2:
                    rounds.append(tpot.Round(start, taken[0], taken[1]))
    return rounds


def report(arguments: argparse.Namespace, rounds: Sequence[tpot.Round]) -> dict[str, Any]:
    """The figures, with what they depend on. Times are in milliseconds."""
    summary = tpot.summarise(arguments.batch, rounds)
    return {
        "schema": SCHEMA,
        "control": arguments.control,
        "model": arguments.model,
        "threads": arguments.threads,
        "load_after": os.getloadavg()[0],
        "batch": summary.batch,
        "rounds": summary.rounds,
        "recorded_ms": summary.subject_ms,
        "unrecorded_ms": summary.upstream_ms,
        "ratio": asdict(summary.ratio),
        "cpu_ratio": asdict(summary.cpu_ratio),
        "ratio_per_start": summary.ratio_per_start,
    }


def serve(arguments: dict[str, Any]) -> int:
    """Serve turns as `tpot.serve` does, under a recorder if so asked. Runs in the child."""
    import torch  # noqa: F401

    recorded = arguments.pop("recorded")
    with Recorder().recording() if recorded else nullcontext():
        return tpot.serve(arguments)


def main(words: Sequence[str]) -> int:
    """Print the figures; exit status 2, with the reason on standard error, when there are none."""
    parser = argparse.ArgumentParser(prog="recorder.py", description=__doc__.split("\n")[0])
    parser.add_argument("--control", action="store_true", help="record in neither process")
    parser.add_argument("--batch", type=int, default=4, help="prompts at once (default: 4)")
    parser.add_argument("--rounds", type=int, default=32, help="all starts together (default: 32)")
    parser.add_argument("--starts", type=int, default=4, help="pairs of processes (default: 4)")
    parser.add_argument("--threads", type=int, default=1, help="of each engine (default: 1)")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--model", choices=sorted(RECIPES), default="tiny-llama")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.serve is not None:
        return serve(json.loads(arguments.serve))
    counts = (arguments.batch, arguments.rounds, arguments.starts, arguments.threads)
    if min(counts) < 1 or arguments.output_tokens < 2 or arguments.rounds % (2 * arguments.starts):
        parser.error("counts are at least 1, tokens 2, and --rounds a multiple of 2 x --starts")
    try:
        require_vllm()
        model = materialise(RECIPES[arguments.model], default_cache() / "models")
        rounds = measure(arguments, model)
    except (WrongUse, PackageMissing, tpot.MeasurementFailed) as error:
        print(f"recorder.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report(arguments, rounds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
