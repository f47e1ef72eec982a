"""V2 kernels that nothing is held against yet, each with the reason. docs/kernels.md shows them."""

from __future__ import annotations

_V1_ONLY = "what replaces it for V1 is checked; as V2 launches it, it has no reference"
_WARM_UP = "launched by the GPU worker's warm-up alone, and for layers that no CPU has"
_NOT_YET = "not written"

NO_REFERENCE: dict[str, str] = {
    "triton:_topk_topp_kernel": "cannot be interpreted (Triton 3.9), and its own is not written",
    **dict.fromkeys(
        (
            "triton:_dequant_gather_kernel",
            "triton:_zero_kv_blocks_kernel",
            "triton:postprocess_mamba_fused_kernel",
            "triton:precopy_mamba_align_fused_kernel",
        ),
        _V1_ONLY,
    ),
    **dict.fromkeys(
        (
            "triton:_fused_post_conv_kernel",
            "triton:_per_token_quant_int8",
            "triton:fused_sigmoid_gating_delta_rule_update_kernel",
        ),
        _WARM_UP,
    ),
    **dict.fromkeys(
        (
            "triton:_apply_grammar_bitmask_kernel",
            "triton:_apply_prompt_embeds_kernel",
            "triton:_apply_write_kernel",
            "triton:_build_shard_plan_kernel",
            "triton:_compact_sampling_mask_kernel",
            "triton:_compute_cumulative_log_p_kernel",
            "triton:_compute_local_logits_stats_kernel",
            "triton:_compute_local_residual_mass_kernel",
            "triton:_dcp_local_seq_lens_kernel",
            "triton:_fill_logprob_token_ids_kernel",
            "triton:_fill_num_accepted_kernel",
            "triton:_flatten_sampled_kernel",
            "triton:_gather_draft_sampled_kernel",
            "triton:_insert_resampled_kernel",
            "triton:_ngram_finalize_kernel",
            "triton:_ngram_scan_kernel",
            "triton:_num_nans_kernel",
            "triton:_pack_logprobs_kernel",
            "triton:_pack_sampler_output_kernel",
            "triton:_pad_trailing_draft_slots_kernel",
            "triton:_postprocess_recoverssm_align_kernel",
            "triton:_prepare_dflash_inputs_kernel",
            "triton:_prepare_input_buffers_kernel",
            "triton:_prepare_input_hidden_states_and_embeddings_kernel",
            "triton:_prepare_rope_positions_kernel",
            "triton:_prompt_logprobs_token_ids_kernel",
            "triton:_rejection_kernel",
            "triton:_resample_kernel",
            "triton:_scatter_num_accepted_kernel",
            "triton:_thinking_budget_kernel",
            "triton:_trace_replay_kernel",
            "triton:_unpack_gathered_output_kernel",
            "triton:_unpack_logprobs_kernel",
            "triton:_update_committed_marker_cache_kernel",
        ),
        _NOT_YET,
    ),
}
