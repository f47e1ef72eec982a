"""Families of models as recipes' material: a configuration, and how widely each tensor is drawn.

A family is a row of `FAMILIES`: what its ``config.json`` has other than `PLAIN`, and which of its
tensors are drawn other than `USUAL` says. The tensors' names and shapes are those that transformers
writes for the configuration (`conformance.scenarios.layouts`, ``fixtures/layouts.json``).
Sizes are such that what the family is about decides tokens: windows are shorter than prompts, soft
caps are near the values that they cap, bases of rotary embeddings are not the usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from conformance.scenarios.weights import Drawn

__all__ = ["FAMILIES", "PLAIN", "USUAL", "Family"]

PLAIN: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "rms_norm_eps": 1e-05,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}

USUAL = (
    Drawn(r"(norm|ln|layer_norm|layernorm)\w*(\.\d)?\.weight$", 0.25, centre=1.0),
    Drawn(r"\.(dt_bias|dt_proj\.bias)$", 1.0, centre=-2.0),
    Drawn(r"bias$", 0.1),
    Drawn(r"\.A_log$", 1.0, centre=0.5),
    Drawn(r"\.D$", 0.5, centre=1.0),
    Drawn(r"conv\w*\.weight$", 0.5),
    Drawn(r"(embed_tokens|wte|word_embeddings|embeddings)\.weight$", 0.5),
    Drawn(r"(wpe|embed_positions|position_embeddings|token_type_embeddings)\.weight$", 0.3),
    Drawn(r"(lm_head|embed_out)\.weight$", 0.6),
    Drawn(r"\.(q_proj|k_proj|q_[ab]_proj\w*|query|key)\.weight$", 0.15),
    Drawn(r"\.(v_proj|kv_[ab]_proj\w*|value)\.weight$", 0.25),
    Drawn(r"\.(c_attn|qkv_proj|query_key_value|Wqkv)\.weight$", 0.2),
    Drawn(r"(attn|attention)\.(o_proj|out_proj|c_proj|dense)\.weight$", 0.4),
    Drawn(r"\.(gate|router|router\.layer|shared_expert_gate)\.weight$", 0.3),
    Drawn(r"\.((gate|up|gate_up)_proj|fc1|fc_in|w1|w3)(\.weight)?$", 0.2),
    Drawn(r"\.(c_fc|dense_h_to_4h|input_linear)\.weight$", 0.2),
    Drawn(r"\.(down_proj|fc2|fc_out|w2)(\.weight)?$", 0.3),
    Drawn(r"\.(c_proj|dense_4h_to_h|output_linear|out_proj|o_proj)\.weight$", 0.3),
    Drawn(r"\.(in_proj|x_proj|dt_proj|in_proj_\w+)\.weight$", 0.2),
)
"""The first row whose pattern is found in a tensor's name says how it is drawn."""

_ZERO_CENTRED = (Drawn(r"norm\.weight$", 0.25),)
"""Norms whose weight is added to one."""

_GEMMA = (
    Drawn(r"post_\w+_layernorm\.weight$", 0.5, centre=1.0),
    *_ZERO_CENTRED,
    Drawn(r"embed_tokens\.weight$", 0.1),
)
_WITH_TIED_EMBEDDINGS = (
    Drawn(r"(dense|dense_4h_to_h|[co]_proj|out_proj|down_proj|fc2)\.weight$", 0.9),
)
"""Where the embedding is the output matrix too, layers that add little repeat the last token."""


@dataclass(frozen=True)
class Family:
    """A configuration over `PLAIN` (None takes a key out), and rows before those of `USUAL`."""

    name: str
    config: Mapping[str, Any]
    why: str
    drawn: tuple[Drawn, ...] = ()
    seed: int = 7

    @property
    def rows(self) -> tuple[Drawn, ...]:
        """How its tensors are drawn: the first row that fits says it."""
        return (*self.drawn, *USUAL)

    @property
    def configuration(self) -> dict[str, Any]:
        """The whole ``config.json``."""
        merged = {**PLAIN, **self.config}
        return {key: value for key, value in merged.items() if value is not None}


def _family(name: str, kind: str, architecture: str, why: str, **config: Any) -> Family:
    drawn = config.pop("drawn", ())
    seed = config.pop("seed", 7)
    return Family(
        name=f"tiny-{name}",
        config={"model_type": kind, "architectures": [architecture], **config},
        why=why,
        drawn=drawn,
        seed=seed,
    )


def _llama(name: str, why: str, **config: Any) -> Family:
    return _family(name, "llama", "LlamaForCausalLM", why, **config)


