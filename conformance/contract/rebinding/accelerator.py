"""A host with an accelerator, simulated.

An accelerator that torch does not know itself (Ascend's, for one) comes as a plug-in: it names
torch's spare backend after itself and registers a module of device functions. That is done here,
by torch's own functions. From then on torch itself answers that there is an accelerator, and which;
none of its answers is replaced. What is missing is a device that computes.
"""

from __future__ import annotations

import types

NAME = "conformance"


def register() -> None:
    """Let torch see an accelerator, for the rest of this process."""
    import torch

    module = types.ModuleType(f"torch.{NAME}")
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_initialized": lambda: False,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }
    vars(module).update(answers)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    if not torch.accelerator.is_available():
        raise RuntimeError("torch does not see the accelerator that was registered")
