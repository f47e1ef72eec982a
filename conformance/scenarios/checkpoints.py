"""Checkpoints by name, whichever way they are made: recipes, and what is derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from conformance.scenarios.adapters import ADAPTERS
from conformance.scenarios.derived import Derived, derived_hash, write_derived
from conformance.scenarios.drafts import DRAFTS
from conformance.scenarios.recipes import RECIPES, materialise, recipe_hash

__all__ = ["DERIVED", "checkpoint", "checkpoint_hash"]

DERIVED: Mapping[str, Derived] = MappingProxyType({**DRAFTS, **ADAPTERS})
"""Everything that is derived from a recipe, by its name."""


def checkpoint(name: str, cache: Path) -> Path:
    """The checkpoint directory of that name under ``cache``, made if need be.

    Errors: KeyError for an unknown name, and those of `recipes.materialise`.
    """
    if name in DERIVED:
        return write_derived(DERIVED[name], cache)
    return materialise(RECIPES[name], cache)


def checkpoint_hash(name: str) -> str:
    """SHA-256, hex, of what decides a checkpoint's bytes; KeyError for an unknown name."""
    return derived_hash(DERIVED[name]) if name in DERIVED else recipe_hash(RECIPES[name])
