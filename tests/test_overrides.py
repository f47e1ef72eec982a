"""The checks of overrides: what they know before anything is imported, and faults they must see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.contract.overrides.drivers import DRIVERS, parts_of
from conformance.contract.overrides.names import OTHERS, methods_of, rows_of
from conformance.contract.overrides.outcomes import Outcome, check
from conformance.scenarios.host import Host
from conformance.scenarios.runs import Runs
from conformance.target import parse_subject
from tests.faults.fault import Fault
from tests.faults.overrides import FAULTS

pytestmark = pytest.mark.xdist_group("host")

_ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_turns_its_check_red(fault: Fault, host: Host) -> None:
    subject = parse_subject(fault.subject)
    seen = check(
        host,
        subject,
        str(Runs(host).model("tiny-llama")),
        only=list(fault.only),
        fault=fault.plant,
    )
    outcome = seen.of(subject, fault.only[0].partition("/")[0], _row(fault.check))
    assert outcome.wrong is not None
    assert fault.says in outcome.wrong


def test_without_a_fault_the_same_rows_are_green(host: Host) -> None:
    subject = parse_subject("ours")
    seen = check(
        host,
        subject,
        str(Runs(host).model("tiny-llama")),
        only=sorted({row for fault in FAULTS for row in fault.only}),
    )
    assert seen.failure is None
    assert {name: o.wrong for name, o in seen.outcomes.items() if o.wrong} == {}


@pytest.mark.parametrize("name", ["ours", "upstream"])
def test_every_method_that_a_source_defines_is_found_in_the_class(name: str, host: Host) -> None:
    subject = parse_subject(name)
    seen = check(host, subject, str(Runs(host).model("tiny-llama")), only=[])
    named = {method.name for method in methods_of(subject)}
    assert named <= set(seen.found)
    # What a decorator makes is in no class's body; upstream has none of that.
    assert (named == set(seen.found)) == (name == "upstream")


def test_a_class_of_ones_own_has_rows_for_what_it_and_its_bases_define() -> None:
    methods = {m.name for m in methods_of(parse_subject("tests.faulty_workers:SwapsTokens"))}
    assert {"worker.sample_tokens", "worker.sleep", "runner._to_list"} <= methods


def test_a_class_that_cannot_be_found_has_the_row_of_the_others_only() -> None:
    rows = rows_of((parse_subject("no_such_package.module:Class"),))
    assert [row.name for row in rows] == [OTHERS]


def test_rows_are_known_without_importing_torch_or_vllm() -> None:
    code = (
        "import sys\n"
        "from conformance.contract.overrides.names import methods_of\n"
        "from conformance.contract.overrides import drivers, outcomes\n"
        "from conformance.target import parse_subject\n"
        "assert methods_of(parse_subject('upstream')) and methods_of(parse_subject('ours'))\n"
        "print(sorted({'torch', 'vllm', 'runner_under_test.patches'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_driver_is_for_a_method_that_is_overridden_in_some_supported_vllm() -> None:
    """Those of other versions than the installed one are named here, with the version."""
    elsewhere = {"runner._init_device_properties", "worker.profile", "worker.discard"}
    here = {m.name for name in ("upstream", "ours") for m in methods_of(parse_subject(name))}
    assert set(DRIVERS) - elsewhere <= here


def test_a_method_has_a_row_for_each_part_of_what_it_does() -> None:
    assert parts_of("runner._to_list") == ("runner._to_list",)
    assert parts_of("no.such") == ("no.such",)
    assert "runner.__init__/buffers" in parts_of("runner.__init__")


def test_a_crash_is_the_fault_of_the_row_that_it_happens_in(host: Host) -> None:
    subject = parse_subject("ours")
    seen = check(
        host,
        subject,
        str(Runs(host).model("tiny-llama")),
        only=["equivalence/runner._to_list", "equivalence/worker.shutdown"],
        fault="tests.test_overrides:_ends_in_to_list",
    )
    assert "SIGKILL" in str(seen.of(subject, "equivalence", "runner._to_list").wrong)
    assert seen.of(subject, "equivalence", "worker.shutdown") == Outcome()


def _ends_in_to_list() -> None:
    import os
    import signal

    from runner_under_test.model_runner import CPUModelRunner

    def _to_list(self: object, sampled_token_ids: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    CPUModelRunner._to_list = _to_list


def _row(check_id: str) -> str:
    match = re.fullmatch(r"overrides::\w+\[(.+)\]", check_id)
    assert match is not None
    return match[1]
