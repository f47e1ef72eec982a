"""PyTorch implementations of the Triton kernels that vLLM's V1 runner launches.

``KERNELS`` lists them as data: which kernel of vLLM each one replaces and why. Nothing here
imports vLLM; putting a ``KernelStandIn`` in place is the business of the patches. `selective_scan`
is in no list: what it replaces are operators of vLLM's, not kernels of Triton's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import embedding, mamba, memory, rejection, slot_mapping, spec_inputs
from .launch import KernelStandIn, parameter_names

__all__ = ["KERNELS", "Kernel", "KernelStandIn", "parameter_names"]


@dataclass(frozen=True)
class Kernel:
    """One Triton kernel of vLLM and what runs in its place on a CPU.

    ``target`` is the dotted path of the kernel, ``implementation`` takes the kernel's parameters
    by name, ``why`` is one sentence, and ``versions`` (PEP 440) says in which releases of vLLM
    it is needed (empty: in all that are supported): where vLLM brings no CPU implementation, or
    one that is wrong.
    """

    target: str
    implementation: Callable[..., None]
    why: str
    versions: str


# Up to 0.30 vLLM puts its CPU implementations in place in its own CPU runner, most of them where
# no launch reads them; from 0.31 on they stand before any worker is built, for every runner.
_MISSING_UP_TO_0_30 = "<0.31"
# In every supported release: what is wrong with those of 0.31 and 0.32 is told in docs/findings/.
_MISSING_OR_WRONG = ""

_BLOCK_TABLE = "vllm.v1.worker.block_table"
_SPEC_DECODE = "vllm.v1.spec_decode.utils"
_REJECTION = "vllm.v1.sample.rejection_sampler"
_MAMBA = "vllm.v1.worker.mamba_utils"
_EMBEDDING = (
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_embedding"
)

_SLOTS_ARE_NEEDED = "Every step asks it where in the KV cache its tokens go."

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        f"{_BLOCK_TABLE}.ComputeSlotMappingKernel.kernel",
        slot_mapping.compute_slot_mapping,
        _SLOTS_ARE_NEEDED,
        ">=0.29",
    ),
    Kernel(
        f"{_BLOCK_TABLE}._compute_slot_mapping_kernel",
        slot_mapping.compute_slot_mapping,
        _SLOTS_ARE_NEEDED,
        "<0.29",
    ),
    Kernel(
        f"{_SPEC_DECODE}.eagle_step_slot_mapping_metadata_kernel",
        slot_mapping.eagle_step_slot_mapping_metadata,
        "Every draft step after the first moves positions, lengths and slots on by one token.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_SPEC_DECODE}.eagle_prepare_inputs_padded_kernel",
        spec_inputs.eagle_prepare_inputs_padded,
        "A draft model needs to know from which token of each request it drafts.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_SPEC_DECODE}.eagle_prepare_next_token_padded_kernel",
        spec_inputs.eagle_prepare_next_token_padded,
        "A draft model starts from the last token that the target model has accepted.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_SPEC_DECODE}.copy_and_expand_eagle_inputs_kernel",
        spec_inputs.copy_and_expand_eagle_inputs,
        "Draft models and parallel drafting need room for new tokens in each request.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_SPEC_DECODE}.copy_and_expand_dflash_inputs_kernel",
        spec_inputs.copy_and_expand_dflash_inputs,
        "DFlash drafting splits its first pass into context and queries.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_REJECTION}.rejection_greedy_sample_kernel",
        rejection.rejection_greedy_sample,
        "Speculation with greedy requests keeps the drafts that the target would have chosen.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_REJECTION}.rejection_random_sample_kernel",
        rejection.rejection_random_sample,
        "Speculation with sampled requests accepts drafts by their probability ratio.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_REJECTION}.expand_kernel",
        rejection.expand,
        "Speculation needs temperature, top-k and top-p per draft token, not per request.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_REJECTION}.sample_recovered_tokens_kernel",
        rejection.sample_recovered_tokens,
        "A rejected draft is replaced by a draw from what the draft left of the target.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_MAMBA}.batch_memcpy_kernel",
        memory.batch_memcpy,
        "Mamba models copy their states from block to block by address.",
        _MISSING_UP_TO_0_30,
    ),
    Kernel(
        f"{_MAMBA}.precopy_mamba_align_fused_kernel",
        mamba.precopy_mamba_align_fused,
        "Speculation with a Mamba model moves states to the block that a step begins to fill.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_MAMBA}.postprocess_mamba_fused_kernel",
        mamba.postprocess_mamba_fused,
        "Speculation with a Mamba model saves the states of the blocks that a step has filled.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        "vllm.v1.worker.utils._zero_kv_blocks_kernel",
        memory.zero_kv_blocks,
        "Freshly allocated KV-cache blocks are cleared by address before their first use.",
        _MISSING_OR_WRONG,
    ),
    Kernel(
        f"{_EMBEDDING}._dequant_gather_kernel",
        embedding.dequant_gather,
        "Tokens are looked up in an embedding that a compressed-tensors checkpoint has packed.",
        _MISSING_OR_WRONG,
    ),
)
