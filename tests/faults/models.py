"""Faults of models, one worker class each: what a layer forgets, or has off by one.

`tests/test_model_faults.py` names the scenario for each. They change the loaded model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from runner_under_test.worker import CPUWorker


class _Changed(CPUWorker):
    """Changes the model after it is loaded."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, and change."""
        super().load_model(*args, **kwargs)
        self.change()

    def change(self) -> None:
        """Change the loaded model."""
        raise NotImplementedError

    def layers(self, attribute: str) -> Iterator[Any]:
        """The model's modules that have an attribute; at least one has."""
        found = [m for m in self.model_runner.model.modules() if hasattr(m, attribute)]
        if not found:
            raise RuntimeError(f"no module has {attribute}: the fault is nowhere")
        yield from found


class LooksBackOneMore(_Changed):
    """Has windows that are longer by one token."""

    def change(self) -> None:
        """Add one to each window."""
        for layer in self.layers("impl"):
            if layer.impl.sliding_window != -1:
                layer.impl.sliding_window += 1


class CapsNoScores(_Changed):
    """Leaves attention scores as high as they are."""

    def change(self) -> None:
        """Take every cap away."""
        for layer in self.layers("impl"):
            layer.impl.logits_soft_cap = 0


class IgnoresTheRotaryBase(_Changed):
    """Rotates by the usual base, whatever was configured."""

    def change(self) -> None:
        """Compute the angles anew."""
        for rotary in self.layers("cos_sin_cache"):
            rotary.base = 10000.0
            rotary.cos_sin_cache = rotary._compute_cos_sin_cache().to(rotary.cos_sin_cache.dtype)


class PairsOtherHalves(_Changed):
    """Takes neighbours for pairs, or halves where neighbours are."""

    def change(self) -> None:
        """Turn the style of each rotation around."""
        for rotary in self.layers("is_neox_style"):
            rotary.is_neox_style = not rotary.is_neox_style


class TurnsTheSlopesAround(_Changed):
    """Has ALiBi's slopes in the wrong order."""

    def change(self) -> None:
        """Turn the slopes around."""
        for layer in self.layers("impl"):
            layer.impl.alibi_slopes = layer.impl.alibi_slopes.flip(0)


class ForgetsTheSinks(_Changed):
    """Lets all of the attention go to tokens."""

    def change(self) -> None:
        """Take the sinks away."""
        for layer in self.layers("impl"):
            layer.impl.sinks = torch.full_like(layer.impl.sinks, -1e4)


class DecaysByOtherRates(_Changed):
    """Lets the states of Mamba 1 decay by the rates of other channels."""

    def change(self) -> None:
        """Turn the rates around, from channel to channel."""
        for layer in self.layers("A"):
            layer.A.data = layer.A.data.flip(0)
