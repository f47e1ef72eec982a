"""Planted faults: each turns the check red that the table names, and it is not red without."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.contract.installed import contract_of_installed
from conformance.contract.outcomes import is_red
from conformance.contract.probe import key
from conformance.contract.rows import ContractRow
from conformance.scenarios.host import Host
from tests.faults.fault import Fault
from tests.faults.stand_ins import FAULTS


def _rows(fault: Fault) -> list[ContractRow]:
    """The rows that a fault names, in every context; of a signature all shapes, if it has none."""
    tier, _, name = fault.check.partition("|")
    rows = [row for row in contract_of_installed("v1").rows if row.tier == tier]
    return [row for row in rows if row.id.rpartition("@")[0] == name] or [
        row for row in rows if row.name == name
    ]


def _outcomes(host: Host, rows: list[ContractRow], plant: str | None) -> dict[str, Any]:
    run = host.run(
        "conformance.contract.probe:held",
        {"names": [key(row) for row in rows], "plant": plant},
        label=f"fault {plant}",
    )
    assert run.failure is None, run.failure
    return run.results


@pytest.fixture(scope="module")
def sound(host: Host) -> dict[str, Any]:
    """What the rows come to with nothing planted."""
    rows = [row for fault in FAULTS for row in _rows(fault)]
    return _outcomes(host, rows, None)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_turns_its_check_red(fault: Fault, host: Host, sound: dict[str, Any]) -> None:
    rows = _rows(fault)
    if not rows:
        pytest.skip(f"this vLLM has no row {fault.check}")
    assert not _red(rows, sound)
    assert _red(rows, _outcomes(host, rows, fault.plant))


def _red(rows: list[ContractRow], results: dict[str, Any]) -> list[str]:
    cut = frozenset(results["cut"])
    return [row.id for row in rows if is_red(row, results[key(row)], cut)]


def test_there_are_faults_for_every_tier_of_the_contract() -> None:
    assert {fault.check.partition("|")[0] for fault in FAULTS} == {
        "presence",
        "signature",
        "behaviour",
    }
