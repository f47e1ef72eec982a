"""Tensors and the device: what copies, what aliases, what a stream has to do with it.

GPU behaviour: torch's documentation of ``Tensor.to``, ``Tensor.copy_``, ``Tensor.cuda`` and
``Tensor.record_stream``.
"""

from __future__ import annotations

from conformance.contract.clause import clause, clauses_of, require, the_device


@clause(
    "non_blocking=True",
    gpu="after the stream is synchronized the copy has the source's values, and is its own memory",
    bare_holds=True,
)
def a_non_blocking_copy_is_a_copy() -> None:
    import torch

    source, target = torch.arange(6), torch.full((8,), -77, device=the_device())
    target[:6].copy_(source, non_blocking=True)
    target.tolist()  # which waits for the copy
    source.fill_(3)
    require(target.tolist() == [0, 1, 2, 3, 4, 5, -77, -77], f"it is {target.tolist()}")


@clause(
    "non_blocking=True",
    gpu="to(dtype, non_blocking=True) gives the values in another dtype",
    bare_holds=True,
)
def a_non_blocking_conversion_keeps_the_values() -> None:
    import torch

    got = torch.arange(4).to(device=the_device(), dtype=torch.int32, non_blocking=True)
    require(got.dtype == torch.int32 and got.tolist() == [0, 1, 2, 3], f"it is {got!r}")


@clause("torch.Tensor.record_stream", gpu="returns None, and changes nothing of the tensor")
def a_tensor_is_recorded_in_a_stream() -> None:
    import torch

    tensor = torch.arange(4, device=the_device())
    require(tensor.record_stream(torch.cuda.Stream()) is None, "it returned something")
    require(tensor.tolist() == [0, 1, 2, 3], f"the tensor is {tensor.tolist()}")


@clause("torch.Tensor.cuda", gpu="the tensor in the device's memory, with the same values")
def a_tensor_moves_to_the_device() -> None:
    import torch

    moved = torch.arange(4).cuda()
    require(moved.tolist() == [0, 1, 2, 3], f"it is {moved.tolist()}")


@clause("device='cuda'", gpu="a tensor in the device's memory")
def a_tensor_is_made_on_the_device() -> None:
    import torch

    made = torch.full((4,), 7, dtype=torch.int32, device="cuda")
    require(made.tolist() == [7] * 4, f"it is {made.tolist()}")


CLAUSES = clauses_of(globals())
