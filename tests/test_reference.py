"""The float64 reference against a llama written out in numpy, which shares nothing with it.

Rotary angles are applied as complex numbers, attention one head and one position at a time: slow,
and unlike the vectorised code it is held against.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conformance.references.reference import ForcedQuery, GreedyQuery, ReferenceSet
from conformance.references.transformers_reference import ReferenceFailed, compute
from conformance.scenarios.recipes import RECIPES, materialise

Array = npt.NDArray[np.float64]

AGREE = 1e-9
"""Far below what a single float32 step would show (1e-6), far above float64 (4e-14 measured)."""

GREEDY = (GreedyQuery((7,), 10), GreedyQuery((300, 4, 511, 0, 17, 90, 41, 33), 10))
WRONG = (300, 250, 100)


class NumpyLlama:
    """Log-probabilities of the next token, by the published equations, in float64."""

    def __init__(self, checkpoint: Path) -> None:
        from safetensors.numpy import load_file

        self.config: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_text())
        tensors = load_file(checkpoint / "model.safetensors")
        self.weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt(np.mean(x * x) + self.config["rms_norm_eps"])
        normed: Array = x / scale * self.weights[name]
        return normed

    def rotated(self, vector: Array, position: int) -> Array:
        half = len(vector) // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = position * theta ** (-np.arange(half) / half)
        turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag])

    def attention(self, rows: list[Array], layer: str) -> list[Array]:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        size = self.config["head_dim"]
        part = {
            kind: [
                (self.weights[f"{layer}self_attn.{kind}_proj.weight"] @ row).reshape(-1, size)
                for row in rows
            ]
            for kind in "qkv"
        }
        out = []
        for position in range(len(rows)):
            merged = []
            for head in range(heads):
                group = head * groups // heads
                query = self.rotated(part["q"][position][head], position)
                scores = np.array(
                    [
                        query @ self.rotated(part["k"][past][group], past) / np.sqrt(size)
                        for past in range(position + 1)
                    ]
                )
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                merged.append(
                    sum(share * part["v"][past][group] for past, share in enumerate(shares))
                )
            out.append(self.weights[f"{layer}self_attn.o_proj.weight"] @ np.concatenate(merged))
        return out

    def mlp(self, x: Array, layer: str) -> Array:
        gate = self.weights[f"{layer}mlp.gate_proj.weight"] @ x
        up = self.weights[f"{layer}mlp.up_proj.weight"] @ x
        inner = gate / (1 + np.exp(-gate)) * up
        out: Array = self.weights[f"{layer}mlp.down_proj.weight"] @ inner
        return out

    def logprobs(self, tokens: tuple[int, ...]) -> Array:
        """(positions, vocabulary): row i is about the token after position i."""
        rows = [self.weights["model.embed_tokens.weight"][token] for token in tokens]
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}."
            normed = [self.norm(row, f"{layer}input_layernorm.weight") for row in rows]
            attended = self.attention(normed, layer)
            rows = [row + more for row, more in zip(rows, attended, strict=True)]
            after = f"{layer}post_attention_layernorm.weight"
            rows = [row + self.mlp(self.norm(row, after), layer) for row in rows]
        final = np.stack([self.norm(row, "model.norm.weight") for row in rows])
        logits = final @ self.weights["lm_head.weight"].T
        logprobs: Array = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return logprobs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return materialise(RECIPES["tiny-llama"], tmp_path_factory.mktemp("recipes"))


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> ReferenceSet:
    """One child process for the whole module: greedy, forced, and stopping queries."""
    forced = ForcedQuery(GREEDY[1].prompt, WRONG, ((1, 2), (), (511, 3)))
    stop = GreedyQuery(GREEDY[0].prompt, 10, stop_ids=tuple(range(200, 512)))
    return compute(checkpoint, [*GREEDY, forced, stop])


@pytest.fixture(scope="module")
def numpy_llama(checkpoint: Path) -> NumpyLlama:
    return NumpyLlama(checkpoint)


def test_every_logprob_agrees_with_the_numpy_llama(
    answers: ReferenceSet, numpy_llama: NumpyLlama
) -> None:
    for sequence in answers.sequences:
        logprobs = numpy_llama.logprobs(sequence.prompt + sequence.tokens)
        for row, step in zip(logprobs[len(sequence.prompt) - 1 : -1], sequence.steps, strict=True):
            for token, value in step.known.items():
                assert abs(row[token] - value) < AGREE


def test_top_tokens_are_the_numpy_llamas_best_first(
    answers: ReferenceSet, numpy_llama: NumpyLlama
) -> None:
    for sequence in answers.sequences:
        logprobs = numpy_llama.logprobs(sequence.prompt + sequence.tokens)
        for row, step in zip(logprobs[len(sequence.prompt) - 1 : -1], sequence.steps, strict=True):
            assert step.top_ids == tuple(np.argsort(-row)[:20].tolist())


def test_greedy_tokens_are_the_best_ones_and_vary(answers: ReferenceSet) -> None:
    for query, sequence in zip(GREEDY, answers.sequences, strict=False):
        assert sequence.prompt == query.prompt
        assert sequence.tokens == tuple(step.top_ids[0] for step in sequence.steps)
        assert len(sequence.tokens) == 10
        assert len(set(sequence.tokens)) > 5


def test_stop_token_ends_the_continuation_and_belongs_to_it(answers: ReferenceSet) -> None:
    free, stopped = answers.sequences[0], answers.sequences[3]
    first = next(index for index, token in enumerate(free.tokens) if token >= 200)
    assert stopped.tokens == free.tokens[: first + 1]
    assert stopped.max_tokens == 10


def test_forced_continuation_is_scored_with_the_requested_ids(answers: ReferenceSet) -> None:
    scored = answers.sequences[2]
    assert scored.tokens == WRONG
    assert [sorted(step.requested) for step in scored.steps] == [[1, 2], [], [3, 511]]
    assert all(step.logprob <= step.best[1] for step in scored.steps)


def test_provenance_says_what_computed_what(answers: ReferenceSet) -> None:
    where = answers.provenance
    assert (where.source, where.dtype, where.device) == ("transformers", "float64", "cpu")
    assert where.recipe == "tiny-llama"
    assert sorted(where.versions) == ["torch", "transformers"]


def test_draft_model_agrees_with_some_greedy_tokens_and_not_with_all(
    answers: ReferenceSet, tmp_path: Path
) -> None:
    draft = NumpyLlama(materialise(RECIPES["tiny-llama-draft"], tmp_path))
    accepted = []
    for sequence in answers.sequences[:2]:
        logprobs = draft.logprobs(sequence.prompt + sequence.tokens)
        drafted = logprobs[len(sequence.prompt) - 1 : -1].argmax(axis=1)
        accepted += (drafted == sequence.tokens).tolist()
    assert 0.2 < np.mean(accepted) < 0.9


def test_token_outside_the_vocabulary_fails_with_what_is_wrong(checkpoint: Path) -> None:
    with pytest.raises(ReferenceFailed, match=r"outside the vocabulary of 512: \[512\]"):
        compute(checkpoint, [ForcedQuery((512,), (1,))])


def test_asking_imports_neither_torch_nor_transformers(checkpoint: Path) -> None:
    code = (
        "import sys, conformance.references.bounds, conformance.references.compare; "
        "from conformance.references.transformers_reference import *; "
        "from pathlib import Path\n"
        "try: compute(Path(sys.argv[1]), [], python='false')\n"
        "except ReferenceFailed: print({'torch', 'transformers', 'vllm'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(checkpoint)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
