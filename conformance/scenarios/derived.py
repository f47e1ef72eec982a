"""Checkpoints that are made from another one's weights: draft heads, adapters, merged models.

As a recipe does, each names everything that decides its bytes; the weights that it starts from are
those of its base, read from the base's own checkpoint. Nothing here imports torch or vLLM.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.scenarios.recipes import RECIPES, materialise, recipe_hash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Weights = Mapping[str, Array]
    Making = Callable[[Weights, "Derived"], dict[str, Array]]

__all__ = ["Derived", "derived_hash", "write_derived"]

_FORMAT = 1
"""Goes up when what is written changes: older cached checkpoints are then left alone."""


@dataclass(frozen=True)
class Derived:
    """A checkpoint that is made from the weights of ``base``.

    ``make`` gets the base's tensors by name and this, and returns the tensors to write (float32).
    ``options`` are what it is to know besides ``seed``; ``config`` is written as ``config_file``.
    ``complete``: the tokenizer and the rest of the base's files belong to it as well.
    ``version`` goes up when ``make`` changes what it makes. ``why`` is no part of the hash.
    """

    name: str
    base: str
    make: Making = field(compare=False)
    config: Mapping[str, Any]
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    weights_file: str = "model.safetensors"
    config_file: str = "config.json"
    complete: bool = False
    version: int = 1
    why: str = field(default="", compare=False)

    def description(self) -> dict[str, Any]:
        """Everything that decides its bytes, as JSON-able data."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "base": recipe_hash(RECIPES[self.base]),
            "make": f"{self.make.__module__}.{self.make.__qualname__}",
            "version": self.version,
            "config": dict(self.config),
            "seed": self.seed,
            "options": dict(self.options),
            "complete": self.complete,
        }


def derived_hash(item: Derived) -> str:
    """SHA-256, hex, of what decides a derived checkpoint's bytes."""
    text = json.dumps(item.description(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write_derived(item: Derived, cache: Path) -> Path:
    """The checkpoint directory under ``cache``, written if it is not there yet.

    It is written beside its final name and renamed, as `recipes.materialise` does.
    Errors: those of `recipes.materialise` for its base, and OSError.
    """
    from safetensors.numpy import load_file, save_file

    base = materialise(RECIPES[item.base], cache)
    digest = derived_hash(item)
    final = cache / f"{item.name}-{digest[:16]}"
    if final.is_dir():
        return final
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=cache))
    try:
        if item.complete:
            shutil.copytree(base, scratch, dirs_exist_ok=True)
        weights = item.make(load_file(base / "model.safetensors"), item)
        save_file(weights, scratch / item.weights_file, metadata={"format": "pt"})
        _write_json(scratch / item.config_file, dict(item.config))
        _write_json(scratch / "recipe.json", {"hash": digest, "recipe": item.description()})
        for path in scratch.iterdir():
            path.chmod(0o644)
        scratch.chmod(0o755)
        try:
            scratch.rename(final)
        except OSError:
            # Another process was first.
            if not final.is_dir():
                raise
        return final
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
