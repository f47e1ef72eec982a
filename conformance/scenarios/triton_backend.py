"""A stand-in for Triton's CPU backend, which lets vLLM's Triton kernels run in the interpreter.

vLLM switches Triton off on the CPU unless `triton.backends` has an entry named ``cpu``, and its V2
runner needs Triton (``vllm/triton_utils/importing.py``, ``VllmConfig.use_v2_model_runner``). The
triton of the package index has no such entry; with ``TRITON_INTERPRET=1`` none is needed to run
kernels, so an entry that compiles nothing will do. Imports neither torch nor vLLM.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

INTERPRETED = {"TRITON_INTERPRET": "1"}
"""What a process needs in its environment besides the stand-in."""


def missing() -> str | None:
    """Say, in one sentence, why the V2 runner cannot run here; None if it can be tried."""
    if find_spec("triton") is None:
        return (
            "the V2 runner cannot run here, as its kernels need the package triton: install it "
            "(docs/surface.md)"
        )
    return None


def register() -> None:
    """Give `triton.backends` an entry ``cpu``, unless there is one. Before vLLM is imported.

    Raises:
        RuntimeError: vLLM is loaded already, or kernels would not be interpreted.
        ImportError: triton is not installed.
    """
    if "vllm" in sys.modules:
        raise RuntimeError("vLLM is imported already, and has looked for Triton's backends")
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("TRITON_INTERPRET=1 is not set: the stand-in compiles nothing")
    from triton.backends import Backend, backends

    backends.setdefault("cpu", Backend(compiler=_NoCompiler, driver=_NoDriver))  # type: ignore[arg-type]


class _NoCompiler:
    """Compiles for no target at all."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return False


class _NoDriver:
    """Never active by itself, so that Triton chooses it for nothing."""

    @classmethod
    def is_active(cls) -> bool:
        return False
