"""What each attribute must do on a host without an accelerator, given what it does on a GPU."""

from __future__ import annotations

from conformance.contract import (
    accelerator,
    devices,
    events,
    graphs,
    kernels,
    pinned,
    platforms,
    sampling,
    streams,
    tensors,
)
from conformance.contract.clause import Clause

CLAUSES: tuple[Clause, ...] = (
    *streams.CLAUSES,
    *events.CLAUSES,
    *accelerator.CLAUSES,
    *devices.CLAUSES,
    *graphs.CLAUSES,
    *tensors.CLAUSES,
    *pinned.CLAUSES,
    *platforms.CLAUSES,
    *kernels.CLAUSES,
    *sampling.CLAUSES,
)

CLAUSE = {clause.name: clause for clause in CLAUSES}
"""Every clause by its name."""
