"""After the end: what is freed, what is put back, what is left behind, what was printed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from conformance.contract.bare_instance import RUNNERS
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.runs import Runs
from conformance.scenarios.scenario import Scenario
from conformance.target import Subject

_IN_PROCESS = ["greedy", "spec-draft", "two-engines"]
# Python's resource tracker is not listened to: vLLM's engine ends its processes in such an order
# that it calls semaphores and shared memory leaked now and then, whatever the worker is.
_COMPLAINT = re.compile(
    r"Traceback \(most recent call last\)|Exception ignored|^\S*Error:|Segmentation fault"
    r"|core dumped|terminate called|\bERROR\b",
    re.MULTILINE,
)

# What vLLM's engine leaves, whatever the worker and the runner are: pattern, and what it is.
_ENGINES_OWN = (
    (r"vllm_dist_[0-9a-f]{32}", "the file in which torch.distributed's processes meet"),
    (r"torchinductor_\w+(/.*)?", "a cache of torch's compiler"),
    (r"/dev/shm/vllm_dist_.*-cpushm_\d+", "the communicator's, if vLLM kills a worker at its end"),
    (r"/dev/shm/sem\.mp-\w+", "a semaphore of the API server's multiprocessing"),
)


def _complaints(text: str) -> list[str]:
    return [line for line in text.splitlines() if _COMPLAINT.search(line)]


@pytest.mark.parametrize("scenario", _IN_PROCESS, indirect=True)
def test_shutdown_frees_the_weights_and_the_kv_cache(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """No tensor of the model or of its KV cache is alive once the engine was shut down."""
    for name, kinds in completed.results.items():
        if not name.startswith("tensors_left"):
            continue
        if {"weights", "KV cache"} - kinds.keys():
            finding(f"only {sorted(kinds)} were found while the engine ran, to be seen freed")
        for kind, count in kinds.items():
            if count["alive"]:
                finding(
                    f"{kind}: {count['alive']} of {count['had']} tensors are alive, "
                    f"{count['bytes']} bytes"
                )


@pytest.mark.parametrize("scenario", _IN_PROCESS, indirect=True)
def test_shutdown_puts_every_patched_name_back(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """Every name of torch's is bound to what it was bound to before the engine."""
    left = completed.results["patches_left"]
    if left:
        finding(f"still another object: {', '.join(left)}")


@pytest.mark.parametrize("scenario", _IN_PROCESS, indirect=True)
def test_shutdown_leaves_no_thread(completed: ChildRun, finding: Callable[[str], None]) -> None:
    """Every thread that the engine started has ended."""
    left = completed.results["threads_left"]
    if left:
        finding(f"threads are alive: {', '.join(left)}")


@pytest.mark.parametrize(
    "scenario", [*_IN_PROCESS, "tensor-parallel", "bench", "serve"], indirect=True
)
def test_nothing_is_left_behind(completed: ChildRun, finding: Callable[[str], None]) -> None:
    """No process, and no file in the temporary directory or in shared memory, outlives the run."""
    if completed.exit.processes_left:
        finding(f"processes are alive: {'; '.join(completed.exit.processes_left)}")
    left = [
        name
        for name in completed.exit.files_left
        if not any(re.fullmatch(pattern, name) for pattern, _ in _ENGINES_OWN)
    ]
    if left:
        finding(f"files are left: {', '.join(left)}")


@pytest.mark.parametrize("scenario", [*_IN_PROCESS, "tensor-parallel"], indirect=True)
def test_nothing_complains_on_stderr(completed: ChildRun, finding: Callable[[str], None]) -> None:
    """From start to exit no process wrote a traceback or an error to stderr."""
    lines = _complaints(completed.stderr)
    if lines:
        finding("stderr has:\n  " + "\n  ".join(lines[:10]))


@pytest.mark.parametrize("scenario", ["bench", "serve"], indirect=True)
def test_the_command_ends_with_status_0_and_clean_stderr(
    completed: ChildRun, finding: Callable[[str], None]
) -> None:
    """The vllm command's exit status is 0, and none of its processes complained."""
    status = completed.results["status"]
    lines = _complaints(completed.results["command_stderr"])
    lines += _complaints(completed.results["command_stdout"])
    if status != 0 or lines:
        finding(f"exit status {status}; stderr has:\n  " + "\n  ".join(lines[:10] or ["nothing"]))


@pytest.mark.held_against("transformers, float64")
@pytest.mark.scenario("serve")
def test_the_served_completion_agrees_with_transformers(
    completed: ChildRun, scenario: Scenario, runs: Runs, finding: Callable[[str], None]
) -> None:
    """The completion that came over HTTP has the reference's tokens."""
    prompt = scenario.step("completion").requests[0].prompt
    tokens = tuple(completed.results["completion"]["tokens"])
    (judgement,) = runs.judge(scenario, "completion", [Generation(prompt, tokens)])
    if not judgement.tokens.conforms:
        finding(str(judgement.tokens))


@pytest.mark.held_against("vLLM's GPU runner")
def test_shutdown_of_a_bare_instance_frees_what_it_holds(
    subject: Subject, runs: Runs, finding: Callable[[str], None]
) -> None:
    """The shutdown path by itself, without an engine: it raises nothing, and frees its tensors."""
    if subject.name not in RUNNERS:
        pytest.skip("a class applies what it needs when its worker is made")
    run = runs.host.run(
        "conformance.contract.bare_instance:run",
        {"subject": subject.name},
        label=f"{subject.name}, bare instance",
    )
    if run.failure is not None:
        finding(run.failure)
    if run.results["alive"]:
        finding(f"after its shutdown these are alive: {', '.join(run.results['alive'])}")
