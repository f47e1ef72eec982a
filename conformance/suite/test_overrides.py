"""What a CPU runner overrides, against the class that it overrides.

Which methods there are is read from the source, so that each has its rows; what they are is looked
up in the classes, in a child process, where both are driven on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.contract.overrides.drivers import parts_of
from conformance.contract.overrides.names import Method, rows_of
from conformance.contract.overrides.outcomes import Overrides, check
from conformance.scenarios.runs import Runs
from conformance.target import DEFAULT_SUBJECTS, Subject, parse_subject

Find = Callable[[Subject], Overrides]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A row for each method that a subject defines: the session's, and those that come along.

    Which rows there are must not depend on who is selected, as an expectation names its row.
    """
    chosen = metafunc.config.getoption("--subject") or ()
    names = dict.fromkeys((*DEFAULT_SUBJECTS, *chosen))
    methods: tuple[Method, ...] = rows_of(tuple(parse_subject(name) for name in names))
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", [method.name for method in methods])
    elif "part" in metafunc.fixturenames:
        parts = [part for method in methods for part in parts_of(method.name)]
        metafunc.parametrize("part", parts)


@pytest.fixture(scope="session")
def overrides_of(runs: Runs) -> Find:
    """What each subject overrides, checked in one child per subject."""
    known: dict[str, Overrides] = {}

    def find(subject: Subject) -> Overrides:
        if subject.name not in known:
            known[subject.name] = check(runs.host, subject, str(runs.model("tiny-llama")))
        return known[subject.name]

    return find


def _judge(
    subject: Subject,
    tier: str,
    row: str,
    overrides_of: Find,
    finding: Callable[[str], None],
) -> None:
    if subject.name == "bare":
        pytest.skip("bare is the GPU runner itself, which overrides nothing")
    outcome = overrides_of(subject).of(subject, tier, row)
    if outcome.not_applicable is not None:
        pytest.skip(outcome.not_applicable)
    if outcome.wrong is not None:
        finding(outcome.wrong)


@pytest.mark.held_against("the method that is overridden")
def test_an_override_takes_what_its_base_takes(
    subject: Subject, method: str, overrides_of: Find, finding: Callable[[str], None]
) -> None:
    """Whatever callers of the base may pass, in whatever way, and it is of the same kind."""
    _judge(subject, "signature", method, overrides_of, finding)


@pytest.mark.held_against("the method that is overridden")
def test_an_override_does_what_its_base_does(
    subject: Subject, part: str, overrides_of: Find, finding: Callable[[str], None]
) -> None:
    """The same result and the same effect, on memory whose rest is poisoned."""
    _judge(subject, "equivalence", part, overrides_of, finding)
