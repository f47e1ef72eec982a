"""A subject's patches as a whole: what is rebound, with what, and whether it is put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.contract.rebinding.claims import NAMES
from conformance.contract.rebinding.outcomes import Rebindings
from conformance.scenarios.runs import Runs
from conformance.target import Subject, require_vllm


@pytest.fixture(scope="session")
def rebindings(runs: Runs) -> Rebindings:
    """Every claim's outcome; most are checked in one child per subject."""
    return Rebindings(runs.host, str(runs.model("tiny-llama")), require_vllm().vllm or "")


@pytest.mark.held_against("torch and vLLM, unpatched")
@pytest.mark.parametrize("claim", NAMES)
def test_patches(
    subject: Subject, claim: str, rebindings: Rebindings, finding: Callable[[str], None]
) -> None:
    """The claim holds of all names that the subject rebinds."""
    if subject.name == "bare":
        pytest.skip("bare rebinds nothing")
    outcome = rebindings.of(subject, claim)
    if outcome.not_applicable is not None:
        pytest.skip(outcome.not_applicable)
    if outcome.wrong is not None:
        finding(f"{claim.replace('-', ' ')}: {outcome.wrong}")
