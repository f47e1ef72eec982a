"""The contract: what the surface says is reached, held against what torch documents for a GPU.

The rows come from the inventory of the installed vLLM: each attribute, in each context in which a
CPU reaches it or may, in each call shape of its sites; and each clause on what it does there. They
are checked where they are about: in a speculating engine of the subject's, phase by phase, and
where its modules have just been imported. See `conformance.contract.rows`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.contract.outcomes import ContractOutcomes, uncovered
from conformance.contract.rows import ContractRow
from conformance.scenarios.runs import Runs
from conformance.target import Subject

Check = Callable[[ContractRow], None]


@pytest.fixture(scope="session")
def outcomes(runs: Runs) -> ContractOutcomes:
    """Every row's outcome; two children per subject show them all."""
    return ContractOutcomes(runs)


@pytest.fixture
def check(subject: Subject, outcomes: ContractOutcomes, finding: Callable[[str], None]) -> Check:
    """Fail, or leave open, according to what a row came to."""

    def check(row: ContractRow) -> None:
        outcome = outcomes.of(subject, row)
        if outcome.state == "open":
            pytest.skip(outcome.text)
        if outcome.state == "red":
            if subject.name == "bare" and not row.fails_for_bare:
                pytest.xfail(f"torch is not patched: {outcome.text}")
            finding(outcome.text)

    return check


@pytest.mark.held_against("the surface")
@pytest.mark.rows("presence")
def test_presence(row: ContractRow, check: Check) -> None:
    """The attribute is there, and of the kind that its sites use it as."""
    check(row)


@pytest.mark.held_against("the sites' calls, and the GPU's own signature")
@pytest.mark.rows("signature")
def test_signature(row: ContractRow, check: Check) -> None:
    """It takes what the sites pass, and what the GPU's own takes."""
    check(row)


@pytest.mark.held_against("torch's documentation")
@pytest.mark.rows("behaviour")
def test_behaviour(row: ContractRow, check: Check) -> None:
    """The clause holds there; where nothing proves that a CPU gets there, a refusal will do."""
    check(row)


@pytest.mark.held_against("the surface")
def test_everything_that_is_reached_has_a_contract() -> None:
    """No attribute that a CPU may reach is without rows: a new one is a failure until it has."""
    missing = uncovered("v1")
    if missing:
        pytest.fail(
            "the runner reaches what has no contract; write a clause in conformance/contract/ for "
            "each, and how to ask it in attributes.py:\n  " + "\n  ".join(missing),
            pytrace=False,
        )
