"""torch.compile of code that calls what is patched: it must compute what it computes uncompiled."""

from __future__ import annotations

from typing import Any

BEFORE_DYNAMO = """
import sys
import torch
from runner_under_test.patches import REGISTER
from runner_under_test.patches.register import Register

assert "torch._dynamo" not in sys.modules, "torch imports torch._dynamo by itself"
# What needs vLLM to decide or to resolve is left out: vLLM imports torch._dynamo.
Register([p for p in REGISTER.patches if p.target.startswith("torch.") and not p.versions]).apply()
from conformance.contract.rebinding.compiling import compile_and_compare

compile_and_compare(stream=False)
"""
"""Run by a new interpreter. Streams are left out: their stand-ins tell vLLM's own record."""


def trace_something() -> None:
    """Let Dynamo trace a function, so that it has its table of handlers."""
    import torch

    def plain(x: Any) -> Any:
        return torch.add(x, 1)  # a function of torch's: Dynamo looks whether it has a handler

    torch.compile(plain, backend="eager")(torch.ones(2))


def compile_and_compare(stream: bool = True) -> None:
    """Compile a step that waits, empties the cache and enters a stream; raise if it differs.

    Dynamo looks torch's names up anew, as it does in every worker: there
    ``torch.distributed.init_process_group`` clears what it remembers of them.
    """
    import torch
    from torch._dynamo import trace_rules

    trace_rules.clear_lru_cache()
    other = torch.cuda.Stream() if stream else None

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.accelerator.synchronize()
        y = y * 3
        torch.accelerator.empty_cache()
        if other is not None:
            with torch.cuda.stream(other):
                y = y - 1
        return y * 2

    x = torch.arange(4.0)
    expected = step(x)
    for attempt in ("the first time", "the second time"):
        try:
            got = torch.compile(step, backend="eager")(x)
        except Exception as error:
            reason = str(error).partition("\n\nSet TORCHDYNAMO")[0]
            raise AssertionError(
                "code that calls torch.accelerator.synchronize and empty_cache and enters a stream "
                f"runs uncompiled, and compiled it raises {type(error).__name__}: {reason}"
            ) from error
        if not torch.equal(got, expected):
            raise AssertionError(
                f"compiled, {attempt}, it gives {got.tolist()}, and uncompiled {expected.tolist()}"
            )
