"""Scenarios as stock vLLM runs them on a GPU: recorded whole, and read back while they still hold.

A file per scenario, with what every request got at every step, under all that decides what is
asked: the scenario, and the checkpoints that it names. Nothing here imports torch or vLLM.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from conformance.drift.files import write_whole
from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.checkpoints import checkpoint_hash
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.runs import Runs
from conformance.scenarios.scenario import Scenario
from conformance.target import Subject, WrongUse

SCHEMA = "vllm-conformance/scenario-recording/1"
SUBJECT = Subject("stock vLLM", None)
_GPU_WORKER = "vllm.v1.worker.gpu_worker.Worker"
_LARGEST = 4 << 20
"""Bytes of a file: it is to be committed."""
_NOT_ASKED = ("claim", "limit", "nightly", "refusals", "versions")
"""What of a scenario decides nothing of what it gives."""


class NotRecorded(Exception):
    """A scenario did not run to its end, or not on the GPU; the message says which."""


def recordable(vllm: str) -> tuple[Scenario, ...]:
    """The scenarios that one GPU can run with that vLLM, in the catalogue's order."""
    return tuple(
        scenario
        for scenario in SCENARIOS
        if not (scenario.in_worker_processes or scenario.nightly) and scenario.exists_in(vllm)
    )


def hashes(scenario: Scenario) -> dict[str, str]:
    """SHA-256, hex, of what a scenario asks, as JSON, and of each checkpoint that it names."""
    asked = {k: v for k, v in scenario.to_json().items() if k not in _NOT_ASKED}
    text = json.dumps(asked, sort_keys=True)
    names = [name for name in (scenario.recipe, scenario.draft, *scenario.adapters) if name]
    return {
        "scenario": hashlib.sha256(text.encode()).hexdigest(),
        **{name: checkpoint_hash(name) for name in names},
    }


def record(runs: Runs, scenario: Scenario, path: Path, where: dict[str, Any]) -> int:
    """Run a scenario with vLLM's own worker and write what it gave; return how many generations.

    ``where`` is the provenance, of a machine whose vLLM runs on the GPU.

    Raises:
        NotRecorded: the run failed, or another worker than the GPU's ran it.
    """
    run = runs.observe(SUBJECT, scenario)
    if run.failure is not None:
        raise NotRecorded(run.failure.partition("\n")[0])
    return write(run, scenario, path, where)


def write(run: ChildRun, scenario: Scenario, path: Path, where: dict[str, Any]) -> int:
    """Write what a run gave, if vLLM's GPU worker was the one that ran it; see `record`.

    Raises:
        NotRecorded: it was another, or the file would be too large.
    """
    variants = [f"built#{variant}" if variant else "built" for variant in scenario.variants]
    workers = {worker for name in variants for worker, _ in run.results[name]}
    if workers != {_GPU_WORKER}:
        raise NotRecorded(f"run by {', '.join(sorted(workers)) or 'nothing'}, and not on a GPU")
    steps = {name: run.results[name] for _, name in scenario.runs}
    data = {
        "schema": SCHEMA,
        "provenance": {**where, "hashes": hashes(scenario)},
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": _command(scenario.name),
        "steps": steps,
    }
    text = json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n"
    if len(text) > _LARGEST:
        raise NotRecorded(f"{len(text):,} bytes are more than the {_LARGEST:,} that are kept")
    write_whole(path, text)
    return sum(len(generations) for generations in steps.values())


def load(path: Path, scenario: Scenario) -> tuple[dict[str, Any], dict[str, list[Generation]]]:
    """Return a recording's provenance, and by step what each request got.

    Raises:
        WrongUse: it cannot be read, or is of another scenario or model than there is today. The
            sentence says which command records it.
    """
    again = f"run `{_command(scenario.name)}` on a machine with a GPU"
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA or data["provenance"]["source"] != "cuda":
            raise ValueError(f"its schema is {data['schema']!r}")
        steps = {
            name: [Generation.from_json(item) for item in data["steps"][name]]
            for _, name in scenario.runs
            if data["provenance"]["hashes"] == hashes(scenario)
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WrongUse(f"{path.name} is no recording of a scenario ({error}): {again}.") from error
    if not steps:
        raise WrongUse(
            f"The recording of {scenario.name} from cuda is stale: the scenario, or a model of it, "
            f"has changed since {data['recorded']}; {again}."
        )
    return data["provenance"], steps


def _command(scenario: str) -> str:
    return f"vllm-conformance record --source cuda --scenario {scenario}"
