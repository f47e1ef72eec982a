"""Clauses in a child process: put a subject's stand-ins in place, check, report one by one."""

from __future__ import annotations

import traceback
from typing import Any

from conformance.scenarios.child import Journal


def run(journal: Journal, subject: str, names: list[str]) -> None:
    """Check the named clauses under a subject and report, for each, None or what is wrong."""
    import torch

    from conformance.contract import CLAUSE

    torch.set_num_threads(1)
    with journal.phase_of("patch"):
        put_in_place(subject)
    for name in names:
        with journal.phase_of(name):
            journal.result(name, _check(CLAUSE[name].check))


def put_in_place(subject: str) -> None:
    """Apply what bare, upstream or ours have in force while their runners work."""
    if subject == "bare":
        return
    from vllm.platforms import current_platform

    # vLLM does this for every runner, before it builds the worker.
    register = getattr(current_platform, "register_triton_kernel_overrides", None)
    if register is not None:
        register()
    if subject == "ours":
        from runner_under_test.patches import REGISTER, left_out

        REGISTER.hold(left_out())
    else:
        _put_upstreams_in_place()


def _put_upstreams_in_place() -> None:
    """vLLM's own: some at the import of its worker, some when its runner is made."""
    from vllm.v1.worker import cpu_model_runner, cpu_worker  # noqa: F401

    cpu_model_runner._set_torch_accelerator_to_noop()
    rebind = getattr(cpu_model_runner.CPUModelRunner, "_postprocess_triton", None)
    if rebind is not None:  # vLLM 0.30; it makes no use of its instance
        rebind(None)


def _check(check: Any) -> dict[str, str] | None:
    try:
        check()
    except Exception as error:
        return {
            "message": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc()[-3000:],
        }
    return None
