"""Triton kernels: what runs in their place on a CPU, held against their own source.

The kernels are those that the surface says a CPU surely launches. Each is given at least 200 drawn
inputs: its own source is run on them by Triton's interpreter, the subject's counterpart on the same
memory, by a launch and through the function that vLLM calls, and all memory that either could reach
is compared. See `conformance.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.kernels.outcomes import (
    EXAMPLES,
    NIGHTLY,
    CannotRecord,
    KernelOutcomes,
    V2Outcomes,
)
from conformance.kernels.rows import (
    OPERATOR,
    KernelRow,
    rows_of_installed,
    sites_of,
    v2_kernels_of_installed,
    without_generator,
)
from conformance.scenarios.runs import Runs
from conformance.surface.model import Inventory
from conformance.target import Subject, WrongUse


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the check for each kernel and way."""
    if "v2_kernel" in metafunc.fixturenames:
        metafunc.parametrize("v2_kernel", v2_kernels_of_installed())
    if "kernel" in metafunc.fixturenames:
        of_operators = "operator" in metafunc.function.__name__
        try:
            rows = [row for row in rows_of_installed() if (row.way == OPERATOR) == of_operators]
        except WrongUse as error:
            raise pytest.UsageError(str(error)) from error
        metafunc.parametrize("kernel", rows, ids=[row.id for row in rows])


@pytest.fixture(scope="session")
def kernel_outcomes(runs: Runs, request: pytest.FixtureRequest) -> KernelOutcomes:
    """Every row's outcome; a child for each kernel and subject shows them."""
    examples = EXAMPLES * (NIGHTLY if request.config.getoption("--nightly") else 1)
    return KernelOutcomes(runs, rows_of_installed(), examples)


Check = Callable[[KernelRow], None]


@pytest.fixture
def check(
    subject: Subject, kernel_outcomes: KernelOutcomes, finding: Callable[[str], None]
) -> Check:
    """Fail, or leave open, according to what a row came to."""

    def check(row: KernelRow) -> None:
        from conformance.kernels.generators import GENERATOR

        if row.kernel not in GENERATOR:
            finding(f"{row.kernel} has no generator, so nobody knows what stands in for it")
        try:
            outcome = kernel_outcomes.of(subject, row)
        except CannotRecord as error:
            pytest.fail(str(error), pytrace=False)
        if outcome.state in ("open", "replaced"):
            pytest.skip(outcome.text)
        if outcome.state == "red":
            finding(outcome.text)

    return check


@pytest.mark.timeout(7200)
@pytest.mark.held_against("the kernel's own source, in Triton's interpreter")
def test_does_what_the_gpus_kernel_does(kernel: KernelRow, check: Check) -> None:
    """After each launch memory is as the GPU's own kernel leaves it: outputs, and all around."""
    check(kernel)


@pytest.mark.timeout(7200)
@pytest.mark.bare_holds
@pytest.mark.held_against("the kernel's own source, in Triton's interpreter")
def test_an_operator_does_what_the_gpus_kernel_does(kernel: KernelRow, check: Check) -> None:
    """What vLLM's CPU layers run in a kernel's stead comes to the same, within 16 bits."""
    check(kernel)


@pytest.fixture(scope="session")
def v2_outcomes(runs: Runs, request: pytest.FixtureRequest) -> V2Outcomes:
    """How each V2 kernel compares with its reference."""
    examples = EXAMPLES * (NIGHTLY if request.config.getoption("--nightly") else 1)
    return V2Outcomes(runs.host, examples)


@pytest.mark.timeout(7200)
@pytest.mark.held_against("a reference in float64")
def test_a_v2_kernel_does_what_it_is_for(v2_kernel: str, v2_outcomes: V2Outcomes) -> None:
    """A CPU runs the V2 runner's kernels themselves, and they leave what their references say."""
    wrong = v2_outcomes.of(v2_kernel)
    if wrong is not None and wrong.startswith("not checked"):
        pytest.skip(wrong)
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.held_against("the surface")
def test_every_v2_kernel_has_a_reference_or_is_listed_as_without() -> None:
    """No kernel that the V2 runner surely launches on a CPU is passed over in silence."""
    from conformance.contract.installed import contract_of_installed
    from conformance.kernels.references import REFERENCE
    from conformance.kernels.references.pending import NO_REFERENCE

    sites = sites_of(contract_of_installed("v2"))
    missing = without_generator(
        Inventory.of("", sites), {*REFERENCE, *NO_REFERENCE}, generation="v2"
    )
    if missing:
        told = "\n  ".join(f"{kernel} ({where})" for kernel, where in missing.items())
        pytest.fail(
            "the V2 runner launches kernels that nothing is held against; write a reference in "
            "conformance/kernels/references/ for each, or say in its pending.py why there is "
            f"none:\n  {told}",
            pytrace=False,
        )


@pytest.mark.held_against("the surface")
def test_every_kernel_has_a_generator() -> None:
    """No kernel that a CPU surely launches is without one: a new one is a failure until it has."""
    from conformance.kernels.generators import GENERATOR

    sites = [site for row in rows_of_installed() for site in row.sites]
    missing = without_generator(Inventory.of("", sites), GENERATOR)
    if missing:
        told = "\n  ".join(f"{kernel} ({where})" for kernel, where in missing.items())
        pytest.fail(
            "the runner launches kernels for which no inputs are drawn; write a generator in "
            f"conformance/kernels/generators/ for each:\n  {told}",
            pytrace=False,
        )
