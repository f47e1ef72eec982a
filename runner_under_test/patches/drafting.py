"""A draft model that captures CUDA graphs of its own, whatever the device is."""

from __future__ import annotations

from typing import Any

import torch

from runner_under_test.patches.patch import Patch

_PROPOSER = "vllm.v1.spec_decode.gemma4.Gemma4Proposer"
_REMOVE_WHEN = "Gemma4Proposer captures graphs only where the platform has them"


def _captures_nothing(_: Any) -> Any:
    def stand_in_setup_centroids_cuda_graphs(self: Any) -> None:
        """Leave the drafter without graphs: there is no device whose launches they would save."""

    return stand_in_setup_centroids_cuda_graphs


def _samples_without_graphs(_: Any) -> Any:
    def stand_in_greedy_sample(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each row, computed as the graphs would, but at once."""
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

        if getattr(self.model, "masked_embedding", None) is not None:
            tokens: torch.Tensor = self.model.get_top_tokens(hidden_states)
        else:
            tokens = SpecDecodeBaseProposer._greedy_sample(self, hidden_states)
        return tokens

    return stand_in_greedy_sample


PATCHES = (
    Patch(
        target=f"{_PROPOSER}._setup_centroids_cuda_graphs",
        build=_captures_nothing,
        why="when a Gemma 4 draft model with centroids is loaded, it captures CUDA graphs, "
        "whatever the device is; without CUDA that raises RuntimeError",
        remove_when=_REMOVE_WHEN,
    ),
    Patch(
        target=f"{_PROPOSER}._greedy_sample",
        build=_samples_without_graphs,
        why="it replays those graphs, and without them goes another way than a GPU does: "
        "here it computes what the graphs would have computed",
        remove_when=_REMOVE_WHEN,
    ),
)
