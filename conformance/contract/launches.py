"""How vLLM's runner launches its kernels: through helpers from 0.30 on, directly before.

Each function here takes what the helper of vLLM 0.30 takes. Where there is none it launches the
kernel as the call sites of 0.20.2 to 0.29.0 do: by the name in the module that has the call, since
that is the name that a stand-in must have replaced, with the same arguments by position and by
keyword. The grid says how many programs a GPU would run.
"""

from __future__ import annotations

import importlib
from typing import Any

_UTILS = "vllm.v1.spec_decode.utils"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
_DFLASH = "vllm.v1.spec_decode.dflash"
_REJECTION = "vllm.v1.sample.rejection_sampler"

_MAX_SPEC_LEN = 128
"""The longest draft that the rejection sampler takes; in all releases the same."""


def _helper(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _takes(kernel: Any, parameter: str) -> bool:
    """Whether the kernel that vLLM defines has the parameter: 0.24 brought some."""
    import inspect

    names = getattr(kernel, "arg_names", None)
    if names is None:
        function = getattr(kernel, "func", None) or getattr(kernel, "fn", None) or kernel
        names = inspect.signature(function).parameters
    return parameter in names


def eagle_prepare_inputs_padded(*arguments: Any) -> None:
    """Launch with the six arguments of the kernel; the last is the number of requests."""
    if helper := _helper(_UTILS, "_eagle_prepare_inputs_padded"):
        helper(*arguments)
    else:
        _kernel(_PROPOSER, "eagle_prepare_inputs_padded_kernel")[(arguments[-1],)](*arguments)


def eagle_prepare_next_token_padded(*arguments: Any, BLOCK_SIZE_TOKENS: int) -> None:
    """Launch with the nine arguments of the kernel; the last but one is the number of requests."""
    if helper := _helper(_UTILS, "_eagle_prepare_next_token_padded"):
        helper(*arguments, BLOCK_SIZE_TOKENS=BLOCK_SIZE_TOKENS)
    else:
        kernel = _kernel(_PROPOSER, "eagle_prepare_next_token_padded_kernel")
        kernel[(arguments[-2],)](*arguments, BLOCK_SIZE_TOKENS=BLOCK_SIZE_TOKENS)


def copy_and_expand_eagle_inputs(*, batch_size: int, num_blocks: int, **arguments: Any) -> None:
    """Launch with the parameters of the kernel, by name."""
    if helper := _helper(_UTILS, "_copy_and_expand_eagle_inputs"):
        helper(batch_size=batch_size, num_blocks=num_blocks, **arguments)
    else:
        kernel = _kernel(_PROPOSER, "copy_and_expand_eagle_inputs_kernel")
        kernel[(batch_size, num_blocks)](**arguments)


def copy_and_expand_dflash_inputs(
    *, max_tokens_per_req: int, triton_block_size: int, has_num_rejected: bool, **arguments: Any
) -> None:
    """Launch with the parameters of the kernel, by name, but for the sizes of its grid."""
    if helper := _helper(_UTILS, "_copy_and_expand_dflash_inputs"):
        helper(
            max_tokens_per_req=max_tokens_per_req,
            triton_block_size=triton_block_size,
            has_num_rejected=has_num_rejected,
            **arguments,
        )
    else:
        requests = arguments["query_start_loc_ptr"].shape[0] - 1
        blocks = -(-max_tokens_per_req // triton_block_size)
        _kernel(_DFLASH, "copy_and_expand_dflash_inputs_kernel")[(requests, blocks)](
            **arguments, BLOCK_SIZE=triton_block_size, HAS_NUM_REJECTED=has_num_rejected
        )


def rejection_greedy_sample(*arguments: Any) -> None:
    """Launch with nine arguments, from the output on to the rates of synthetic acceptance."""
    if helper := _helper(_REJECTION, "_rejection_greedy_sample"):
        helper(*arguments)
    else:
        kernel = _kernel(_REJECTION, "rejection_greedy_sample_kernel")
        kernel[(arguments[0].shape[0],)](*arguments, SYNTHETIC_MODE=arguments[-1] is not None)


def rejection_random_sample(*arguments: Any) -> None:
    """Launch with eleven arguments, from the output on to the rates of synthetic acceptance."""
    if helper := _helper(_REJECTION, "_rejection_random_sample"):
        helper(*arguments)
        return
    *first, rates = arguments
    _kernel(_REJECTION, "rejection_random_sample_kernel")[(first[0].shape[0],)](
        *first,
        first[4].shape[1],
        rates,
        NO_DRAFT_PROBS=first[3] is None,
        SYNTHETIC_MODE=rates is not None,
    )


def expand(output: Any, values: Any, cumulated: Any, replace_from: int, replace_to: int) -> None:
    """Launch with the output, values per request, their cumulated tokens, and what to replace."""
    if helper := _helper(_REJECTION, "_expand"):
        helper(output, values, cumulated, replace_from, replace_to)
    else:
        _kernel(_REJECTION, "expand_kernel")[(values.shape[0],)](
            output, values, cumulated, replace_from, replace_to, MAX_NUM_TOKENS=_MAX_SPEC_LEN
        )


def sample_recovered_tokens(*arguments: Any, max_spec_len: int) -> None:
    """Launch with six arguments, from the output on to the inverse noise."""
    import torch

    if helper := _helper(_REJECTION, "_sample_recovered_tokens"):
        helper(*arguments, max_spec_len=max_spec_len)
        return
    kernel = _kernel(_REJECTION, "sample_recovered_tokens_kernel")
    _, cumulated, _, draft_probs, target_probs, noise = arguments
    options: dict[str, Any] = {"NO_DRAFT_PROBS": draft_probs is None}
    if _takes(kernel, "USE_FP64_GUMBEL"):
        options["USE_FP64_GUMBEL"] = noise.dtype == torch.float64
    kernel[(cumulated.shape[0], max_spec_len)](*arguments, target_probs.shape[1], 8192, **options)
