"""Draft heads, adapters and merged models: the same bytes each time, and what they say they are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.scenarios.adapters import ADAPTERS, merged
from conformance.scenarios.checkpoints import DERIVED, checkpoint, checkpoint_hash
from conformance.scenarios.derived import derived_hash
from conformance.scenarios.recipes import recipe_of

PINNED = {
    "tiny-llama-eagle": "62876bc2730451d2c5188b134626602e82da65c1ee88a27b6961e2f43259ca75",
    "tiny-llama-8-eagle3": "8bf658524dfb37c561d2d0a3ffeeaad06eb926f56c31ee8826cbe3715c650140",
    "tiny-llama-medusa": "802581afe7e5dc283b43098e026acb689a90dbddad246a6d9d32e4d6c39a7a1d",
    "tiny-mimo": "fd9eded0efe27da8a2e884c5c0071456280fb5dbd2ae8b1971b8fcc08f76169e",
    "tiny-llama-dflash": "5f714529ac08a0badf6fafae4b2bb0ae9ac1c0cdcf2e4234f8d4bbbb28f8d00a",
    "tiny-llama-pard": "17e66135353b2acba099356ad490f07c48558b925a7cd2d9d21f47560e4a90c6",
    "tiny-gemma4": "f562b3a105c4c8cae823d3103820dc1193abf61de43ef3df492fd7521a3f417d",
    "tiny-gemma4-assistant": "e5e584629908209641fa531672ba04dcfb715581bf5bfc2aea9d1cddc1b0ff80",
    "lora-all": "2af319fb791d70bda1a70520f17f057693b9a152181985fc659f822e943f7670",
    "tiny-llama+lora-all": "f7dcfaaa0ec8f9c1d41fb944b1dbb1fee650ed8562022c546c1ebe4429854368",
    "lora-attention": "888ddeb6ca1d42f34ebf1fc48dd9f5ef00ed5ffdd5388a0414710abdbfa4f182",
    "tiny-llama+lora-attention": "229897f7548893cb74bc32ab6e4410e7c33c5514baea7d83bab555ef2ae60e2e",
    "lora-mlp": "405d73fdf41c5150f2d6c6a85c6cf0176c5754b259c88feb8ca96df811bea1d0",
    "tiny-llama+lora-mlp": "707c64ffb15540d8c94d846a3c3f09080b335b7d70e718914cf97ad0308c4747",
    "lora-vocabulary": "d632fc5d3d78e7c7b7aa94765f0b4ac3bfa36ea9138c927959e1ffa7d6cfb154",
    "tiny-llama+lora-vocabulary": ""  # so that the line is no longer than lines may be
    "53fa87d032107f25bd87269465147e287ab0a3349b6ab4569b9fb8f763d94055",
}
"""SHA-256 of the weights' files. A change of ``make`` needs another ``version``, and a new pin."""

_LORA = [name for name, item in ADAPTERS.items() if not item.complete]


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_has_the_same_bytes_in_another_cache(name: str, tmp_path: Path) -> None:
    one, other = (checkpoint(name, tmp_path / cache) for cache in ("one", "other"))
    assert one.name == other.name
    files = sorted(path.name for path in one.iterdir())
    assert files == sorted(path.name for path in other.iterdir())
    assert [f for f in files if (one / f).read_bytes() != (other / f).read_bytes()] == []
    assert recipe_of(one) == (name, checkpoint_hash(name))
    content = (one / DERIVED[name].weights_file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == PINNED[name]


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
