"""Every patch is there for something: without it, a check that passes with it turns red.

The names come from docs/patches.md, which `tests/test_docs.py` holds against the register.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.contract import CLAUSES
from conformance.contract.outcomes import check
from conformance.scenarios.catalogue import SCENARIO
from conformance.scenarios.host import Host
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs
from conformance.target import parse_subject

_PAGE = Path(__file__).parents[1] / "docs" / "patches.md"
NAMES = re.findall(r"^## `(.+)`$", _PAGE.read_text(), re.MULTILINE)
OURS = parse_subject("ours")
_CLAUSES = [clause.name for clause in CLAUSES]


def _lost_threads(run: ChildRun) -> bool:
    """What `test_the_engine_computes_with_the_threads_it_was_started_with` fails on."""
    before, after = run.results["torch_threads"]
    return bool(before != after)


# Patches whose loss no clause shows: the scenario that shows it, and by what.
_SHOWN_BY_AN_ENGINE = {
    "vllm.utils.torch_utils.set_torch_threads_for_runtime": ("greedy", _lost_threads),
}


@pytest.fixture(scope="module")
def needed(host: Host) -> set[str]:
    """The patches that the installed vLLM needs, all of whose clauses hold with them in force."""
    run = host.run("tests.child_entries:patch_names", {}, label="the register")
    outcomes = check(host, OURS, _CLAUSES)
    version_skips = {c.name for c in CLAUSES if c.versions}
    wrong = {n: o for n, o in outcomes.items() if o is not None and n not in version_skips}
    assert not wrong, "with every patch in force these clauses fail already"
    return set(run.results["needed"])


@pytest.mark.parametrize("name", NAMES)
def test_without_a_patch_a_check_is_red(name: str, host: Host, needed: set[str]) -> None:
    if name not in needed:
        pytest.skip("the installed vLLM does not need this patch")
    without = {"RUNNER_UNDER_TEST_WITHOUT": name}
    if name in _SHOWN_BY_AN_ENGINE:
        scenario, is_red = _SHOWN_BY_AN_ENGINE[name]
        runs = Runs(host)
        assert is_red(runs.observe(OURS, SCENARIO[scenario], environment=without))
        assert not is_red(runs.observe(OURS, SCENARIO[scenario]))
        return
    outcomes = check(host, OURS, _CLAUSES, environment=without)
    assert [clause for clause, wrong in outcomes.items() if wrong is not None]
