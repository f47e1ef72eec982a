"""Sampling code that vLLM runs on the CPU in another way than on a GPU.

GPU behaviour: the sort that ``apply_top_k_top_p`` takes there, in vLLM 0.30 to 0.32.
"""

from __future__ import annotations

from conformance.contract.clause import clause, clauses_of, require

_TOP_K = "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only"


@clause(_TOP_K, gpu="logits of zero rows stay logits of zero rows")
def top_k_of_no_rows_is_no_rows() -> None:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    got = apply_top_k_top_p(torch.empty(0, 8), torch.empty(0, dtype=torch.int32), None)
    require(got.shape == (0, 8), f"its shape is {tuple(got.shape)}")


@clause(_TOP_K, gpu="all but the k largest logits of a row become -inf", bare_holds=True)
def top_k_keeps_the_k_largest() -> None:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0]])
    got = apply_top_k_top_p(logits, torch.tensor([2, 4], dtype=torch.int32), None)
    none = -torch.inf
    want = torch.tensor([[none, 4.0, none, 3.0], [4.0, 3.0, 2.0, 1.0]])
    require(torch.equal(got, want), f"it is {got.tolist()}")


CLAUSES = clauses_of(globals())
