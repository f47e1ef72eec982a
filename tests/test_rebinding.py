"""The checks of patches as a whole, and faults that they must see."""

from __future__ import annotations

import re

import pytest

from conformance.contract.rebinding.claims import CLAIM, NAMES
from conformance.contract.rebinding.outcomes import check
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.target import parse_subject, require_vllm
from tests.faults.fault import Fault
from tests.faults.rebinding import FAULTS

pytestmark = pytest.mark.xdist_group("host")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}: {_claim(fault)}")
def test_a_planted_fault_turns_its_check_red(fault: Fault, host: Host) -> None:
    model, vllm = str(Runs(host).model("tiny-llama")), require_vllm().vllm or ""
    claim = _claim(fault)
    outcomes = check(host, parse_subject(fault.subject), claim, model, vllm, fault=fault.plant)
    wrong = outcomes[claim].wrong
    assert wrong is not None
    assert fault.says in wrong


def test_every_claim_that_can_be_about_ours_has_a_fault_that_it_sees() -> None:
    seen = {_claim(fault) for fault in FAULTS}
    assert {name for name in NAMES if name not in seen} == {
        name for name in CLAIM if CLAIM[name].only == "upstream"
    }


def test_a_named_class_is_checked_by_building_its_engine(host: Host) -> None:
    subject = parse_subject("tests.faulty_workers:SwapsTokens")
    model, vllm = str(Runs(host).model("tiny-llama")), require_vllm().vllm or ""
    outcomes = check(host, subject, "every-name-has-an-object-of-its-own", model, vllm)
    assert {name: o.wrong for name, o in outcomes.items() if o.wrong} == {}
    outcomes = check(host, subject, "restored-at-the-end", model, vllm)
    assert {name: o.wrong for name, o in outcomes.items() if o.wrong} == {}


def _claim(fault: Fault) -> str:
    match = re.fullmatch(r"rebinding::patches\[(.+)\]", fault.check)
    assert match is not None
    return match[1]
