"""Kernels: placeholder until its clauses are listed."""

from __future__ import annotations

from conformance.contract.clause import clauses_of

CLAUSES = clauses_of(globals())
