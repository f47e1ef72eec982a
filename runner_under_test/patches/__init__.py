"""What the CPU runner rebinds: the register, and the choice of what to leave out.

``RUNNER_UNDER_TEST_WITHOUT`` in the environment names patches to leave out, separated by commas,
or ``*`` for all: to see what each is for.
"""

from __future__ import annotations

import os

from runner_under_test.patches import (
    accelerator,
    adapters,
    drafting,
    embedding,
    events,
    kernels,
    loading,
    mamba,
    pinned,
    sampling,
    sinks,
    streams,
    threads,
    unified,
)
from runner_under_test.patches.patch import (
    AcceleratorPresent,
    Patch,
    PatchError,
    PatchTargetMissing,
)
from runner_under_test.patches.register import Applied, PatchRow, Register

WITHOUT = "RUNNER_UNDER_TEST_WITHOUT"

REGISTER = Register(
    (
        *events.PATCHES,
        *streams.PATCHES,
        *accelerator.PATCHES,
        *pinned.PATCHES,
        *threads.PATCHES,
        *unified.PATCHES,
        *sampling.PATCHES,
        *loading.PATCHES,
        *embedding.PATCHES,
        *drafting.PATCHES,
        *adapters.PATCHES,
        *mamba.PATCHES,
        *sinks.PATCHES,
        *kernels.PATCHES,
    )
)


def left_out() -> tuple[str, ...]:
    """Return the names of the patches that the environment leaves out."""
    return tuple(name.strip() for name in os.environ.get(WITHOUT, "").split(",") if name.strip())


__all__ = [
    "REGISTER",
    "WITHOUT",
    "AcceleratorPresent",
    "Applied",
    "Patch",
    "PatchError",
    "PatchRow",
    "PatchTargetMissing",
    "Register",
    "left_out",
]
