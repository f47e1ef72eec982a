"""Pinned memory: on a GPU host, an ordinary CPU tensor whose pages are locked.

GPU behaviour: torch's documentation of ``Tensor.pin_memory`` and of the factories' ``pin_memory``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.contract.clause import Clause, clause, clauses_of, require, require_raises


@clause("torch.Tensor.pin_memory", gpu="a CPU tensor of the same values, shape and dtype")
def a_tensor_is_pinned() -> None:
    import torch

    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    pinned = tensor.pin_memory()
    require(isinstance(pinned, torch.Tensor), f"it is {pinned!r}")
    require(pinned.device.type == "cpu" and pinned.dtype == torch.int32, "another device or dtype")
    require(torch.equal(pinned, tensor), "other values")


@clause("torch.Tensor.pin_memory", gpu="an unknown keyword raises")
def pinning_refuses_wrong_arguments() -> None:
    import torch

    torch.ones(1).pin_memory()
    require_raises(lambda: torch.ones(1).pin_memory(no_such_argument=1), "no_such_argument=1")


def _factory(name: str, make: Callable[[Any, Any], Any], expected: Callable[[Any], Any]) -> Clause:
    def check() -> None:
        import torch

        got = make(torch, getattr(torch, name))
        want = expected(torch)
        require(got.device.type == "cpu", f"its device is {got.device}")
        require(got.shape == want.shape and got.dtype == want.dtype, f"it is {got!r}")
        require(got.stride() == want.stride(), f"its strides are {got.stride()}")
        if "empty" not in name:
            require(torch.equal(got, want), f"it is {got!r}")

    return Clause(
        name=f"pinned/torch-{name.replace('_', '-')}-takes-pin-memory",
        attributes=("pin_memory=True",),
        gpu=f"torch.{name}(..., pin_memory=True) is a CPU tensor like any other",
        check=check,
    )


def _base(torch: Any) -> Any:
    return torch.arange(6, dtype=torch.int32).reshape(2, 3)


_FACTORIES = (
    _factory(
        "empty",
        lambda t, f: f((2, 3), dtype=t.int32, device="cpu", pin_memory=True),
        lambda t: _base(t),
    ),
    _factory("empty_like", lambda t, f: f(_base(t), pin_memory=True), lambda t: _base(t)),
    _factory(
        "empty_strided",
        lambda t, f: f((2, 3), (1, 2), dtype=t.int32, pin_memory=True),
        lambda t: t.arange(6, dtype=t.int32).reshape(3, 2).t(),
    ),
    _factory("full", lambda t, f: f((2,), 7.5, pin_memory=True), lambda t: t.tensor([7.5, 7.5])),
    _factory(
        "ones",
        lambda t, f: f(3, dtype=t.long, pin_memory=True),
        lambda t: t.tensor([1, 1, 1]),
    ),
    _factory(
        "tensor",
        lambda t, f: f([3, 4], dtype=t.int32, pin_memory=True),
        lambda t: t.arange(3, 5, dtype=t.int32),
    ),
    _factory(
        "zeros",
        lambda t, f: f(3, dtype=t.long, pin_memory=True),
        lambda t: t.tensor([0, 0, 0]),
    ),
)

CLAUSES = (*clauses_of(globals()), *_FACTORIES)
