"""Measure how far processed log-probabilities are from the float64 sampler when nothing is wrong.

    python benchmarks/measure_sampling_bounds.py [--cache DIR]

vLLM's own CPU worker (float32, eager, ``logprobs_mode="processed_logprobs"``) gives every
log-probability of the vocabulary, for the parameters of the scenarios with other prompts, of 1 to
430 tokens, other seeds, and one and two threads. The reference is transformers' logits in float64
of the same tokens, processed by `conformance.references.sampler`. Printed: a `Measurement` of
``processed``, to be pasted into `conformance/references/bounds.py`.

Measured is the largest absolute error over the tokens that both leave, times the temperature where
that is below 1: dividing logits by it divides their errors too. Where a limit runs between two
tokens nearer to each other than the error, the runner's choice is taken, and counted.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.measure_bounds import prompts  # noqa: E402
from conformance.references.bounds import Measurement  # noqa: E402
from conformance.references.expected import distributions, settings_of  # noqa: E402
from conformance.references.reference import ForcedQuery  # noqa: E402
from conformance.references.transformers_reference import compute  # noqa: E402
from conformance.scenarios.catalogue import SCENARIO  # noqa: E402
from conformance.scenarios.host import Host  # noqa: E402
from conformance.scenarios.runs import Runs, generations  # noqa: E402
from conformance.scenarios.scenario import Scenario, Step  # noqa: E402
from conformance.target import installed_versions, parse_subject  # noqa: E402

RECIPE = "tiny-llama"
THREADS = (1, 2)
SEEDS = 1000
PER_SETTING = 4


def scenario(asked: list[list[int]], threads: int) -> Scenario:
    """The requests of ``sampling-parameters``, each with several of the prompts."""
    given = SCENARIO["sampling-parameters"].step("mixed").requests
    drawn = tuple(
        replace(
            request,
            prompt=tuple(asked[(number * PER_SETTING + turn) % len(asked)]),
            sampling=tuple({**dict(request.sampling), "seed": SEEDS + turn}.items()),
        )
        for number, request in enumerate(given)
        for turn in range(PER_SETTING)
    )
    return Scenario(
        name=f"measure-{threads}",
        claim="a measurement",
        recipe=RECIPE,
        engine={
            "skip_tokenizer_init": False,
            "max_logprobs": -1,
            "logprobs_mode": "processed_logprobs",
            "max_model_len": 512,
            # Whole prompts: seeds and parts do not go together (docs/findings/
            # cpu-seeded-prompts-in-parts.md).
            "max_num_batched_tokens": 8192,
            "num_gpu_blocks_override": 256,
        },
        steps=(Step("drawn", drawn),),
        threads=threads,
        limit=600.0,
    )


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "recipes")
    options = parser.parse_args()
    largest, worst, sequences, steps, values, taken = 0.0, "", 0, 0, 0, 0
    versions = installed_versions()
    with Host(options.cache) as host:
        runs = Runs(host)
        asked = prompts(RECIPE, runs.model(RECIPE))
        for threads in THREADS:
            measured = scenario(asked, threads)
            run = runs.observe(parse_subject("upstream"), measured)
            if run.failure:
                raise SystemExit(run.failure)
            pairs = list(zip(measured.steps[0].requests, generations(run, "drawn"), strict=True))
            queries = [ForcedQuery(r.prompt, got.tokens, logits=True) for r, got in pairs]
            answers = compute(runs.model(RECIPE), queries, timeout=3600).sequences
            for (request, got), answer in zip(pairs, answers, strict=True):
                settings = settings_of(dict(request.sampling))
                sequences += 1
                for index, (at, found) in enumerate(
                    distributions(request.prompt, answer, settings, 0.0)
                ):
                    row = np.array([got.logprobs[index][i] for i in range(len(at.logits))])
                    support = row > -np.inf
                    taken += bool((support != found.allowed).any())
                    off = np.abs(row[support] - found.logprobs(support)[support]).max()
                    off *= min(1.0, settings.temperature) if not settings.greedy else 1.0
                    steps, values = steps + 1, values + int(support.sum())
                    if off > largest:
                        largest, worst = float(off), f"{settings}, {len(request.prompt)} tokens"
    print(f"# worst: {worst}")
    print(f"# rows in which the runner left other tokens than the reference: {taken}")
    counts = (sequences, steps, values, THREADS, str(datetime.date.today()))
    known = (versions.vllm or "", versions.torch or "")
    print(Measurement("processed", "float32", RECIPE, float(f"{largest:.3g}"), *counts, *known))


if __name__ == "__main__":
    main()
