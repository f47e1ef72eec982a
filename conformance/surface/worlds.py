"""The worlds in which the walker follows the code, as bits of a mask.

For each runner generation there are three: on a GPU, where no condition is decided and everything
is followed; perhaps on a CPU, where what cannot happen there is left out; and surely on a CPU,
where what rests on an undecided condition of the hardware, or on a name alone, is left out too.
"""

from __future__ import annotations

from conformance.surface.model import OnCpu

_V1 = 0b000111
_V2 = 0b111000
GPU = 0b001001
PERHAPS = 0b010010
SURELY = 0b100100
EVERYWHERE = _V1 | _V2
WITHOUT_PROOF = GPU | PERHAPS
ON_CPU = PERHAPS | SURELY
GENERATION = {"v1": _V1, "v2": _V2}


def on_cpu(mask: int) -> OnCpu:
    """What a site's worlds say of the CPU path."""
    if mask & SURELY:
        return "true"
    return "unknown" if mask & PERHAPS else "false"
