"""A fault planted in a suite's run, to see what the suite makes of it."""

from __future__ import annotations

import json
from typing import Any

from conformance.scenarios.catalogue import SCENARIO
from conformance.target import WrongUse

FAULT_VARIABLE = "VLLM_CONFORMANCE_FAULT"
"""JSON with ``subject``, ``scenario``, ``phase``, and ``signal`` or ``sleep``."""

WITHOUT_VARIABLE = "RUNNER_UNDER_TEST_WITHOUT"
"""Patches of ours that are left out, by their names, separated by commas."""


def require_planted_fault(text: str | None) -> dict[str, Any] | None:
    """Return the fault that the variable's text describes, None without one.

    Raises:
        WrongUse: the text describes none.
    """
    if text is None:
        return None
    try:
        fault = json.loads(text)
    except json.JSONDecodeError as error:
        raise WrongUse(f"{FAULT_VARIABLE} is no JSON: {error}.") from error
    if not isinstance(fault, dict) or not {"subject", "scenario", "phase"} <= fault.keys():
        raise WrongUse(f"{FAULT_VARIABLE} needs subject, scenario, phase, and signal or sleep.")
    scenario = SCENARIO.get(fault["scenario"])
    if scenario is None or scenario.in_worker_processes:
        raise WrongUse(f"{FAULT_VARIABLE}: no scenario in one process is {fault['scenario']!r}.")
    return fault


def require_patches(text: str | None) -> None:
    """Check that each patch that is to be left out is one.

    Raises:
        WrongUse: there is no patch of that name.
    """
    if not text:
        return
    from runner_under_test.patches import REGISTER, PatchError, left_out

    try:
        REGISTER.names_left_out(left_out())
    except PatchError as error:
        raise WrongUse(f"{WITHOUT_VARIABLE}: {error}.") from error
