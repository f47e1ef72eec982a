"""A stand-in for Triton's CPU backend, with which vLLM's Triton kernels run in the interpreter.

vLLM switches Triton off on a CPU unless `triton.backends` has an entry named ``cpu``, and its V2
runner needs Triton (vLLM's ``triton_utils/importing.py``, ``VllmConfig.use_v2_model_runner``). The
package index's triton has no such entry. Where kernels are interpreted nothing is compiled, so an
entry that can do nothing is enough. This module imports neither torch nor vLLM.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

INTERPRETED = {"TRITON_INTERPRET": "1"}
"""The environment of a process that needs the stand-in, from its start on."""


class _Nothing:
    """Neither compiles nor drives anything: Triton never chooses it for a device."""

    @classmethod
    def is_active(cls) -> bool:
        """Whether there is a device that it drives."""
        return False


def missing() -> str | None:
    """Say in one sentence why the V2 runner cannot run here; None if triton is installed."""
    if find_spec("triton") is not None:
        return None
    return "the V2 runner cannot run here without the package triton: `uv pip install triton`"


def is_wanted() -> bool:
    """Whether this process was started to interpret kernels."""
    return all(os.environ.get(name) == value for name, value in INTERPRETED.items())


def register() -> None:
    """Give Triton a backend named ``cpu``, unless it has one.

    Raises:
        RuntimeError: vLLM was imported already, or kernels would be compiled.
        ImportError: triton is not installed.
    """
    if "vllm" in sys.modules:
        raise RuntimeError("vLLM was imported already, and has looked at Triton's backends")
    if not is_wanted():
        raise RuntimeError("set TRITON_INTERPRET=1: the stand-in compiles nothing")
    from triton.backends import Backend, backends

    if "cpu" not in backends:
        backends["cpu"] = Backend(compiler=_Nothing, driver=_Nothing)
