"""The contract, clause by clause: stand-ins against what torch documents for a GPU.

Every clause runs in a child process that has the subject's stand-ins in force, and no engine.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from packaging.specifiers import SpecifierSet

from conformance.contract import CLAUSES
from conformance.contract.clause import Clause
from conformance.contract.outcomes import Outcomes
from conformance.scenarios.runs import Runs
from conformance.target import Subject, require_vllm


@pytest.fixture(scope="session")
def outcomes(runs: Runs) -> Outcomes:
    """Every clause's outcome, checked in one child per subject."""
    return Outcomes(runs.host)


@pytest.mark.held_against("torch's documentation")
@pytest.mark.parametrize("clause", CLAUSES, ids=[clause.name for clause in CLAUSES])
def test_clause(
    subject: Subject, clause: Clause, outcomes: Outcomes, finding: Callable[[str], None]
) -> None:
    """The claim that names the clause holds."""
    if ":" in subject.name:
        pytest.skip("a class applies what it needs when its worker is made; see the engine checks")
    version = require_vllm().vllm or ""
    if clause.versions and not SpecifierSet(clause.versions).contains(version, prereleases=True):
        pytest.skip(f"vLLM {version} has no {', '.join(clause.attributes)}")
    wrong = outcomes.of(subject, clause.name)
    if wrong is not None:
        finding(
            f"{clause.name}\n  attributes: {', '.join(clause.attributes)}\n"
            f"  on a GPU: {clause.gpu}\n  here: {wrong}"
        )
