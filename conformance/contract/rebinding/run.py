"""Claims about a subject's rebindings, in a child process."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

from conformance.contract.rebinding.claims import CLAIM
from conformance.contract.rebinding.force import Force, NotApplicable
from conformance.contract.rebinding.snapshot import snapshot
from conformance.scenarios.child import Journal


def run(
    journal: Journal,
    claims: list[str],
    subject: str,
    worker_cls: str | None,
    model: str,
    vllm: str,
    fault: str | None = None,
) -> None:
    """Check claims, and report for each None, or ``wrong`` or ``not_applicable``."""
    import torch

    torch.set_num_threads(1)
    force = Force(subject, worker_cls, model, vllm)
    before = {name: CLAIM[name].before() for name in claims}
    with journal.phase_of("plant"):
        _plant(fault)
    for name in claims:
        with journal.phase_of(name):
            journal.result(name, _outcome(CLAIM[name].check, force, before[name]))


def _outcome(check: Any, force: Force, before: Any) -> dict[str, str] | None:
    try:
        check(force, before)
    except NotApplicable as reason:
        return {"not_applicable": str(reason)}
    except AssertionError as error:
        return {"wrong": str(error) or traceback.format_exc()[-3000:]}
    except Exception as error:
        return {"wrong": f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}"}
    return None


def look(journal: Journal, fault: str | None = None) -> None:
    """Report what torch's names are bound to. Children of one server share its addresses."""
    _plant(fault)
    journal.result(
        "bound",
        {place.label: id(place.value) for place in snapshot(vllm=False).values()},
    )


def _plant(fault: str | None) -> None:
    if fault is not None:
        module, _, function = fault.partition(":")
        getattr(importlib.import_module(module), function)()