def _rotary(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 20000.0, **more}}


def _dense() -> tuple[Family, ...]:
    return (
        _family("qwen2", "qwen2", "Qwen2ForCausalLM", "Queries, keys and values have biases."),
        _family("qwen3", "qwen3", "Qwen3ForCausalLM", "Queries and keys are normed by head."),
        _family(
            "mistral",
            "mistral",
            "MistralForCausalLM",
            "Every layer looks back 24 tokens.",
            sliding_window=24,
        ),
        _family(
            "gemma2",
            "gemma2",
            "Gemma2ForCausalLM",
            "Scores and logits are capped; every other layer looks back 24 tokens; embeddings are "
            "scaled and tied, and scores are scaled by another number than the head's size.",
            drawn=_GEMMA,
            hidden_act=None,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=20,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"],
            tie_word_embeddings=True,
        ),
        _family(
            "gemma3",
            "gemma3_text",
            "Gemma3ForCausalLM",
            "Layers with a window have a rotary base of their own; queries and keys are normed.",
            drawn=_GEMMA,
            hidden_act=None,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=20,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0},
            },
            tie_word_embeddings=True,
        ),
        _family(
            "olmo2",
            "olmo2",
            "Olmo2ForCausalLM",
            "Norms come after attention and after the MLP, and over all heads at once.",
        ),
        _family(
            "granite",
            "granite",
            "GraniteForCausalLM",
            "Embeddings, scores, residuals and logits have multipliers.",
            embedding_multiplier=3.0,
            attention_multiplier=0.1,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
        _family(
            "cohere",
            "cohere",
            "CohereForCausalLM",
            "Attention and MLP side by side; rotary pairs are neighbours; logits are scaled.",
            layer_norm_eps=1e-05,
            rms_norm_eps=None,
            logit_scale=0.25,
            use_qk_norm=False,
            tie_word_embeddings=True,
        ),
        _family(
            "nemotron",
            "nemotron",
            "NemotronForCausalLM",
            "Squared rectifiers; norms whose weight is added to one; half of a head is rotated.",
            drawn=_ZERO_CENTRED,
            hidden_act="relu2",
            norm_eps=1e-05,
            rms_norm_eps=None,
            **_rotary("default", partial_rotary_factor=0.5),
        ),
        _family(
            "exaone4",
            "exaone4",
            "Exaone4ForCausalLM",
            "Layers with a window are rotated, those without are not.",
            sliding_window=24,
            sliding_window_pattern=2,
            layer_types=["sliding_attention", "full_attention"],
        ),
        _llama(
            "heads-64",
            "Heads of 64, all of which share one key and value.",
            head_dim=64,
            num_key_value_heads=1,
        ),
        _llama(
            "heads-80",
            "Heads of 80, each with its own key and value.",
            head_dim=80,
            num_key_value_heads=4,
        ),
        _llama("heads-96", "Heads of 96.", head_dim=96),
        _llama(
            "heads-128",
            "Heads of 128; the embedding is the output matrix too.",
            head_dim=128,
            tie_word_embeddings=True,
        ),
        _llama("heads-256", "Heads of 256.", head_dim=256),
        _llama(
            "large-logits",
            "Logits of some hundreds: a probability is 1 or nearly.",
            drawn=(Drawn(r"lm_head\.weight$", 12.0),),
        ),
    )


