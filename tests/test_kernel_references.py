"""References of V2 kernels: all are spoken of, and a kernel that ignores an input is red."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conformance.kernels.outcomes import V2Outcomes
from conformance.kernels.rows import V2_KERNELS, launched, without_generator
from conformance.scenarios.host import Host
from conformance.surface.inventory import known_path, load
from conformance.surface.model import Inventory

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")
VERSIONS = ("0.30.0", "0.31.0", "0.32.0")

# A kernel, an argument, and a value that it is given in that argument's place.
IGNORED: tuple[tuple[str, str, Any], ...] = (
    ("_temperature_kernel", "temperature_ptr", 1.0),
    ("_temperature_kernel", "expanded_idx_mapping_ptr", 0),
    ("_min_p_kernel", "min_p_ptr", 0.3),
    ("_penalties_kernel", "repetition_penalty_ptr", 1.0),
    ("_penalties_kernel", "frequency_penalty_ptr", 0.0),
    ("_penalties_kernel", "presence_penalty_ptr", 0.0),
    ("_penalties_kernel", "prompt_bin_mask_ptr", 0),
    ("_penalties_kernel", "expanded_local_pos_ptr", 0),
    ("_bincount_kernel", "prompt_len_ptr", 1),
    ("_bias_kernel", "num_allowed_token_ids_ptr", 0),
    ("_bias_kernel", "bias_ptr", 0.0),
    ("_bias_kernel", "min_lens_ptr", 0),
    ("_bias_kernel", "restore_when_all_masked_ptr", 0),
    ("_bad_words_kernel", "num_bad_words_ptr", 1),
    ("_bad_words_kernel", "expanded_local_pos_ptr", 0),
    ("_ranks_kernel", "token_ids_ptr", 0),
    ("_topk_log_softmax_kernel", "topk_ids_ptr", 0),
    ("_gumbel_sample_kernel", "seeds_ptr", 0),
    ("_gumbel_sample_kernel", "pos_ptr", 0),
    ("_gumbel_sample_kernel", "temp_ptr", 1.0),
    ("_gumbel_sample_kernel", "IS_DRAFTING", False),
    ("_gumbel_sample_kernel", "APPLY_TEMPERATURE", False),
    ("_prepare_prefill_inputs_kernel", "num_computed_tokens_ptr", 0),
    ("_prepare_prefill_inputs_kernel", "prefill_lens_ptr", 40),
    ("_prepare_pos_seq_lens_kernel", "num_computed_tokens_ptr", 0),
    ("_prepare_pos_seq_lens_kernel", "idx_mapping_ptr", 0),
    ("_combine_sampled_and_draft_tokens_kernel", "prefill_len_ptr", 0),
    ("_combine_sampled_and_draft_tokens_kernel", "draft_tokens_ptr", 7),
    ("_get_num_sampled_and_rejected_kernel", "seq_lens_ptr", 99),
    ("_post_update_kernel", "num_rejected_ptr", 0),
    ("_post_update_kernel", "sampled_tokens_ptr", 1),
    ("_post_update_num_computed_tokens_kernel", "idx_mapping_ptr", 0),
    ("_expand_idx_mapping_kernel", "idx_mapping_ptr", 0),
    ("_gather_block_tables_kernel", "batch_idx_to_req_idx", 0),
    ("_gather_block_tables_kernel", "num_blocks_ptr", 0),
    ("_compute_slot_mappings_kernel", "slot_mapping_enabled", 1),
    ("_compute_slot_mappings_kernel", "pos", 0),
    ("preprocess_mamba_align_fused_kernel", "num_accepted_tokens_ptr", 0),
    ("preprocess_mamba_align_fused_kernel", "num_computed_tokens_ptr", 0),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_v2_kernel_has_a_reference_or_is_listed_as_without(version: str) -> None:
    from conformance.kernels.references import REFERENCE
    from conformance.kernels.references.pending import NO_REFERENCE

    inventory = load(known_path(version))
    spoken_of = {*REFERENCE, *NO_REFERENCE}
    assert without_generator(inventory, spoken_of, "v2") == {}
    site = launched(inventory, "v2")["triton:_min_p_kernel"][0]
    new = dataclasses.replace(site, attribute="triton:a_new_kernel")
    grown = Inventory.of(version, (*inventory.rows, new))
    assert set(without_generator(grown, spoken_of, "v2")) == {"triton:a_new_kernel"}


def test_the_lists_name_what_there_is_and_nothing_twice() -> None:
    from conformance.kernels.references import REFERENCE
    from conformance.kernels.references.pending import NO_REFERENCE

    reached = {
        kernel for v in VERSIONS for kernel in launched(load(known_path(v)), "v2", surely=False)
    }
    assert {f"triton:{name}" for name in V2_KERNELS} == set(REFERENCE) <= reached
    assert set(NO_REFERENCE) <= reached
    assert not set(NO_REFERENCE) & set(REFERENCE)


def test_the_page_shows_every_kernel_and_every_one_without_a_reference() -> None:
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.references import REFERENCE
    from conformance.kernels.references.pending import NO_REFERENCE

    page = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text()
    for kernel in (*GENERATOR, *REFERENCE, *NO_REFERENCE):
        assert f"`{kernel.removeprefix('triton:')}`" in page


@needs_triton
@pytest.mark.xdist_group("host")
@pytest.mark.parametrize(
    ("kernel", "argument", "value"), IGNORED, ids=[f"{k}-{a}" for k, a, _ in IGNORED]
)
def test_a_kernel_that_ignores_an_input_is_red(
    kernel: str, argument: str, value: Any, host: Host
) -> None:
    wrong = V2Outcomes(host, 40).of(kernel, {argument: value})
    assert wrong is not None
    if wrong.startswith("not checked"):
        pytest.skip(wrong)
    assert f"{kernel}: " in wrong


def test_every_reference_has_an_input_that_is_ignored() -> None:
    assert {kernel for kernel, _, _ in IGNORED} == set(V2_KERNELS)
