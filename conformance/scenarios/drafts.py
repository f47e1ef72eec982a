"""Draft heads: tiny checkpoints in the formats that vLLM's speculative methods load.

Trained heads guess well; these are put together from their target's own weights, so that they
guess well sometimes. Each has a part in common with the target and a part that is drawn from its
seed, so that of its drafts some are accepted and some are not.

The formats are those of the models named, in ``vllm/model_executor/models`` (0.32.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from conformance.scenarios.derived import Derived
from conformance.scenarios.recipes import RECIPES
from conformance.scenarios.weights import uniform

if TYPE_CHECKING:
    from conformance.scenarios.derived import Array, Weights

__all__ = ["DRAFTS"]

_ATTENTION = ("q_proj", "k_proj", "v_proj")


def _size(embedding: Array) -> Any:
    """The root mean square of an embedding, to three decimals: sums differ in their last bits."""
    import numpy as np

    mean = float(np.mean(np.square(embedding, dtype=np.float64)))
    return np.float32(round(mean**0.5, 3))


def _noisy(name: str, weight: Array, item: Derived) -> Array:
    """A tensor plus noise of ``options["noise"]`` times its largest value."""
    import numpy as np

    amplitude = np.float32(item.options["noise"]) * np.abs(weight).max()
    return weight + amplitude * uniform(item.seed, name, weight.shape)


def _eagle(target: Weights, item: Derived) -> dict[str, Array]:
    """``llama_eagle``: the target's layers over the next token's embedding.

    The head has no norm before its first layer: the target's is folded into the weights that
    follow, with the mean size of an embedding for its own. What it gets of the target's hidden
    state is noise to it. Its last norm is missing, and it shares the target's ``lm_head``.
    """
    import numpy as np

    hidden = int(item.config["hidden_size"])
    size = _size(target["model.embed_tokens.weight"])
    made = {}
    for name, weight in target.items():
        if not name.startswith("model.layers.") or name == "model.layers.0.input_layernorm.weight":
            continue
        if name.startswith("model.layers.0.") and name.split(".")[-2] in _ATTENTION:
            weight = weight * (target["model.layers.0.input_layernorm.weight"] / size)
        made[name.removeprefix("model.")] = _noisy(name, weight, item)
    passed = np.eye(hidden, dtype=np.float32)
    state = np.float32(item.options["state"]) * uniform(item.seed, "state", (hidden, hidden))
    made["fc.weight"] = np.concatenate([passed, state], axis=1)
    return made


def _eagle3(target: Weights, item: Derived) -> dict[str, Array]:
    """``llama_eagle3``: one layer over three of the target's hidden states and the embedding.

    The last of the three states passes as it is, so the head tends to the token that the target
    has just chosen, and is right where text repeats a token.
    """
    import numpy as np

    hidden = int(item.config["hidden_size"])
    made = {
        "norm.weight": target["model.norm.weight"],
        "lm_head.weight": _noisy("lm_head", target["lm_head.weight"], item),
        "midlayer.hidden_norm.weight": np.ones(hidden, np.float32),
    }
    for name, weight in target.items():
        prefix, _, rest = name.partition(".layers.0.")
        if prefix != "model" or not rest:
            continue
        if rest.split(".")[-2] in _ATTENTION:
            # The embedding's half, then the hidden state's.
            other = np.float32(item.options["state"]) * uniform(item.seed, name, weight.shape)
            weight = np.concatenate([weight, other], axis=1)
        if rest.split(".")[-2] in ("o_proj", "down_proj"):
            weight = weight * np.float32(item.options["step"])
        made[f"midlayer.{rest}"] = weight
    passed = np.eye(hidden, dtype=np.float32)
    drawn = [
        np.float32(item.options["state"]) * uniform(item.seed, f"fc{number}", passed.shape)
        for number in range(2)
    ]
    made["fc.weight"] = np.concatenate([*drawn, passed], axis=1)
    return made


def _medusa(target: Weights, item: Derived) -> dict[str, Array]:
    """``medusa``: heads that repeat the token that was just chosen, one further each."""
    import numpy as np

    hidden, made = int(item.config["hidden_size"]), {}
    for head in range(int(item.config["num_heads"])):
        block = np.float32(item.options["state"]) * uniform(
            item.seed, f"block{head}", (hidden, hidden)
        )
        made[f"blocks.{head}.layers.0.weight"] = block
        made[f"lm_heads.{head}.weight"] = _noisy(f"head{head}", target["lm_head.weight"], item)
    return made


def _perturbed(target: Weights, item: Derived) -> dict[str, Array]:
    """The target itself, with noise."""
    return {name: _noisy(name, weight, item) for name, weight in target.items()}


def _mimo(llama: Weights, item: Derived) -> dict[str, Array]:
    """``mimo`` and ``mimo_mtp``: a target that is a Qwen 2, and its own head in one checkpoint.

    The target is the llama with biases and a second layer that does less; the head is the first
    layer over the next token's embedding, and so misses what the second does.
    """
    import numpy as np

    hidden = int(item.config["hidden_size"])
    made = {}
    for name, weight in llama.items():
        if ".layers.1." in name and name.split(".")[-2] in ("o_proj", "down_proj"):
            weight = weight * np.float32(item.options["step"])
        made[name] = weight
        if name.split(".")[-2] in _ATTENTION:
            bias = np.float32(0.05) * uniform(item.seed, name, weight.shape[:1])
            made[name.replace(".weight", ".bias")] = bias
    first, head = "model.layers.0.", "model.mtp_layers.0."
    layer = {head + n.removeprefix(first): w for n, w in made.items() if n.startswith(first)}
    size = _size(llama["model.embed_tokens.weight"])
    state = np.float32(item.options["state"]) * uniform(item.seed, "state", (hidden, hidden))
    projection = np.concatenate([state, np.eye(hidden, dtype=np.float32)], axis=1)
    return {
        **made,
        **layer,
        head + "token_layernorm.weight": np.full(hidden, size, np.float32),
        head + "hidden_layernorm.weight": np.ones(hidden, np.float32),
        head + "input_proj.weight": projection,
        head + "final_layernorm.weight": llama["model.norm.weight"],
    }


def _dflash(target: Weights, item: Derived) -> dict[str, Array]:
    """``qwen3_dflash``: a layer over mask tokens, which looks at the target's hidden states.

    The mask token's embedding is far along one token's row of ``lm_head``, so that this token is
    guessed always, and is right where the target is fond of it.
    """
    import numpy as np

    hidden, width = int(item.config["hidden_size"]), int(item.config["head_dim"])
    states = len(item.config["dflash_config"]["target_layer_ids"])
    made = {
        name.removeprefix("model."): _noisy(name, weight, item)
        for name, weight in target.items()
        if name.startswith("model.layers.0.") or name == "model.norm.weight"
    }
    for name in ("q_norm", "k_norm"):
        made[f"layers.0.self_attn.{name}.weight"] = np.ones(width, np.float32)
    made["hidden_norm.weight"] = np.ones(hidden, np.float32)
    embedding = target["model.embed_tokens.weight"].copy()
    row = target["lm_head.weight"][item.options["guess"]]
    embedding[item.config["dflash_config"]["mask_token_id"]] = np.float32(8) * row
    made["embed_tokens.weight"] = embedding
    made["fc.weight"] = np.float32(0.1) * uniform(item.seed, "fc", (hidden, states * hidden))
    return made


def _gemma4_layer(
    item: Derived, prefix: str, hidden: int, inner: int, keys: bool
) -> dict[str, Array]:
    """A layer of Gemma 4, drawn; with or without keys and values of its own."""
    import numpy as np

    text = item.config.get("text_config", item.config)
    width = int(text["head_dim"])
    q, kv = int(text["num_attention_heads"]) * width, int(text["num_key_value_heads"]) * width
    step = float(item.options["step"])
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "self_attn.q_proj.weight": ((q, hidden), 0.15),
        "self_attn.o_proj.weight": ((hidden, q), 0.4),
        "mlp.gate_proj.weight": ((inner, hidden), 0.2),
        "mlp.up_proj.weight": ((inner, hidden), 0.2),
        "mlp.down_proj.weight": ((hidden, inner), 0.3),
    }
    if keys:
        shapes["self_attn.k_proj.weight"] = ((kv, hidden), 0.15)
        shapes["self_attn.v_proj.weight"] = ((kv, hidden), 0.25)
    made = {
        prefix + name: np.float32(scale) * uniform(item.seed, prefix + name, shape)
        for name, (shape, scale) in shapes.items()
    }
    norms: dict[str, tuple[int, float]] = {
        "self_attn.q_norm.weight": (width, 1.0),
        "input_layernorm.weight": (hidden, 1.0),
        "pre_feedforward_layernorm.weight": (hidden, 1.0),
        # What the layer adds to its input is normed, too: this is how much it adds.
        "post_attention_layernorm.weight": (hidden, step),
        "post_feedforward_layernorm.weight": (hidden, step),
    }
    if keys:
        norms["self_attn.k_norm.weight"] = (width, 1.0)
    for name, (extent, size) in norms.items():
        drawn = np.float32(0.2) * uniform(item.seed, prefix + name, (extent,))
        made[prefix + name] = np.float32(size) * (np.float32(1) + drawn)
    made[f"{prefix}layer_scalar"] = np.ones(1, np.float32)
    return made


def _gemma4(_: Weights, item: Derived) -> dict[str, Array]:
    """A Gemma 4 of text alone: layers with a window and without. It takes nothing of its base."""
    import numpy as np

    hidden, inner = int(item.config["hidden_size"]), int(item.config["intermediate_size"])
    vocab = int(item.config["vocab_size"])
    made = {
        "model.embed_tokens.weight": np.float32(0.1) * uniform(item.seed, "e", (vocab, hidden)),
        "model.norm.weight": np.float32(1) + np.float32(0.2) * uniform(item.seed, "n", (hidden,)),
    }
    for index in range(int(item.config["num_hidden_layers"])):
        made |= _gemma4_layer(item, f"model.layers.{index}.", hidden, inner, keys=True)
    return made


def _gemma4_assistant(_: Weights, item: Derived) -> dict[str, Array]:
    """``gemma4_mtp``: layers that read the target's keys and values, and guess among some tokens.

    Its embedding is the target's, seen through a drawn projection, and so is the state that it
    gets: what is likely to the target is likely to it. Half of the tokens are looked at, those of
    the centroids that are nearest; which token belongs to which is drawn.
    """
    import numpy as np

    target = _gemma4({}, _GEMMA4)
    wide, hidden = int(item.config["backbone_hidden_size"]), 64
    text = item.config["text_config"]
    seen = uniform(item.seed, "projection", (hidden, wide)) * np.float32((3 / wide) ** 0.5)
    embedding = np.stack([seen[:, k] for k in range(wide)])
    rows = target["model.embed_tokens.weight"]
    projected = np.zeros((rows.shape[0], hidden), np.float32)
    for k in range(wide):
        projected += np.outer(rows[:, k], embedding[k])
    state = np.float32(item.options["state"]) * seen
    count, vocab = int(item.config["num_centroids"]), rows.shape[0]
    made = {
        "model.embed_tokens.weight": projected,
        "model.norm.weight": np.ones(hidden, np.float32),
        "pre_projection.weight": np.concatenate([seen, state], axis=1),
        "post_projection.weight": np.ascontiguousarray(seen.T),
        "masked_embedding.centroids.weight": uniform(item.seed, "centroids", (count, hidden)),
        "masked_embedding.token_ordering": np.argsort(
            uniform(item.seed, "ordering", (vocab,)), kind="stable"
        ),
    }
    for index in range(int(text["num_hidden_layers"])):
        made |= _gemma4_layer(item, f"model.layers.{index}.", hidden, 128, keys=False)
    return made


_GEMMA4_TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 2,
    "head_dim": 32,
    # The same for both kinds of layers: vLLM takes a Triton backend where they differ.
    "global_head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
    },
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}
_GEMMA4 = Derived(
    name="tiny-gemma4",
    base="tiny-llama",
    make=_gemma4,
    config={**_GEMMA4_TEXT, "architectures": ["Gemma4ForCausalLM"]},
    seed=17,
    options={"step": 1.0},
    complete=True,
    why="A target whose drafts come from an assistant that reads its KV cache.",
)


def _config(base: str, **changed: Any) -> dict[str, Any]:
    return {**RECIPES[base].config, **changed}


_ALL = (
    Derived(
        name="tiny-llama-eagle",
        base="tiny-llama",
        make=_eagle,
        config=_config("tiny-llama"),
        seed=11,
        options={"noise": 0.06, "state": 0.002},
        why="An EAGLE head for tiny-llama.",
    ),
    Derived(
        name="tiny-llama-8-eagle3",
        base="tiny-llama-8",
        make=_eagle3,
        config=_config(
            "tiny-llama-8",
            architectures=["LlamaForCausalLMEagle3"],
            num_hidden_layers=1,
            draft_vocab_size=512,
        ),
        seed=12,
        options={"noise": 0.05, "state": 0.01, "step": 0.3},
        why="An EAGLE-3 head for a target of eight layers, of which it taps three.",
    ),
    Derived(
        name="tiny-llama-medusa",
        base="tiny-llama",
        make=_medusa,
        config={
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": 128,
            "vocab_size": 512,
            "num_heads": 3,
            "num_hidden_layers": 1,
            "max_position_embeddings": 1024,
            "dtype": "float32",
        },
        seed=13,
        options={"noise": 0.05, "state": 0.01},
        why="Medusa heads for tiny-llama.",
    ),
    Derived(
        name="tiny-mimo",
        base="tiny-llama",
        make=_mimo,
        config=_config(
            "tiny-llama",
            architectures=["MiMoForCausalLM"],
            # Its layers are a Qwen 2's, and so transformers takes it for one.
            model_type="qwen2",
            num_nextn_predict_layers=1,
            use_sliding_window=False,
        ),
        seed=14,
        options={"state": 0.02, "step": 0.3},
        complete=True,
        why="A target that brings its own head for the token after the next (MTP).",
    ),
    Derived(
        name="tiny-llama-dflash",
        base="tiny-llama",
        make=_dflash,
        config=_config(
            "tiny-llama",
            architectures=["DFlashDraftModel"],
            model_type="qwen3",
            num_hidden_layers=1,
            dflash_config={"mask_token_id": 511, "target_layer_ids": [0, 1]},
        ),
        seed=15,
        options={"noise": 0.05, "guess": 389},
        why="A DFlash head for tiny-llama, which guesses all tokens at once.",
    ),
    Derived(
        name="tiny-llama-pard",
        base="tiny-llama",
        make=_perturbed,
        config=_config("tiny-llama", pard_token=511),
        seed=16,
        options={"noise": 0.05},
        complete=True,
        why="A draft model that guesses all tokens at once, from mask tokens.",
    ),
    _GEMMA4,
    Derived(
        name="tiny-gemma4-assistant",
        base="tiny-llama",
        make=_gemma4_assistant,
        config={
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
            "text_config": {
                **_GEMMA4_TEXT,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_kv_shared_layers": 2,
            },
            "backbone_hidden_size": 128,
            "use_ordered_embeddings": True,
            "num_centroids": 16,
            "centroid_intermediate_top_k": 8,
            "tie_word_embeddings": True,
            "dtype": "float32",
        },
        seed=18,
        options={"step": 0.1, "state": 0.3},
        why="The assistant of tiny-gemma4.",
    ),
)

DRAFTS: Mapping[str, Derived] = MappingProxyType({item.name: item for item in _ALL})
"""Every draft head by its name."""
