"""Kernels that the GPU worker launches while it warms up, or for a layer that no CPU has.

What a CPU worker launches instead of them are other operators, of other layouts; a worker that
replaces the warm-up launches none of them. They have inputs and references all the same, so that a
counterpart is held against them on the day that there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.kernels.example import BFLOAT16, Example, Value
from conformance.kernels.generators.generator import Draw, Generator, boundaries


def _normal(draw: Draw, *shape: int, scale: float = 1.0) -> np.ndarray:
    values = draw.rng.normal(size=shape) * scale
    values[draw.rng.random(shape) < 0.1] = 0.0
    return values


def _post_conv(draw: Draw) -> Example:
    memory = draw.memory
    tokens = draw.among(1, 2, 15, 16, 17, 33)
    heads = draw.integer(1, 2)
    value_heads = heads * draw.integer(1, 2)
    key, value = draw.among(3, 8, 16), draw.among(4, 5, 16)
    width = 2 * heads * key + value_heads * value
    dtype = draw.among("float32", "float16")
    # Around the threshold from which softplus is taken for its argument, and far from it.
    a = _normal(draw, tokens, value_heads, scale=draw.among(1.0, 30.0))
    rows: tuple[tuple[str, tuple[int, ...], str], ...] = (
        ("q_ptr", (tokens, heads * key), dtype),
        ("k_ptr", (tokens, heads * key), dtype),
        ("v_ptr", (tokens, value_heads * value), dtype),
        ("g_ptr", (tokens, value_heads), "float32"),
        ("beta_ptr", (tokens, value_heads), "float32"),
    )
    outputs: dict[str, Value] = {
        name: memory.output(name, shape, kind) for name, shape, kind in rows
    }
    return memory.example(
        {
            "mixed_qkv_ptr": memory.tensor("mixed_qkv_ptr", _normal(draw, tokens, width), dtype),
            "a_ptr": memory.tensor("a_ptr", a, dtype),
            "b_ptr": memory.tensor("b_ptr", _normal(draw, tokens, value_heads, scale=4.0), dtype),
            "A_log_ptr": memory.tensor("A_log_ptr", _normal(draw, value_heads), "float32"),
            "dt_bias_ptr": memory.tensor("dt_bias_ptr", _normal(draw, value_heads), "float32"),
            **outputs,
            "stride_x_tok": width,
            "stride_a_tok": value_heads,
            "stride_b_tok": value_heads,
            "stride_q_tok": heads * key,
            "stride_k_tok": heads * key,
            "stride_v_tok": value_heads * value,
            "L": tokens,
            "H": heads,
            "HV": value_heads,
            "K": key,
            "V": value,
            "APPLY_L2NORM": draw.flag(),
            "L2NORM_EPS": 1e-6,
            "OUTPUT_G_EXP": draw.flag(),
            "SOFTPLUS_THRESHOLD": 20.0,
            "BLOCK_T": 16,
            "BK": 1 << (key - 1).bit_length(),
            "BV": 1 << (value - 1).bit_length(),
        },
        (-(-tokens // 16), heads + value_heads),
    )


def _post_convolved(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.third_party.flash_linear_attention.ops.fused_gdn_prefill_post_conv import (
        fused_post_conv_prep,
    )

    results = fused_post_conv_prep(
        a["mixed_qkv_ptr"],
        a["a_ptr"],
        a["b_ptr"],
        a["A_log_ptr"],
        a["dt_bias_ptr"],
        a["H"],
        a["K"],
        a["V"],
        apply_l2norm=a["APPLY_L2NORM"],
        output_g_exp=a["OUTPUT_G_EXP"],
    )
    for name, result in zip(("q", "k", "v", "g", "beta"), results, strict=True):
        target = a[f"{name}_ptr"]
        target.copy_(result.reshape(target.shape))


def _gated_update(draw: Draw) -> Example:
    memory = draw.memory
    heads = draw.integer(1, 2)
    value_heads = heads * draw.integer(1, 2)
    # What the operator that a CPU has in its place takes: 16-bit values, whole vectors of them.
    key, value, dtype = draw.among(16, 32), draw.among(16, 32), BFLOAT16
    speculative = draw.flag()
    lengths = [draw.among(1, 1, 2, 3) if speculative else 1 for _ in range(draw.integer(1, 3))]
    start = boundaries(lengths)
    tokens = int(start[-1])
    slots = max(lengths)
    blocks = len(lengths) * slots + 1
    # Block 0 is nobody's.
    indices = (1 + draw.rng.permutation(blocks - 1)).reshape(len(lengths), slots)
    accepted = [draw.integer(1, length) for length in lengths]
    width = value_heads * value
    state = memory.tensor(
        "h0", _normal(draw, blocks, value_heads * value * key, scale=0.5), "float32"
    )
    tensors: dict[str, Value] = {
        "A_log": memory.tensor("A_log", _normal(draw, value_heads), "float32"),
        "a": memory.tensor("a", _normal(draw, tokens, value_heads), dtype),
        "b": memory.tensor("b", _normal(draw, tokens, value_heads), dtype),
        "dt_bias": memory.tensor("dt_bias", _normal(draw, value_heads), dtype),
        "q": memory.tensor("q", _normal(draw, tokens, heads * key), dtype),
        "k": memory.tensor("k", _normal(draw, tokens, heads * key), dtype),
        "v": memory.tensor("v", _normal(draw, tokens, width), dtype),
        "o": memory.output("o", (tokens, width), dtype),
    }
    block = min(1 << (value - 1).bit_length(), 32)
    return memory.example(
        {
            **tensors,
            "beta": 1.0,
            "threshold": 20.0,
            "h0": state,
            "ht": state,
            "cu_seqlens": memory.tensor("cu_seqlens", start, "int32"),
            "ssm_state_indices": memory.tensor("ssm_state_indices", indices, "int32"),
            "num_accepted_tokens": memory.tensor("num_accepted_tokens", accepted, "int32")
            if speculative
            else None,
            "scale": key**-0.5,
            "N": len(lengths),
            "T": tokens,
            "B": 1,
            "H": heads,
            "HV": value_heads,
            "K": key,
            "V": value,
            "BK": 1 << (key - 1).bit_length(),
            "BV": block,
            "stride_init_state_token": value_heads * value * key,
            "stride_final_state_token": value_heads * value * key,
            "stride_indices_seq": slots,
            "stride_indices_tok": 1,
            "INPLACE_FINAL_STATE": True,
            "USE_QK_L2NORM_IN_KERNEL": True,
            "IS_KDA": False,
        },
        (1, -(-value // block), len(lengths) * value_heads),
    )


def _gated_operator(a: dict[str, Any], extra: dict[str, Any]) -> None:
    """Update by the operators of vLLM's CPU layer, which have the states' two axes exchanged."""
    from vllm import _custom_ops as operators

    tokens, heads, value_heads, key, value = a["T"], a["H"], a["HV"], a["K"], a["V"]
    states = a["h0"].view(-1, value_heads, value, key)
    exchanged = states.transpose(-1, -2).contiguous()
    given = {
        "A_log": a["A_log"],
        "dt_bias": a["dt_bias"],
        "q": a["q"].view(1, tokens, heads, key),
        "k": a["k"].view(1, tokens, heads, key),
        "v": a["v"].view(1, tokens, value_heads, value),
        "a": a["a"],
        "b": a["b"],
        "initial_state_source": exchanged,
        "cu_seqlens": a["cu_seqlens"],
        "use_qk_l2norm_in_kernel": a["USE_QK_L2NORM_IN_KERNEL"],
    }
    if a["num_accepted_tokens"] is None:
        output = operators.fused_sigmoid_gating_delta_rule_update_cpu(
            **given, initial_state_indices=a["ssm_state_indices"][:, 0].contiguous()
        )
    else:
        output = operators.fused_sigmoid_gating_delta_rule_update_spec_cpu(
            **{**given, **{name: given[name].squeeze(0) for name in ("q", "k", "v")}},
            spec_state_indices=a["ssm_state_indices"],
            num_accepted_tokens=a["num_accepted_tokens"],
        )
    a["o"].copy_(output.reshape(a["o"].shape))
    states.copy_(exchanged.transpose(-1, -2))


def _gated_updated(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
        fused_sigmoid_gating_delta_rule_update,
    )

    tokens, heads, value_heads = a["T"], a["H"], a["HV"]
    output, _ = fused_sigmoid_gating_delta_rule_update(
        A_log=a["A_log"],
        a=a["a"].view(1, tokens, value_heads),
        b=a["b"].view(1, tokens, value_heads),
        dt_bias=a["dt_bias"],
        q=a["q"].view(1, tokens, heads, a["K"]),
        k=a["k"].view(1, tokens, heads, a["K"]),
        v=a["v"].view(1, tokens, value_heads, a["V"]),
        initial_state=a["h0"],
        cu_seqlens=a["cu_seqlens"],
        ssm_state_indices=a["ssm_state_indices"],
        num_accepted_tokens=a["num_accepted_tokens"],
        use_qk_l2norm_in_kernel=a["USE_QK_L2NORM_IN_KERNEL"],
    )
    a["o"].copy_(output.reshape(a["o"].shape))


def _int8(draw: Draw) -> Example:
    memory = draw.memory
    rows, columns = draw.integer(0, 4), draw.among(1, 2, 7, 16, 33)
    values = _normal(draw, rows, columns, scale=draw.among(1e-6, 1.0, 1e4))
    if draw.flag() and rows:
        # Halves, at which rounding goes away from zero, and a row without anything.
        values[0] = draw.rng.integers(-127, 127, columns) + 0.5
        values[0, 0] = 127.0
        values[-1] *= draw.among(0.0, 1.0)
    gap = draw.integer(0, 2)
    return memory.example(
        {
            "x_ptr": memory.tensor("x_ptr", values, "float32", gap=gap),
            "xq_ptr": memory.output("xq_ptr", (rows, columns), "int8"),
            "scale_ptr": memory.output("scale_ptr", (rows, 1), "float32"),
            "stride_x": columns + gap,
            "stride_xq": columns,
            "N": columns,
            "BLOCK": 1 << (columns - 1).bit_length(),
        },
        (rows,),
    )


def _quantized(a: dict[str, Any]) -> None:
    """What a GPU leaves, row by row: its rounding, a function of CUDA's, is not interpreted."""
    values = a["x_ptr"].numpy().astype(np.float64)
    for row, line in enumerate(values):
        largest = np.float32(max(np.abs(line).max(), 1e-10))
        factor = np.float32(127) / largest
        scaled = (line.astype(np.float32) * factor).astype(np.float64)
        away = np.trunc(np.abs(scaled) + 0.5) * np.sign(scaled)
        a["xq_ptr"].numpy()[row] = away.astype(np.int8)
        a["scale_ptr"].numpy()[row] = largest / np.float32(127)


