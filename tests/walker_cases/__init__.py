"""Micro-cases of the static walker: a few lines of vLLM-like source each, with what they reach.

The tables are written from what the walker promises, not from what it does.
"""

from __future__ import annotations

from tests.walker_cases import (
    arguments,
    calls,
    contexts,
    guards,
    handed,
    launches,
    members,
    never,
    proofs,
    spellings,
)
from tests.walker_cases.case import Case

TABLES = (spellings, members, arguments, launches, calls, guards, contexts, never, proofs, handed)
CASES: tuple[Case, ...] = tuple(case for table in TABLES for case in table.CASES)
