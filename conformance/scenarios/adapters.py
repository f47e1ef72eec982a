"""LoRA adapters as PEFT writes them, and the models that they make of their base.

An adapter's matrices are drawn from its seed. The model that it makes is written out as well,
with ``scaling * B @ A`` added to each weight: transformers computes the reference with that, and
knows nothing of adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from conformance.scenarios.derived import Derived
from conformance.scenarios.recipes import RECIPES
from conformance.scenarios.weights import uniform

if TYPE_CHECKING:
    from conformance.scenarios.derived import Array, Weights

__all__ = ["ADAPTERS", "merged"]

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_EMBEDDING = "embed_tokens"
_MLP = ("gate_proj", "up_proj", "down_proj")


def merged(adapter: str) -> str:
    """The name of the model that an adapter makes of its base."""
    return f"{ADAPTERS[adapter].base}+{adapter}"


def _matrices(base: Weights, item: Derived) -> Iterator[tuple[str, Array, Array]]:
    """Each weight that an adapter changes, by name, with A (rank, in) and B (out, rank)."""
    import numpy as np

    adapter: Mapping[str, Any] = item.options["adapter"]
    rank, size = int(adapter["r"]), np.float32(item.options["size"])
    for name in sorted(base):
        if name.split(".")[-2] in adapter["target_modules"]:
            rows, columns = base[name].shape
            yield (
                name,
                uniform(item.seed, f"{name}:A", (rank, columns)),
                size * uniform(item.seed, f"{name}:B", (rows, rank)),
            )


def _adapter(base: Weights, item: Derived) -> dict[str, Array]:
    """PEFT's tensors. An embedding is looked up, so its weight is kept the other way round."""
    import numpy as np

    made = {}
    for name, a, b in _matrices(base, item):
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if module.endswith(_EMBEDDING):
            made[f"{module}.lora_embedding_A"] = np.ascontiguousarray(b.T)
            made[f"{module}.lora_embedding_B"] = np.ascontiguousarray(a.T)
        else:
            made[f"{module}.lora_A.weight"] = a
            made[f"{module}.lora_B.weight"] = b
    return made


def _merged(base: Weights, item: Derived) -> dict[str, Array]:
    """The base with an adapter's products added, in float64, and rounded once.

    One rank after the other: a library's product of matrices sums in an order of its own.
    """
    import numpy as np

    adapter: Mapping[str, Any] = item.options["adapter"]
    rank = int(adapter["r"])
    scaling = adapter["lora_alpha"] / (math.sqrt(rank) if adapter["use_rslora"] else rank)
    made = dict(base)
    for name, a, b in _matrices(base, item):
        left, right = b.astype(np.float64), a.astype(np.float64)
        product = sum(np.outer(left[:, k], right[k]) for k in range(rank))
        made[name] = (base[name] + scaling * product).astype(np.float32)
    return made


def _pair(
    name: str, seed: int, rank: int, modules: tuple[str, ...], size: float, **changed: Any
) -> tuple[Derived, Derived]:
    """An adapter for tiny-llama, and the model that it makes."""
    base = "tiny-llama"
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "target_modules": list(modules),
        **changed,
    }
    options = {"adapter": config, "size": size}
    adapter = Derived(
        name=name,
        base=base,
        make=_adapter,
        config=config,
        seed=seed,
        options=options,
        weights_file="adapter_model.safetensors",
        config_file="adapter_config.json",
    )
    model = Derived(
        name=f"{base}+{name}",
        base=base,
        make=_merged,
        config=RECIPES[base].config,
        seed=seed,
        options=options,
        complete=True,
    )
    return adapter, model


_ALL = (
    *_pair("lora-all", 101, 8, _ATTENTION + _MLP, 0.03, lora_alpha=16),
    *_pair("lora-attention", 102, 16, ("q_proj", "v_proj"), 0.05, use_rslora=True),
    *_pair("lora-mlp", 103, 3, _MLP, 0.1),
    *_pair("lora-vocabulary", 104, 4, (_EMBEDDING, "lm_head"), 0.1),
)

ADAPTERS: Mapping[str, Derived] = MappingProxyType({item.name: item for item in _ALL})
"""Every adapter by its name, and every model that one makes."""
