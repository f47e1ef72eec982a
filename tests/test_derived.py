"""Draft heads, adapters and merged models: the same bytes each time, and what they say they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.scenarios.adapters import ADAPTERS, merged
from conformance.scenarios.checkpoints import DERIVED, checkpoint, checkpoint_hash
from conformance.scenarios.derived import derived_hash
from conformance.scenarios.recipes import recipe_of

_LORA = [name for name, item in ADAPTERS.items() if not item.complete]


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_has_the_same_bytes_in_another_cache(name: str, tmp_path: Path) -> None:
    one, other = (checkpoint(name, tmp_path / cache) for cache in ("one", "other"))
    assert one.name == other.name
    files = sorted(path.name for path in one.iterdir())
    assert files == sorted(path.name for path in other.iterdir())
    assert [f for f in files if (one / f).read_bytes() != (other / f).read_bytes()] == []
    assert recipe_of(one) == (name, checkpoint_hash(name))


def test_a_checkpoint_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = checkpoint("lora-mlp", tmp_path)
    (path / "mark").write_text("mine")
    assert checkpoint("lora-mlp", tmp_path) == path
    assert (path / "mark").read_text() == "mine"


@pytest.mark.parametrize(
    "changed",
    [{"seed": 999}, {"version": 2}, {"base": "tiny-llama-8"}, {"options": {"size": 1.0}}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_decides_the_bytes_decides_the_hash(changed: dict[str, object]) -> None:
    item = ADAPTERS["lora-mlp"]
    other = replace(item, **changed)  # type: ignore[arg-type]
    assert derived_hash(item) != derived_hash(other)


@pytest.mark.parametrize("name", _LORA)
def test_a_merged_model_is_its_base_and_the_scaled_product(name: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    adapter = load_file(checkpoint(name, tmp_path) / "adapter_model.safetensors")
    config = json.loads((checkpoint(name, tmp_path) / "adapter_config.json").read_text())
    base = load_file(checkpoint("tiny-llama", tmp_path) / "model.safetensors")
    both = load_file(checkpoint(merged(name), tmp_path) / "model.safetensors")
    rank = config["r"]
    scaling = config["lora_alpha"] / (rank**0.5 if config["use_rslora"] else rank)
    changed = 0
    for weight in base:
        module = f"base_model.model.{weight.removesuffix('.weight')}"
        expected = base[weight].astype(np.float64)
        if f"{module}.lora_A.weight" in adapter:
            a, b = adapter[f"{module}.lora_A.weight"], adapter[f"{module}.lora_B.weight"]
            expected += scaling * np.einsum("or,ri->oi", b, a, dtype=np.float64)
            changed += 1
        elif f"{module}.lora_embedding_A" in adapter:
            a, b = adapter[f"{module}.lora_embedding_A"], adapter[f"{module}.lora_embedding_B"]
            expected += scaling * np.einsum("hr,rv->vh", b, a, dtype=np.float64)
            changed += 1
        assert np.abs(both[weight] - expected).max() < 1e-6, weight
    assert changed == len(adapter) // 2
    modules = {weight.split(".")[-2] for weight in base if (both[weight] != base[weight]).any()}
    assert modules == set(config["target_modules"])
