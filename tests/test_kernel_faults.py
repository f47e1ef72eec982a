"""Planted faults of kernel implementations: each turns its kernel's check red, and only so."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from conformance.kernels.outcomes import Records
from conformance.kernels.rows import WAYS
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from tests.faults.kernels import FAULTS, PLANTED, SOUND, KernelFault

pytestmark = [
    pytest.mark.xdist_group("host"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton"),
]

KERNELS = sorted({fault.kernel for fault in FAULTS})


@pytest.fixture(scope="module")
def records(host: Host) -> Iterator[Records]:
    """The same records as the suite's."""
    yield Records(Runs(host))


class _Planted:
    """What each kernel's check came to, by fault and by way; a child for each kernel shows it."""

    def __init__(self, host: Host, records: Records) -> None:
        self._host = host
        self._records = records
        self._results: dict[str, dict[str, dict[str, Any]]] = {}

    def of(self, kernel: str, name: str) -> dict[str, dict[str, Any]]:
        """The results by way; a fault that ends its process is seen, whatever it did before."""
        if kernel not in self._results:
            self._results[kernel] = self._run(kernel)
        return self._results[kernel][name]

    def _run(self, kernel: str) -> dict[str, dict[str, Any]]:
        names = [SOUND, *(fault.name for fault in FAULTS if fault.kernel == kernel)]
        results: dict[str, dict[str, Any]] = {}
        while rest := [name for name in names if name not in results]:
            run = self._host.run(
                "tests.faults.kernels:run",
                {
                    "kernel": kernel,
                    "record": str(self._records.path(f"triton:{kernel}")),
                    "names": rest,
                },
                label=f"{kernel}, planted",
            )
            results |= {name: run.results[name] for name in rest if name in run.results}
            if run.failure is not None:
                assert run.exit.signal is not None, run.failure
                ended = {"failed": 1, "parameters": None, "smallest": run.failure}
                results[run.results[PLANTED]] = dict.fromkeys(WAYS, ended)
        return results


@pytest.fixture(scope="module")
def planted(host: Host, records: Records) -> _Planted:
    return _Planted(host, records)


@pytest.mark.parametrize("kernel", KERNELS)
def test_ours_does_what_the_kernel_does_whether_or_not_it_is_needed(
    kernel: str, planted: _Planted
) -> None:
    for way, result in planted.of(kernel, SOUND).items():
        assert (result["failed"], result["parameters"]) == (0, None), f"{way}: {result['smallest']}"


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_turns_the_check_of_its_kernel_red(fault: KernelFault, planted: _Planted) -> None:
    results = planted.of(fault.kernel, fault.name)
    red = [way for way, result in results.items() if result["failed"] or result["parameters"]]
    assert red, f"{fault.kernel} is green with {fault.old!r} changed to {fault.new!r}"


def test_every_kernel_with_an_implementation_of_ours_has_faults() -> None:
    from conformance.kernels.generators import GENERATOR
    from runner_under_test.kernels import KERNELS as OURS

    implemented = {
        kernel.removeprefix("triton:")
        for kernel in GENERATOR
        if any(ours.target.endswith("." + kernel.removeprefix("triton:")) for ours in OURS)
    }
    assert implemented == set(KERNELS)
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