def _quantize(a: dict[str, Any], extra: dict[str, Any]) -> None:
    from vllm.model_executor.layers.quantization.utils.int8_utils import per_token_quant_int8

    values, scales = per_token_quant_int8(a["x_ptr"])
    a["xq_ptr"].copy_(values)
    a["scale_ptr"].copy_(scales)


_OPS = "vllm.third_party.flash_linear_attention.ops"
GENERATORS = (
    Generator(
        kernel="triton:_fused_post_conv_kernel",
        home=f"{_OPS}.fused_gdn_prefill_post_conv:_fused_post_conv_kernel",
        build=_post_conv,
        through="fused_post_conv_prep",
        call=_post_convolved,
        tolerance=2e-3,
        left_out=(
            "bfloat16, to which the interpreter does not round",
            "no token: nothing is launched",
        ),
    ),
    Generator(
        kernel="triton:fused_sigmoid_gating_delta_rule_update_kernel",
        home=f"{_OPS}.fused_sigmoid_gating:fused_sigmoid_gating_delta_rule_update_kernel",
        build=_gated_update,
        through="fused_sigmoid_gating_delta_rule_update",
        call=_gated_updated,
        operator=_gated_operator,
        rounded=("o",),
        # The operator multiplies in bfloat16, whose values are 2**-8 apart.
        tolerance=0.03,
        left_out=(
            "dtypes other than bfloat16, which the CPU's operators refuse",
            "block 0 and requests without a token, which pad what a GPU has captured",
            "gates for each key dimension (KDA), and states that are not updated in place",
        ),
    ),
    Generator(
        kernel="triton:_per_token_quant_int8",
        home="vllm.model_executor.layers.quantization.utils.int8_utils:_per_token_quant_int8",
        build=_int8,
        through="per_token_quant_int8",
        call=_quantize,
        model=_quantized,
        left_out=("NaN and infinite values",),
    ),
)
