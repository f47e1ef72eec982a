"""Attention sinks that an operator takes in bfloat16 only, against softmax with a column more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

HEADS, TOKENS, SIZE = 3, 5, 8


class Operator:
    """Attention over given scores; it raises where sinks are not bfloat16, as vLLM's did."""

    def __init__(self, seed: int, scale: float) -> None:
        """Draw scores ``[heads, tokens, tokens]`` and values ``[heads, tokens, size]``."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        shape = (HEADS, TOKENS, TOKENS)
        self.scores = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        self.values = torch.randn((HEADS, TOKENS, SIZE), generator=generator, dtype=torch.float64)
        self.calls = 0

    def exact(self, sinks: torch.Tensor | None) -> torch.Tensor:
        """What attention gives in float64, ``[tokens, heads, size]``."""
        import torch

        scores = self.scores
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(HEADS, TOKENS, 1)
            scores = torch.cat([scores, column], -1)
        weights = scores.softmax(-1)[..., :TOKENS]
        return (weights @ self.values).transpose(0, 1)

    def __call__(self, output: torch.Tensor, s_aux: torch.Tensor | None) -> None:
        """Write ``output``, ``[tokens, heads, size]``."""
        import torch

        self.calls += 1
        if s_aux is not None and s_aux.dtype != torch.bfloat16:
            raise RuntimeError("expected scalar type BFloat16 but found Float")
        output.copy_(self.exact(s_aux))


def attended(operator: Any, sinks: torch.Tensor | None) -> torch.Tensor:
    import torch

    from runner_under_test.patches.sinks import _takes_any_sinks

    def original(output: torch.Tensor, s_aux: torch.Tensor | None) -> None:
        operator(output, s_aux)

    output = torch.empty(TOKENS, HEADS, SIZE)
    _takes_any_sinks(original)(output, s_aux=sinks)
    return output


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("sinks", [(0.3, -1.7, 2.9), (-1e4, 7.77, -9.1), (1e4, 0.0, 12.3)])
def test_sinks_in_float32_are_whole(sinks: tuple[float, ...], scale: float) -> None:
    import torch

    operator = Operator(3, scale)
    whole = torch.tensor(sinks)
    got = attended(operator, whole).double()
    assert torch.allclose(got, operator.exact(whole), rtol=1e-5, atol=1e-6)
    assert operator.calls == 2


def test_a_rounded_sink_would_show() -> None:
    import torch

    operator, whole = Operator(3, 1.0), torch.tensor([0.3, -1.7, 2.9])
    rounded = operator.exact(whole.bfloat16())
    assert not torch.allclose(rounded, operator.exact(whole), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_what_bfloat16_holds_is_computed_once(dtype_name: str) -> None:
    import torch

    operator, sinks = Operator(5, 1.0), torch.tensor([0.5, -2.0, 1.25])
    got = attended(operator, sinks.to(getattr(torch, dtype_name))).double()
    assert torch.allclose(got, operator.exact(sinks))
    assert operator.calls == 1


def test_without_sinks_nothing_changes() -> None:
    import torch

    operator = Operator(7, 1.0)
    assert torch.allclose(attended(operator, None).double(), operator.exact(None))
    assert operator.calls == 1


def test_values_of_nothing_stay_nothing() -> None:
    import torch

    operator = Operator(9, 1.0)
    operator.values.zero_()
    assert not attended(operator, torch.tensor([0.3, -1.7, 2.9])).any()
