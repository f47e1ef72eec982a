"""Measure how far vLLM's CPU engine is from the float64 reference when nothing is wrong.

    python benchmarks/measure_bounds.py [--recipe NAME]... [--dtype NAME] [--cache DIR]
        [--threads N]...

For each recipe and number of OpenMP threads a fresh process builds an engine (vLLM's own CPU
worker, eager) and generates greedily, all prompts together and then one by one. Printed
per recipe: a `Measurement` for each bound, to be pasted into `conformance/references/bounds.py`.

What is measured, both in nats:

* ``logprob``: the largest absolute error of a log-probability, over the five likeliest tokens of
  every step.
* ``margin``: the largest error of a difference between two log-probabilities of one step. Two
  tokens can change places only when the reference has them no further apart than this.

A token that is not the reference's best is reported with its margin.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from conformance.references.bounds import Measurement  # noqa: E402
from conformance.references.reference import ForcedQuery  # noqa: E402
from conformance.references.transformers_reference import compute  # noqa: E402
from conformance.scenarios.recipes import RECIPES, materialise, recipe_hash  # noqa: E402

TOP = 5
MAX_TOKENS = 32
LENGTHS = (1, 2, 5, 9, 16, 17, 31, 33, 64, 100, 129, 200, 333, 430)
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 4, 8, 16,",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
)


def prompts(recipe: str, checkpoint: Path) -> list[list[int]]:
    """Prompts as token ids: of many lengths, drawn at random; for a real model also texts."""
    import numpy as np

    words = np.random.Philox(key=20).random_raw(sum(LENGTHS))
    ids = [int(word % RECIPES[recipe].vocab_size) for word in words.tolist()]
    drawn = []
    for length in LENGTHS:
        drawn.append(ids[:length])
        ids = ids[length:]
    if RECIPES[recipe].package is None:
        return drawn
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS] + drawn[::3]


def engine(job: Path, out: Path) -> None:
    """The child: one engine, every prompt in one batch, then each alone."""
    from vllm import LLM, SamplingParams

    asked = json.loads(job.read_text())
    llm = LLM(
        asked["checkpoint"],
        dtype=asked["dtype"],
        distributed_executor_backend="uni",
        enforce_eager=True,
        num_gpu_blocks_override=256,
        max_model_len=512,
        enable_prefix_caching=False,
        seed=0,
    )
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=TOP)
    inputs: list[Any] = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    outputs = llm.generate(inputs, sampling, use_tqdm=False)
    for single in inputs:
        outputs += llm.generate([single], sampling, use_tqdm=False)
    rows = [
        {
            "prompt": list(output.prompt_token_ids or ()),
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                [[id_, entry.logprob] for id_, entry in step.items()]
                for step in output.outputs[0].logprobs or ()
            ],
        }
        for output in outputs
    ]
    out.write_text(json.dumps(rows))
    llm.llm_engine.engine_core.shutdown()


def observe(
    checkpoint: Path, asked: Sequence[Sequence[int]], dtype: str, threads: int
) -> list[dict[str, Any]]:
    """What a fresh engine gives for these prompts."""
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as scratch:
        job, out = Path(scratch, "job.json"), Path(scratch, "out.json")
        job.write_text(
            json.dumps({"checkpoint": str(checkpoint), "prompts": asked, "dtype": dtype})
        )
        subprocess.run(
            [sys.executable, __file__, "--engine", job, out],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return rows


def measure(recipe: str, dtype: str, cache: Path, threads: Sequence[int]) -> None:
    """Observe, ask the reference about what was observed, print the largest errors."""
    checkpoint = materialise(RECIPES[recipe], cache)
    asked = prompts(recipe, checkpoint)
    rows = [row for count in threads for row in observe(checkpoint, asked, dtype, count)]
    queries: dict[tuple[tuple[int, ...], tuple[int, ...]], ForcedQuery] = {}
    for row in rows:
        key = tuple(row["prompt"]), tuple(row["tokens"])
        ids = tuple(tuple(id_ for id_, _ in step) for step in row["logprobs"])
        held = queries.get(key)
        if held is not None:
            ids = tuple(tuple(sorted({*a, *b})) for a, b in zip(held.requested, ids, strict=True))
        queries[key] = ForcedQuery(*key, requested=ids)
    references = compute(checkpoint, list(queries.values()), timeout=3600)
    views = dict(zip(queries, references.sequences, strict=True))

    values, steps, logprob, margin = 0, 0, 0.0, 0.0
    by_length: dict[int, float] = {}
    nearest = float("inf")
    for row in rows:
        view = views[tuple(row["prompt"]), tuple(row["tokens"])]
        for index, (seen, step) in enumerate(zip(row["logprobs"], view.steps, strict=True)):
            errors = [value - step.known[id_] for id_, value in seen]
            steps, values = steps + 1, values + len(errors)
            logprob = max(logprob, *map(abs, errors))
            margin = max(margin, max(errors) - min(errors))
            length = len(row["prompt"])
            by_length[length] = max(by_length.get(length, 0.0), *map(abs, errors))
            nearest = min(nearest, step.top_logprobs[0] - step.top_logprobs[1])
            best, best_logprob = step.best
            if step.token != best:
                gap = best_logprob - step.logprob
                print(f"# step {index}: {step.token} instead of {best}, margin {gap:.3g}")
    lengths = ", ".join(f"{length}: {error:.2g}" for length, error in sorted(by_length.items()))
    print(f"# largest logprob error by length of the prompt: {lengths}")
    distinct = len({tuple(row["tokens"]) for row in rows})
    digest = recipe_hash(RECIPES[recipe])[:16]
    print(
        f"# {recipe} {digest}: {len(rows)} sequences, {distinct} distinct, "
        f"smallest margin of the two best tokens {nearest:.3g}"
    )
    versions = (_version("vllm-cpu"), references.provenance.versions["torch"])
    counts = (len(rows), steps, values, tuple(threads), str(datetime.date.today()), *versions)
    for what, largest in (("logprob", logprob), ("margin", margin)):
        print(Measurement(what, dtype, recipe, float(f"{largest:.3g}"), *counts))


def _version(distribution: str) -> str:
    from importlib import metadata

    return metadata.version(distribution)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", action="append", choices=sorted(RECIPES))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "recipes")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--engine", nargs=2, type=Path, metavar=("JOB", "OUT"))
    options = parser.parse_args()
    if options.engine:
        engine(*options.engine)
        return
    for recipe in options.recipe or ("tiny-llama", "smollm2-135m"):
        measure(recipe, options.dtype, options.cache, options.threads or (1, 2))


if __name__ == "__main__":
    main()
