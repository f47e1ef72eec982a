"""Prompts and sampling parameters that several scenarios share."""

from __future__ import annotations

from typing import Any

_LONG = tuple((7 * i * i + 3 * i + 11) % 500 + 6 for i in range(60))
PROMPTS = ((17, 301, 44, 9, 260), (5,), _LONG, (400, 401, 402, 403, 404, 405, 406, 407, 408))
"""Of mixed lengths, for a vocabulary of 512."""
ECHOES = (
    (61, 62, 63, 64, 65, 61, 62, 63, 64, 65, 61, 62),
    (310, 12, 310, 12, 310, 12, 310, 12),
    (99, 7, 7, 7, 7, 7, 7),
)
"""Prompts whose ends repeat their beginnings, so that looking back finds something to propose."""
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