def _positions() -> tuple[Family, ...]:
    quarter = [round(1.0 + 0.15 * i, 2) for i in range(16)]
    return (
        _llama("linear", "Positions are divided by four.", **_rotary("linear", factor=4.0)),
        _llama(
            "dynamic",
            "The rotary base grows with the length beyond 128.",
            max_position_embeddings=128,
            **_rotary("dynamic", factor=2.0),
        ),
        _llama(
            "yarn",
            "Frequencies are interpolated by parts, and scores scaled.",
            **_rotary("yarn", factor=16.0, original_max_position_embeddings=64),
        ),
        _llama(
            "llama3",
            "Low frequencies are divided by eight, high ones are left.",
            **_rotary(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        _family(
            "phi3",
            "phi3",
            "Phi3ForCausalLM",
            "A factor for each frequency, others for contexts longer than 48 (longrope).",
            max_position_embeddings=256,
            original_max_position_embeddings=48,
            head_dim=None,
            seed=8,
            **_rotary(
                "longrope",
                short_factor=[1.0] * 8 + [1.5] * 8,
                long_factor=quarter,
                original_max_position_embeddings=48,
            ),
        ),
        _family(
            "phi",
            "phi",
            "PhiForCausalLM",
            "Half of a head is rotated; attention and MLP side by side, with biases everywhere.",
            hidden_act="gelu_new",
            layer_norm_eps=1e-05,
            rms_norm_eps=None,
            **_rotary("default", partial_rotary_factor=0.5),
        ),
        _family(
            "stablelm",
            "stablelm",
            "StableLmForCausalLM",
            "A quarter of a head is rotated.",
            layer_norm_eps=1e-05,
            rms_norm_eps=None,
            use_qkv_bias=True,
            use_parallel_residual=False,
            **_rotary("default", partial_rotary_factor=0.25),
        ),
        _family(
            "glm4",
            "glm4",
            "Glm4ForCausalLM",
            "Half of a head is rotated, and neighbours are pairs.",
            **_rotary("default", partial_rotary_factor=0.5),
        ),
        _family(
            "gptj",
            "gptj",
            "GPTJForCausalLM",
            "The first 16 of a head are rotated, neighbours as pairs.",
            n_embd=128,
            n_head=4,
            n_layer=2,
            n_positions=1024,
            n_inner=256,
            rotary_dim=16,
            activation_function="gelu_new",
            layer_norm_epsilon=1e-05,
        ),
        _family(
            "bloom",
            "bloom",
            "BloomForCausalLM",
            "Scores fall with the distance (ALiBi).",
            n_head=4,
            n_layer=2,
            layer_norm_epsilon=1e-05,
            apply_residual_connection_post_layernorm=False,
            tie_word_embeddings=True,
            drawn=_WITH_TIED_EMBEDDINGS,
        ),
        _family(
            "falcon-alibi",
            "falcon",
            "FalconForCausalLM",
            "ALiBi with six heads, no power of two; their biases are divided by the head's size.",
            alibi=True,
            hidden_size=192,
            num_attention_heads=6,
            num_key_value_heads=None,
            head_dim=None,
            ffn_hidden_size=768,
            multi_query=False,
            new_decoder_architecture=False,
            parallel_attn=False,
            bias=True,
            layer_norm_epsilon=1e-05,
            rope_parameters=None,
            tie_word_embeddings=True,
            drawn=_WITH_TIED_EMBEDDINGS,
        ),
        _family(
            "gpt2",
            "gpt2",
            "GPT2LMHeadModel",
            "Positions have learned embeddings.",
            n_embd=128,
            n_head=4,
            n_layer=2,
            n_positions=1024,
            n_inner=256,
            activation_function="gelu_new",
            layer_norm_epsilon=1e-05,
            tie_word_embeddings=True,
            drawn=_WITH_TIED_EMBEDDINGS,
        ),
        _family(
            "opt",
            "opt",
            "OPTForCausalLM",
            "Positions have learned embeddings, the first one at row 2; rectifiers.",
            ffn_dim=256,
            word_embed_proj_dim=128,
            do_layer_norm_before=True,
            activation_function="relu",
            dropout=0.0,
            tie_word_embeddings=True,
            drawn=_WITH_TIED_EMBEDDINGS,
        ),
    )


_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
_MLA: dict[str, Any] = {
    "head_dim": None,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}


def _experts() -> tuple[Family, ...]:
    return (
        _family(
            "mixtral",
            "mixtral",
            "MixtralForCausalLM",
            "Two of four experts, whose weights are normed.",
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            intermediate_size=64,
            router_jitter_noise=0.0,
        ),
        _family(
            "qwen2-moe",
            "qwen2_moe",
            "Qwen2MoeForCausalLM",
            "Two of eight experts, whose weights are left as they are; a shared one with a gate.",
            shared_expert_intermediate_size=96,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            **_EXPERTS,
        ),
        _family(
            "qwen3-moe",
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            "Two of eight experts in the second layer, whose weights are normed.",
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[0],
            **_EXPERTS,
        ),
        _family(
            "granitemoe",
            "granitemoe",
            "GraniteMoeForCausalLM",
            "Experts, multipliers and a tied embedding.",
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=64,
            embedding_multiplier=3.0,
            attention_multiplier=0.1,
            residual_multiplier=0.5,
            logits_scaling=2.0,
            tie_word_embeddings=True,
        ),
        _family(
            "gpt-oss",
            "gpt_oss",
            "GptOssForCausalLM",
            "Attention sinks, layers with a window, and experts with biases and a clamp.",
            drawn=(Drawn(r"\.sinks$", 1.0),),
            num_local_experts=4,
            num_experts_per_tok=2,
            intermediate_size=64,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"],
            attention_bias=True,
            swiglu_limit=7.0,
            **_rotary(
                "yarn",
                factor=16.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=64,
            ),
        ),
        _family(
            "deepseek-v2",
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            "Latent attention (MLA) with yarn; experts after a dense layer.",
            **_MLA,
            topk_method="greedy",
            norm_topk_prob=False,
            scoring_func="softmax",
            n_group=1,
            topk_group=1,
            **_rotary(
                "yarn",
                factor=16.0,
                mscale=0.7,
                mscale_all_dim=0.7,
                beta_fast=32,
                beta_slow=1,
                original_max_position_embeddings=64,
            ),
        ),
        _family(
            "deepseek-v3",
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            "Latent attention with a low-rank query; experts by groups, sigmoids and a bias.",
            **{**_MLA, "q_lora_rank": 64},
            topk_method="noaux_tc",
            norm_topk_prob=True,
            scoring_func="sigmoid",
            n_group=2,
            topk_group=1,
            rope_interleave=True,
        ),
    )


def _mixers() -> tuple[Family, ...]:
    return (
        _family(
            "mamba",
            "mamba",
            "MambaForCausalLM",
            "State spaces (Mamba 1).",
            intermediate_size=256,
            state_size=16,
            conv_kernel=4,
            expand=2,
            time_step_rank=8,
            use_bias=False,
            use_conv_bias=True,
            layer_norm_epsilon=1e-05,
            residual_in_fp32=False,
        ),
        _family(
            "mamba2",
            "mamba2",
            "Mamba2ForCausalLM",
            "State spaces by heads (Mamba 2).",
            head_dim=64,
            num_heads=4,
            expand=2,
            state_size=32,
            n_groups=1,
            conv_kernel=4,
            chunk_size=64,
            use_bias=False,
            use_conv_bias=True,
            layer_norm_epsilon=1e-05,
            residual_in_fp32=False,
            rms_norm=True,
            norm_before_gate=False,
        ),
        _family(
            "granite-hybrid",
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
            "A layer of Mamba 2, one of attention without positions.",
            layer_types=["mamba", "attention"],
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=128,
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_expand=2,
            mamba_d_state=32,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_chunk_size=64,
            position_embedding_type="nope",
            embedding_multiplier=3.0,
            attention_multiplier=0.1,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
        _family(
            "jamba",
            "jamba",
            "JambaForCausalLM",
            "A layer of Mamba 1, one of attention.",
            num_experts=1,
            num_experts_per_tok=1,
            attn_layer_offset=1,
            attn_layer_period=2,
            expert_layer_offset=1,
            expert_layer_period=2,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=8,
            use_mamba_kernels=False,
        ),
        _family(
            "falcon-h1",
            "falcon_h1",
            "FalconH1ForCausalLM",
            "Mamba 2 and attention side by side in each layer.",
            mamba_d_ssm=256,
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_expand=2,
            mamba_d_state=32,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_chunk_size=64,
            mamba_rms_norm=False,
        ),
        _family(
            "nemotron-h",
            "nemotron_h",
            "NemotronHForCausalLM",
            "A layer each of Mamba 2, MLP and attention.",
            num_hidden_layers=3,
            layers_block_type=["mamba", "mlp", "attention"],
            mamba_num_heads=8,
            mamba_head_dim=32,
            ssm_state_size=32,
            n_groups=1,
            conv_kernel=4,
            chunk_size=64,
            expand=2,
            mlp_hidden_act="relu2",
            layer_norm_epsilon=1e-05,
        ),
        _family(
            "qwen3-next",
            "qwen3_next",
            "Qwen3NextForCausalLM",
            "A layer of gated delta rules, one of attention with a gate; norms added to one.",
            drawn=(
                Drawn(r"linear_attn\.norm\.weight$", 0.25, centre=1.0),
                Drawn(r"norm\.weight$", 0.25),
                Drawn(r"\.dt_bias$", 1.0, centre=-1.0),
            ),
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_conv_kernel_dim=4,
            mlp_only_layers=[0],
            decoder_sparse_step=1,
            norm_topk_prob=True,
            shared_expert_intermediate_size=64,
            **_EXPERTS,
            **_rotary("default", partial_rotary_factor=0.25),
        ),
        _family(
            "lfm2",
            "lfm2",
            "Lfm2ForCausalLM",
            "A layer of short convolutions, one of attention.",
            layer_types=["conv", "full_attention"],
            conv_dim=128,
            conv_L_cache=3,
            conv_bias=False,
            block_auto_adjust_ff_dim=False,
            norm_eps=1e-05,
            rms_norm_eps=None,
        ),
    )


_ALL = (*_dense(), *_positions(), *_experts(), *_mixers())

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})
"""Every family by its name."""
