"""The surface: it is the one that is known for this vLLM, and no run reads what is not on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from conformance.cache import default_cache
from conformance.scenarios import triton_backend
from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs
from conformance.scenarios.scenario import Scenario
from conformance.suite.cases import V2_RUNNERS, of_scenario, of_v2_scenario, stopped
from conformance.surface.inventory import differences, inventory_of, known_path, load
from conformance.surface.join import join
from conformance.surface.model import Inventory
from conformance.surface.recorder import Touch
from conformance.surface.sources import open_source
from conformance.target import Subject, WrongUse

_LINES = 20
# The recorder sees its own process only.
_RECORDED = [of_scenario(s) for s in SCENARIOS if not s.in_worker_processes]
_RECORDED_ON_V2 = [of_v2_scenario(s) for s in SCENARIOS if s.on_v2 and not s.in_worker_processes]


def changed(known: Inventory, found: Inventory) -> str | None:
    """Say what of a surface is not as it is known; None if all is."""
    lines = differences(known, found)
    if not lines:
        return None
    more = [f"... and {len(lines) - _LINES + 1} more"] if len(lines) > _LINES else []
    shown = [*lines[: _LINES - len(more)], *more]
    return "\n  ".join(
        (
            f"{len(lines)} sites of vLLM {found.vllm} are not as the known inventory has them: if "
            "that is right, run `vllm-conformance surface --source installed --write`",
            *shown,
        )
    )


def unknown(inventory: Inventory, touches: Iterable[Touch], generation: str = "v1") -> str | None:
    """Say which of a run's reads the surface denies; None if there are none, yet some reads."""
    touches = tuple(touches)
    if not any(touch.by_vllm for touch in touches):
        return "no read by vLLM was recorded, so nothing could be compared"
    return "\n  ".join(join(inventory, touches, generation).sentences()) or None


def unknown_in_v2(inventory: Inventory, run: ChildRun, runner: str) -> str | None:
    """Say what is wrong with a V2 run or its reads; of one that was stopped, those until then."""
    if stopped(run) is not None:
        return "\n  ".join(join(inventory, run.touches, "v2").sentences()) or None
    if run.failure is not None:
        return run.failure
    runners = {runner for _, runner in run.results["built"]}
    if runners != {runner}:
        return f"the engine was to build {runner}, and built {', '.join(sorted(runners))}"
    return unknown(inventory, run.touches, "v2")


@pytest.fixture(scope="session")
def inventory() -> Inventory:
    """The surface of the vLLM that is installed, walked once and then kept."""
    try:
        return inventory_of(open_source("installed"), default_cache())
    except WrongUse as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.held_against("fixtures/inventories")
def test_the_surface_of_this_vllm_is_the_one_that_is_known(inventory: Inventory) -> None:
    """What the walker finds in the installed vLLM is what was found and looked at before."""
    try:
        problem = changed(load(known_path(inventory.vllm)), inventory)
    except WrongUse as error:
        problem = str(error)
    if problem is not None:
        pytest.fail(problem, pytrace=False)


@pytest.mark.held_against("the static surface")
@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_every_read_of_an_import_is_on_the_surface(
    runs: Runs, inventory: Inventory, generation: str
) -> None:
    """Importing a runner reads nothing of the device that the walker does not know of.

    The V2 runner can be imported without Triton as well, and is where there is none.
    """
    host = runs.host if triton_backend.missing() else runs.host.of(generation)
    run = host.run(
        "conformance.scenarios.importing:run",
        {"generation": generation},
        label=f"import, {generation}",
    )
    problem = run.failure or unknown(inventory, run.touches, generation)
    if problem is not None:
        pytest.fail(problem, pytrace=False)


@pytest.mark.held_against("the static surface")
@pytest.mark.parametrize("scenario", _RECORDED, indirect=True)
def test_every_read_of_a_run_is_on_the_surface(
    subject: Subject,
    scenario: Scenario,
    request: pytest.FixtureRequest,
    inventory: Inventory,
    finding: Callable[[str], None],
) -> None:
    """A run reads nothing of the device that the walker does not know of."""
    if not subject.is_ours:
        pytest.skip("the walker is held against the runs of ours")
    run: ChildRun = request.getfixturevalue("completed")  # others need not run for this
    problem = unknown(inventory, run.touches)
    if problem is not None:
        finding(f"{scenario.name}: {problem}")


@pytest.mark.held_against("the static surface")
@pytest.mark.parametrize("scenario", _RECORDED_ON_V2, indirect=True)
def test_every_read_of_a_v2_run_is_on_the_surface(
    v2_run: ChildRun, subject: Subject, scenario: Scenario, request: pytest.FixtureRequest
) -> None:
    """A run of a V2 runner reads nothing of the device that the walker does not know of."""
    problem = unknown_in_v2(request.getfixturevalue("inventory"), v2_run, V2_RUNNERS[subject.name])
    if problem is not None:
        pytest.fail(f"{subject.name}: {scenario.name}: {problem}", pytrace=False)
    if (reason := stopped(v2_run)) is not None:
        pytest.skip(f"the V2 runner cannot run this here: {reason}")
