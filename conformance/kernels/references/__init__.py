"""References of the V2 runner's kernels, and the kernels that have none yet."""

from __future__ import annotations

from conformance.kernels.references import inputs, sampling
from conformance.kernels.references.reference import Reference

REFERENCE: dict[str, Reference] = {
    reference.kernel: reference for module in (sampling, inputs) for reference in module.REFERENCES
}
