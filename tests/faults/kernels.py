"""Faults in implementations of kernels: one change of their text each, planted in a child process.

``FAULTS`` says which kernel's check must turn red. A fault is put where launches read the kernel,
in the form in which a stand-in has it, whether or not this vLLM needs one there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class KernelFault:
    """``old`` becomes ``new`` in a module of `runner_under_test.kernels`.

    ``module`` is that of the kernel's implementation, or one that it takes something from, and
    ``kernel`` is the one whose check must turn red.
    """

    name: str
    kernel: str
    module: str
    old: str
    new: str


_GREEDY = "rejection_greedy_sample_kernel"
_RANDOM = "rejection_random_sample_kernel"
_EXPAND = "expand_kernel"
_RECOVER = "sample_recovered_tokens_kernel"
_SLOTS = "ComputeSlotMappingKernel.kernel"
_STEP = "eagle_step_slot_mapping_metadata_kernel"
_INPUTS = "eagle_prepare_inputs_padded_kernel"
_NEXT = "eagle_prepare_next_token_padded_kernel"
_EAGLE = "copy_and_expand_eagle_inputs_kernel"
_DFLASH = "copy_and_expand_dflash_inputs_kernel"
_MEMCPY = "batch_memcpy_kernel"
_ZERO = "_zero_kv_blocks_kernel"
_GATHER = "_dequant_gather_kernel"
_PRECOPY = "precopy_mamba_align_fused_kernel"
_POST = "postprocess_mamba_fused_kernel"

FAULTS = (
    # Slots.
    KernelFault(
        "a-slot-is-one-too-far",
        _SLOTS,
        "slot_mapping",
        "* entry_size + offset",
        "* entry_size + offset + 1",
    ),
    KernelFault(
        "padding-slots-stay",
        _SLOTS,
        "slot_mapping",
        "    slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID\n",
        "",
    ),
    KernelFault(
        "one-padding-slot-stays",
        _SLOTS,
        "slot_mapping",
        "slot_mapping_ptr[num_tokens:max_num_tokens]",
        "slot_mapping_ptr[num_tokens : max_num_tokens - 1]",
    ),
    KernelFault(
        "slots-are-computed-in-int32",
        _SLOTS,
        "slot_mapping",
        "[index].to(torch.int64) * entry_size",
        "[index] * entry_size",
    ),
    KernelFault(
        "the-stride-of-the-table-is-ignored",
        _SLOTS,
        "slot_mapping",
        "index = row * block_table_stride + entry",
        "index = row + entry",
    ),
    KernelFault(
        "padding-is-0",
        _SLOTS,
        "slot_mapping",
        "slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID",
        "slot_mapping_ptr[num_tokens:max_num_tokens] = 0",
    ),
    KernelFault(
        "another-ranks-tokens-are-stored",
        _SLOTS,
        "slot_mapping",
        "slot = slot.where(here, PAD_ID)",
        "pass",
    ),
    # A draft step.
    KernelFault(
        "a-step-may-end-at-the-models-limit",
        _STEP,
        "slot_mapping",
        "beyond = stepped >= max_model_len",
        "beyond = stepped > max_model_len",
    ),
    KernelFault(
        "lengths-go-into-a-copy",
        _STEP,
        "slot_mapping",
        "seq_lens = elements(seq_lens_ptr)[:batch_size]",
        "seq_lens = elements(seq_lens_ptr)[:batch_size].clone()",
    ),
    KernelFault(
        "a-parked-request-keeps-its-length",
        _STEP,
        "slot_mapping",
        "(seq_lens + 1).masked_fill(beyond, 1)",
        "(seq_lens + 1)",
    ),
    KernelFault(
        "the-padding-of-a-batch-stays",
        _STEP,
        "slot_mapping",
        "    out_slot_mapping_ptr[batch_size:] = PAD_ID\n",
        "",
    ),
    KernelFault(
        "a-step-takes-the-width-for-the-stride",
        _STEP,
        "slot_mapping",
        "[row * block_table_stride + entry].to(torch.int64)\n    slot = (block",
        "[row * n_blocks_per_req + entry].to(torch.int64)\n    slot = (block",
    ),
    # The inputs of a draft model.
    KernelFault(
        "requests-without-drafts-have-rejected-ones",
        _INPUTS,
        "spec_inputs",
        "rejected = torch.where(drafted > 0, drafted + 1 - valid, 0)",
        "rejected = drafted + 1 - valid",
    ),
    KernelFault(
        "the-bonus-token-is-not-counted",
        _INPUTS,
        "spec_inputs",
        "drafted + 1 - valid, 0)",
        "drafted - valid, 0)",
    ),
    KernelFault(
        "two-outputs-are-exchanged",
        _INPUTS,
        "spec_inputs",
        "    elements(token_indices_to_sample_ptr)[:num_reqs] = last_token - rejected\n"
        "    elements(num_rejected_tokens_gpu_ptr)[:num_reqs] = rejected\n",
        "    elements(num_rejected_tokens_gpu_ptr)[:num_reqs] = last_token - rejected\n"
        "    elements(token_indices_to_sample_ptr)[:num_reqs] = rejected\n",
    ),
    KernelFault(
        "requests-begin-where-they-end",
        _INPUTS,
        "layout",
        "starts[1:] = stops[:-1]",
        "starts[1:] = stops[1:]",
    ),
    KernelFault(
        "the-first-valid-token-is-taken",
        _NEXT,
        "spec_inputs",
        "last_valid = torch.where(valid, column, -1).amax(dim=1)",
        "last_valid = torch.where(valid.any(1), valid.int().argmax(dim=1), -1)",
    ),
    KernelFault(
        "ids-beyond-the-vocabulary-are-valid",
        _NEXT,
        "spec_inputs",
        "valid = (sampled != -1) & (sampled < vocab_size)",
        "valid = sampled != -1",
    ),
    KernelFault(
        "discarded-requests-go-on",
        _NEXT,
        "spec_inputs",
        "    valid &= ~elements(discard_request_mask_ptr)[:num_reqs].bool().unsqueeze(1)\n",
        "",
    ),
    KernelFault(
        "rows-of-samples-are-taken-for-dense",
        _NEXT,
        "spec_inputs",
        ".unsqueeze(1) * stride_sampled_token_ids",
        ".unsqueeze(1) * num_sampled_tokens_per_req",
    ),
    KernelFault(
        "the-sentinel-is-ignored",
        _NEXT,
        "spec_inputs",
        "valid = (sampled != -1) & (sampled < vocab_size)",
        "valid = sampled < vocab_size",
    ),
    KernelFault(
        "ids-are-not-shifted",
        _EAGLE,
        "spec_inputs",
        "source = (start[request] + shift + place).clamp(max=last_input)",
        "source = (start[request] + place).clamp(max=last_input)",
    ),
    KernelFault(
        "rejected-tokens-keep-their-position",
        _EAGLE,
        "spec_inputs",
        "(first_position[request] + place).masked_fill(rejected, 0)",
        "first_position[request] + place",
    ),
    KernelFault(
        "two-masks-are-exchanged",
        _EAGLE,
        "spec_inputs",
        "_store(out_is_masked_token_mask_ptr, out, drafting)",
        "_store(out_is_masked_token_mask_ptr, out, rejected)",
    ),
    KernelFault(
        "hidden-states-are-never-mapped",
        _EAGLE,
        "spec_inputs",
        "    if shift_input_ids:\n        request, place = ragged(following - start)\n",
        "    if False:\n        request, place = ragged(following - start)\n",
    ),
    KernelFault(
        "the-last-new-token-is-not-listed",
        _EAGLE,
        "spec_inputs",
        "new = (after_valid >= 0) & ~rejected",
        "new = (after_valid >= 0) & (after_valid < max(slots - 1, 1)) & ~rejected",
    ),
    KernelFault(
        "rejected-tokens-count-as-context",
        _DFLASH,
        "spec_inputs",
        "    if HAS_NUM_REJECTED:\n",
        "    if False:\n",
    ),
    KernelFault(
        "a-place-past-the-table-is-the-next-rows",
        _DFLASH,
        "spec_inputs",
        "entry = (position // block_size).clamp(max=block_table_stride - 1)",
        "entry = (position // block_size) % block_table_stride",
    ),
    KernelFault(
        "queries-begin-at-the-last-position",
        _DFLASH,
        "spec_inputs",
        "position = last_position + 1 + query",
        "position = last_position + query",
    ),
    KernelFault(
        "the-bonus-token-is-sampled-too",
        _DFLASH,
        "spec_inputs",
        "number * num_speculative_tokens + query[1:] - 1, out[:, 1:])",
        "number * num_speculative_tokens + query[1:] - 1, out[:, :-1])",
    ),
    # The rejection sampler.
    KernelFault(
        "the-bonus-token-always-follows",
        _GREEDY,
        "rejection",
        "complete = rejections[starts + lengths] == before_request",
        "complete = rejections[starts + lengths] >= before_request",
    ),
    KernelFault(
        "sampled-requests-are-greedy-too",
        _GREEDY,
        "rejection",
        "active=None if is_greedy_ptr is None else elements(is_greedy_ptr).bool(),",
        "active=None,",
    ),
    KernelFault(
        "the-mode-is-ignored",
        _GREEDY,
        "rejection",
        "    if SYNTHETIC_MODE:\n        uniform, rates",
        "    if False:\n        uniform, rates",
    ),
    KernelFault(
        "a-padding-draft-may-stay",
        _GREEDY,
        "rejection",
        "accepted = (uniform[: request.shape[0]] < rates[place]) & (draft >= 0)",
        "accepted = uniform[: request.shape[0]] < rates[place]",
    ),
    KernelFault(
        "the-rejected-token-is-not-stored",
        _GREEDY,
        "rejection",
        "reached = rejections[:-1] == before_request[request]",
        "reached = rejections[1:] == before_request[request]",
    ),
    KernelFault(
        "draws-are-narrowed",
        _RANDOM,
        "rejection",
        "accepted = accepted & (ratio >= uniform)",
        "accepted = accepted & (ratio >= uniform.float())",
    ),
    KernelFault(
        "an-equal-draw-rejects",
        _RANDOM,
        "rejection",
        "accepted = accepted & (ratio >= uniform)",
        "accepted = accepted & (ratio > uniform)",
    ),
    KernelFault(
        "a-draft-of-no-probability-stays",
        _RANDOM,
        "rejection",
        "            accepted = accepted & (draft_prob > 0)\n",
        "",
    ),
    KernelFault(
        "padding-is-looked-up",
        _RANDOM,
        "rejection",
        "looked_up = (draft >= 0) & active[request]",
        "looked_up = active[request]",
    ),
    KernelFault(
        "a-neighbours-recovered-token-is-taken",
        _RANDOM,
        "rejection",
        "elements(recovered_token_ids_ptr)[:num_tokens]",
        "elements(recovered_token_ids_ptr)[:num_tokens].flip(0)",
    ),
    KernelFault(
        "greedy-requests-are-sampled",
        _RANDOM,
        "rejection",
        "active = ~elements(is_greedy_ptr).bool()",
        "active = torch.ones_like(elements(is_greedy_ptr).bool())",
    ),
    KernelFault(
        "values-go-through-integers",
        _EXPAND,
        "rejection",
        "output[starts[request] + place] = value[request].to(output.dtype)",
        "output[starts[request] + place] = value[request].nan_to_num().long().to(output.dtype)",
    ),
    KernelFault(
        "values-go-into-a-copy",
        _EXPAND,
        "rejection",
        "    output = elements(output_ptr)\n",
        "    output = elements(output_ptr).clone()\n",
    ),
    KernelFault(
        "nothing-is-replaced",
        _EXPAND,
        "rejection",
        "    value = value.masked_fill(value == replace_from, replace_to)\n",
        "",
    ),
    KernelFault(
        "the-last-of-equal-scores-wins",
        _RECOVER,
        "rejection",
        "= score.argmax(dim=1)",
        "= vocab_size - 1 - score.flip(1).argmax(dim=1)",
    ),
    KernelFault(
        "noise-is-narrowed",
        _RECOVER,
        "rejection",
        "score = _rows(inv_q_ptr, lengths.shape[0], vocab_size)[request]",
        "score = _rows(inv_q_ptr, lengths.shape[0], vocab_size)[request].float()",
    ),
    KernelFault(
        "noise-is-the-tokens-own",
        _RECOVER,
        "rejection",
        "lengths.shape[0], vocab_size)[request]",
        "lengths.shape[0], vocab_size)[(request + 1) % lengths.shape[0]]",
    ),
    KernelFault(
        "the-draft-may-be-recovered",
        _RECOVER,
        "rejection",
        "        score[masked, draft[masked]] = at_draft\n",
        "",
    ),
    KernelFault(
        "what-is-left-of-nan-is-nan",
        _RECOVER,
        "rejection",
        "torch.fmax(weight, weight.new_zeros(()))",
        "torch.where(weight < 0, 0, weight).nan_to_num(nan=1.0)",
    ),
    KernelFault(
        "a-draft-may-be-more-likely-than-the-target",
        _RECOVER,
        "rejection",
        "score.mul_(torch.fmax(weight, weight.new_zeros(())))",
        "score.mul_(weight.abs().nan_to_num(nan=0.0))",
    ),
    # Memory.
    KernelFault(
        "the-last-byte-is-not-copied",
        _MEMCPY,
        "memory",
        "ctypes.memmove(target, source, size)",
        "ctypes.memmove(target, source, size - 1)",
    ),
    KernelFault(
        "source-and-target-are-exchanged",
        _MEMCPY,
        "memory",
        "ctypes.memmove(target, source, size)",
        "ctypes.memmove(source, target, size)",
    ),
    KernelFault(
        "overlapping-bytes-are-copied-twice",
        _MEMCPY,
        "memory",
        "ctypes.memmove(target, source, size)",
        "[ctypes.memmove(target + at, source + at, 1) for at in reversed(range(size))]",
    ),
    KernelFault(
        "sizes-count-words",
        _ZERO,
        "memory",
        "0, page * _BYTES_PER_WORD)",
        "0, page)",
    ),
    KernelFault(
        "blocks-follow-without-a-gap",
        _ZERO,
        "memory",
        "address + block * stride * _BYTES_PER_WORD",
        "address + block * page * _BYTES_PER_WORD",
    ),
    KernelFault(
        "the-gap-is-cleared-too",
        _ZERO,
        "memory",
        "0, page * _BYTES_PER_WORD)",
        "0, stride * _BYTES_PER_WORD)",
    ),
    # Embeddings.
    KernelFault(
        "values-are-unsigned",
        _GATHER,
        "embedding",
        " - (1 << NUM_BITS - 1)\n",
        "\n",
    ),
    KernelFault(
        "a-row-has-one-scale",
        _GATHER,
        "embedding",
        "    if GROUP_SIZE == 0:\n",
        "    if True:\n",
    ),
    KernelFault(
        "scales-are-narrowed",
        _GATHER,
        "embedding",
        "].float() * scales.float()",
        "].float() * scales.bfloat16().float()",
    ),
    # Mamba's states.
    KernelFault(
        "a-window-is-moved-as-it-is",
        _PRECOPY,
        "mamba",
        "_move(page + bias * token, to, (state.window - bias) * token)",
        "_move(page, to, state.window * token)",
    ),
    KernelFault(
        "a-temporal-state-is-the-sources",
        _PRECOPY,
        "mamba",
        "page = self._page(state, request, source + bias)",
        "page = self._page(state, request, source)",
    ),
    KernelFault(
        "new-requests-have-states",
        _PRECOPY,
        "mamba",
        "if source >= 0 and source != target:",
        "if source != target and (source := max(source, 0)) != target:",
    ),
    KernelFault(
        "rows-of-dimensions-are-taken-for-tokens",
        _PRECOPY,
        "mamba",
        "            if self.dim_first:\n",
        "            if False:\n",
    ),
    KernelFault(
        "one-group-has-the-others-table",
        _PRECOPY,
        "mamba",
        "self.tables[state.group]",
        "self.tables[0]",
    ),
    KernelFault(
        "a-filled-block-is-one-further",
        _POST,
        "mamba",
        "filled = (running + accepted - 1) // block_size",
        "filled = (running + accepted) // block_size",
    ),
    KernelFault(
        "the-count-stays-as-it-was",
        _POST,
        "mamba",
        "            counts[request] = 1\n",
        "            pass\n",
    ),
    KernelFault(
        "a-state-in-its-place-is-not-moved-on",
        _POST,
        "mamba",
        "if source != target or bias != 0:",
        "if source != target:",
    ),
    # What stands in for a kernel.
    KernelFault(
        "parameters-are-in-another-order",
        _PRECOPY,
        "launch",
        "self.arg_names = parameter_names(original)",
        "self.arg_names = tuple(sorted(parameter_names(original)))",
    ),
    KernelFault(
        "the-last-keyword-is-lost",
        _DFLASH,
        "launch",
        "        return kwargs\n\n    def _without_compiler_options",
        "        return {n: kwargs[n] for n in kwargs if n != 'HAS_NUM_REJECTED'}\n\n"
        "    def _without_compiler_options",
    ),
)


SOUND = "nothing is changed"
PLANTED = "planted"
"""The result that names the fault that was planted last, for when it ends the process."""


def run(journal: Any, kernel: str, record: str, names: list[str]) -> None:
    """Replay a kernel's record with each of some faults planted, or none; report by fault and way.

    Runs in a child process.
    """
    import torch

    from conformance.contract.batch import put_in_place
    from conformance.kernels.replaying import replay
    from conformance.kernels.rows import WAYS
    from conformance.kernels.store import read

    torch.set_num_threads(1)
    put_in_place("ours")
    inputs = read(Path(record))
    faults = {fault.name: fault for fault in FAULTS}
    for name in names:
        journal.result(PLANTED, name)
        fault = faults.get(name, KernelFault(SOUND, kernel, "", "", ""))
        with _planted(fault):
            journal.result(name, {way: replay(inputs, way) for way in WAYS})


@contextmanager
def _planted(fault: KernelFault) -> Iterator[None]:
    """Put ours' implementation of a kernel where launches read it, changed in one place.

    With an empty ``old`` it is put there as it is.
    """
    kernel, module, old, new = fault.kernel, fault.module, fault.old, fault.new
    from conformance.kernels.generators import GENERATOR
    from runner_under_test.kernels import KERNELS, launch

    attribute = f"triton:{kernel}"
    ours = next(k for k in KERNELS if k.target.endswith(f".{kernel}"))
    implementation: Any = ours.implementation
    stand_in = launch.KernelStandIn
    if old:
        changed = _changed(sys.modules[f"runner_under_test.kernels.{module}"], old, new)
        if module == "launch":
            stand_in = changed.KernelStandIn
        elif module == "layout":
            home = _changed(sys.modules[implementation.__module__], "", "")
            for name in ("elements", "spans", "ragged"):
                if hasattr(home, name):
                    setattr(home, name, getattr(changed, name))
            implementation = getattr(home, implementation.__name__)
        else:
            implementation = getattr(changed, implementation.__name__)
    owner_path, _, name = GENERATOR[attribute].home.replace(":", ".").rpartition(".")
    owner = _object(owner_path)
    original = getattr(owner, name)
    setattr(owner, name, stand_in(original, implementation, ours.target))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _changed(module: ModuleType, old: str, new: str) -> ModuleType:
    """A module made from another's text, changed in one place, which must be there."""
    source = inspect.getsource(module)
    if old:
        assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
        source = source.replace(old, new)
    changed = ModuleType(f"{module.__name__}_changed")
    changed.__package__ = module.__package__
    sys.modules[changed.__name__] = changed
    exec(compile(source, f"{module.__file__} (changed)", "exec"), changed.__dict__)
    return changed


def _object(path: str) -> Any:
    import importlib

    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"{path} is not there")
