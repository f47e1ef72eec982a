"""Weights that are the same, bit for bit, on every machine.

The words come from numpy's Philox bit generator through ``random_raw``, whose stream for a given
key numpy keeps from release to release (numpy, "Compatibility guarantee" of the bit generators;
its *distributions*, like torch's, promise no such thing). From words to weights there are only
operations that IEEE 754 defines to the bit: a shift, an exact conversion, one rounding per product
and per sum.

numpy is imported inside the functions: importing this module costs nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

__all__ = [
    "Drawn",
    "LlamaShape",
    "WeightScales",
    "drawing",
    "drawn_weights",
    "llama_weights",
    "perturbed",
    "rounded",
    "uniform",
]


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a llama decoder; all are counts, ``head_dim`` counts elements."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class WeightScales:
    """Half-widths of the uniform distribution that each kind of tensor is drawn from.

    A norm's weights are ``1 + norm * u``; all others are ``scale * u``, with ``u`` in (-1, 1).
    """

    embedding: float
    query_key: float
    value: float
    attention_out: float
    mlp_in: float
    mlp_out: float
    norm: float
    head: float


@dataclass(frozen=True)
class Drawn:
    """How the tensors are drawn in whose names ``pattern`` is found: ``centre + scale * u``."""

    pattern: str
    scale: float
    centre: float = 0.0


def uniform(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Uniform float32 values in (-1, 1) of ``shape``, a function of ``seed`` and ``name`` alone.

    The value for a 24-bit integer k is (2k + 1 - 2**24) / 2**24: exact in float32, symmetric,
    never zero. k is the upper 24 bits of a Philox word, one word per element in C order.
    """
    import numpy as np

    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    count = 1
    for extent in shape:
        count *= extent
    words = np.random.Philox(key=key).random_raw(count)
    odd = ((words >> np.uint64(40)).astype(np.int64) << 1) + 1 - (1 << 24)
    return (odd.astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def _tensors(shape: LlamaShape) -> dict[str, tuple[tuple[int, ...], str]]:
    """Tensor name of a Hugging Face llama checkpoint -> (extents, field of `WeightScales`)."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, inner = shape.hidden, shape.intermediate
    tensors: dict[str, tuple[tuple[int, ...], str]] = {
        "model.embed_tokens.weight": ((shape.vocab, hidden), "embedding"),
        "model.norm.weight": ((hidden,), "norm"),
        "lm_head.weight": ((shape.vocab, hidden), "head"),
    }
    for index in range(shape.layers):
        layer = f"model.layers.{index}."
        tensors |= {
            layer + "input_layernorm.weight": ((hidden,), "norm"),
            layer + "self_attn.q_proj.weight": ((q, hidden), "query_key"),
            layer + "self_attn.k_proj.weight": ((kv, hidden), "query_key"),
            layer + "self_attn.v_proj.weight": ((kv, hidden), "value"),
            layer + "self_attn.o_proj.weight": ((hidden, q), "attention_out"),
            layer + "post_attention_layernorm.weight": ((hidden,), "norm"),
            layer + "mlp.gate_proj.weight": ((inner, hidden), "mlp_in"),
            layer + "mlp.up_proj.weight": ((inner, hidden), "mlp_in"),
            layer + "mlp.down_proj.weight": ((hidden, inner), "mlp_out"),
        }
    return tensors


def llama_weights(shape: LlamaShape, seed: int, scales: WeightScales) -> dict[str, Array]:
    """All tensors of an untied llama, float32, by their Hugging Face names."""
    import numpy as np

    weights: dict[str, Array] = {}
    for name, (extents, kind) in _tensors(shape).items():
        drawn = np.float32(getattr(scales, kind)) * uniform(seed, name, extents)
        weights[name] = np.float32(1.0) + drawn if kind == "norm" else drawn
    return weights


def drawing(
    layout: Mapping[str, tuple[int, ...]], rows: Sequence[Drawn]
) -> dict[str, tuple[tuple[int, ...], float, float]]:
    """Tensor name -> extents, centre and scale, of the first row that fits.

    Errors: KeyError for a tensor that no row fits.
    """
    found = {}
    for name, extents in layout.items():
        row = next((row for row in rows if re.search(row.pattern, name)), None)
        if row is None:
            raise KeyError(f"nothing says how {name} is drawn")
        found[name] = (extents, row.centre, row.scale)
    return found


def drawn_weights(
    layout: Mapping[str, tuple[int, ...]], seed: int, rows: Sequence[Drawn]
) -> dict[str, Array]:
    """A float32 tensor for each name of ``layout``: ``centre + scale * u``, as `drawing` has it."""
    import numpy as np

    return {
        name: np.float32(centre) + np.float32(scale) * uniform(seed, name, extents)
        for name, (extents, centre, scale) in drawing(layout, rows).items()
    }


def perturbed(
    weights: Mapping[str, Array],
    shape: LlamaShape,
    seed: int,
    scales: WeightScales,
    relative: float,
) -> dict[str, Array]:
    """``weights`` plus fresh noise of ``relative`` times each kind's scale; float32.

    Errors: KeyError when ``weights`` lacks a tensor that ``shape`` has.
    """
    import numpy as np

    noisy: dict[str, Array] = {}
    for name, (extents, kind) in _tensors(shape).items():
        amplitude = np.float32(relative) * np.float32(getattr(scales, kind))
        noisy[name] = weights[name] + amplitude * uniform(seed, name, extents)
    return noisy


def rounded(tensor: Array, grain: float) -> Array:
    """``tensor`` in multiples of ``grain``, a power of two: nothing else is rounded."""
    import numpy as np

    return np.rint(tensor / np.float32(grain)) * np.float32(grain)
