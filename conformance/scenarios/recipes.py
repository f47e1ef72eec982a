"""Model recipes: what a scenario's model is, as data, and how it becomes a checkpoint on disk.

A recipe names everything that decides the bytes of the weights, so two machines that materialise
the same recipe hold the same file, and a recorded reference can say which model it speaks of by the
recipe's hash. Nothing here imports torch, transformers or vLLM: recipes are materialised in the
parent process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.scenarios.families import FAMILIES, Family
from conformance.scenarios.layouts import layout
from conformance.scenarios.smollm2 import (
    SMOLLM2_CONFIG,
    SMOLLM2_PACKAGE,
    PackagedWeights,
    PackageMissing,
    find_gguf,
)
from conformance.scenarios.weights import (
    Drawn,
    LlamaShape,
    WeightScales,
    drawing,
    drawn_weights,
    llama_weights,
    perturbed,
    rounded,
)

__all__ = ["RECIPES", "ModelRecipe", "materialise", "recipe_hash", "recipe_of"]

_FORMAT = 1
"""Goes up when the writer changes what it writes: older cached checkpoints are then left alone."""

_RECIPE_FILE = "recipe.json"


@dataclass(frozen=True)
class ModelRecipe:
    """One model, described completely.

    Exactly one origin of weights: ``scales`` (a llama, drawn from ``seed``), ``drawn`` (the tensors
    of the layout of that name, drawn from ``seed``), ``derived_from`` with ``perturbation``
    (another recipe's weights plus noise of that relative size, drawn from ``seed``), or ``package``
    (weights that an installed distribution carries).

    ``config`` is the checkpoint's ``config.json``; ``dtype`` is that of the stored weights, and
    ``grain``, where it is not 0, what all of them are rounded to multiples of.
    ``tokenizer`` is ``words`` (a word per id) or ``bytes`` (every byte, and pairs of letters and
    digits); a packaged model brings its own. ``why`` says what the recipe is for; it is no part of
    the hash.
    """

    name: str
    config: Mapping[str, Any]
    seed: int = 0
    dtype: str = "float32"
    scales: WeightScales | None = None
    drawn: tuple[Drawn, ...] | None = None
    derived_from: str | None = None
    perturbation: float = 0.0
    grain: float = 0.0
    package: PackagedWeights | None = None
    tokenizer: str = "words"
    why: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        origins = (self.scales, self.drawn, self.derived_from, self.package)
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError(
                f"recipe {self.name}: give one of scales, drawn, derived_from, package"
            )
        if (self.derived_from is None) != (self.perturbation == 0.0):
            raise ValueError(f"recipe {self.name}: derived_from and perturbation go together")
        if self.dtype != "float32":
            raise ValueError(f"recipe {self.name}: only float32 weights are written")
        if self.tokenizer not in ("words", "bytes"):
            raise ValueError(f"recipe {self.name}: no tokenizer {self.tokenizer!r}")
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    @property
    def vocab_size(self) -> int:
        """Number of token ids; valid ids are ``0 .. vocab_size - 1``."""
        return int(self.config["vocab_size"])


_TINY_SCALES = WeightScales(
    embedding=0.5,
    query_key=0.15,
    value=0.25,
    attention_out=0.4,
    mlp_in=0.2,
    mlp_out=0.3,
    norm=0.25,
    head=0.6,
)

_TINY_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    # Not the usual 10000: code that ignores the configured base must show.
    "rope_theta": 20000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "rms_norm_eps": 1e-05,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}

_ALL = (
    ModelRecipe(
        name="tiny-llama",
        config=_TINY_CONFIG,
        seed=41033,
        scales=_TINY_SCALES,
        why="Two layers with grouped heads, seconds to load; greedy text varies, and near-ties are "
        "rare. Divides for tensor parallel 2 (4 query heads, 2 key/value heads).",
    ),
    ModelRecipe(
        name="tiny-llama-draft",
        config=_TINY_CONFIG,
        seed=1,
        derived_from="tiny-llama",
        perturbation=0.08,
        why="Drafts for tiny-llama: agrees with it on some greedy tokens and not on others.",
    ),
    ModelRecipe(
        name="tiny-llama-8",
        config={**_TINY_CONFIG, "num_hidden_layers": 8},
        seed=8,
        scales=_TINY_SCALES,
        why="tiny-llama with eight layers: an EAGLE-3 head taps the states of three of its target.",
    ),
    ModelRecipe(
        name="tiny-llama-grained",
        config=_TINY_CONFIG,
        seed=41033,
        scales=_TINY_SCALES,
        grain=1 / 128,
        why="tiny-llama with weights that float32, bfloat16 and float16 all hold: what a precision "
        "changes is what is computed, not the model.",
    ),
    ModelRecipe(
        name="tiny-llama-bytes",
        config=_TINY_CONFIG,
        seed=41033,
        scales=_TINY_SCALES,
        tokenizer="bytes",
        why="tiny-llama with a tokenizer that can write anything, for grammars.",
    ),
    ModelRecipe(
        name="smollm2-135m",
        config=SMOLLM2_CONFIG,
        package=SMOLLM2_PACKAGE,
        why="A real model that answers questions. 9 query and 3 key/value heads: no tensor "
        "parallel 2.",
    ),
)


def _of(family: Family) -> ModelRecipe:
    return ModelRecipe(
        name=family.name,
        config=family.configuration,
        seed=family.seed,
        drawn=family.rows,
        why=family.why,
    )


RECIPES: Mapping[str, ModelRecipe] = MappingProxyType(
    {recipe.name: recipe for recipe in (*_ALL, *map(_of, FAMILIES.values()))}
)
"""Every known recipe by its name."""


def _canonical(recipe: ModelRecipe) -> dict[str, Any]:
    """The recipe as JSON-able data, its base included; what the hash is taken of."""
    data: dict[str, Any] = {
        "format": _FORMAT,
        "name": recipe.name,
        "config": dict(recipe.config),
        "seed": recipe.seed,
        "dtype": recipe.dtype,
    }
    if recipe.scales is not None:
        data["scales"] = vars(recipe.scales)
    if recipe.drawn is not None:
        data["tensors"] = drawing(layout(recipe.name), recipe.drawn)
    if recipe.derived_from is not None:
        data["derived_from"] = _canonical(_base(recipe))
        data["perturbation"] = recipe.perturbation
    if recipe.package is not None:
        data["package"] = vars(recipe.package)
    if recipe.grain:
        data["grain"] = recipe.grain
    if recipe.tokenizer != "words":
        data["tokenizer"] = recipe.tokenizer
    return data


def _base(recipe: ModelRecipe) -> ModelRecipe:
    assert recipe.derived_from is not None
    try:
        return RECIPES[recipe.derived_from]
    except KeyError:
        raise KeyError(f"recipe {recipe.name}: no recipe {recipe.derived_from!r}") from None


def recipe_hash(recipe: ModelRecipe) -> str:
    """SHA-256, hex, of the recipe as canonical JSON (sorted keys, no spaces, ASCII).

    It covers the format number of the writer and, for a derived recipe, the base's whole recipe.
    Errors: KeyError when ``derived_from`` names no recipe.
    """
    text = json.dumps(
        _canonical(recipe),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def recipe_of(checkpoint: Path) -> tuple[str, str] | None:
    """``(name, hash)`` of the recipe a checkpoint directory was made from; None when unknown."""
    try:
        data = json.loads((checkpoint / _RECIPE_FILE).read_text(encoding="utf-8"))
        return str(data["recipe"]["name"]), str(data["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def materialise(recipe: ModelRecipe, cache: Path) -> Path:
    """The recipe's checkpoint directory under ``cache``, written if it is not there yet.

    The directory is named after the recipe and its hash and holds ``config.json``,
    ``generation_config.json``, ``model.safetensors``, a tokenizer and ``recipe.json``. It is
    written beside its final name and renamed, so a directory that exists is complete, and of two
    processes that write at once the later one throws its copy away.

    Errors: KeyError (unknown base recipe), OSError (cache cannot be written), and for a packaged
    model PackageMissing, which says what to install, or RuntimeError when its conversion fails.
    """
    digest = recipe_hash(recipe)
    final = cache / f"{recipe.name}-{digest[:16]}"
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=cache))
    try:
        if recipe.package is not None:
            find_gguf(recipe.package)
            _convert_package(scratch)
        else:
            _write_drawn(recipe, scratch)
        _write_json(scratch / "config.json", dict(recipe.config))
        special = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(
            scratch / "generation_config.json", {key: recipe.config[key] for key in special}
        )
        _write_json(scratch / _RECIPE_FILE, {"hash": digest, "recipe": _canonical(recipe)})
        # mkdtemp and safetensors make theirs private; a cache may be shared.
        for path in scratch.iterdir():
            path.chmod(0o644)
        scratch.chmod(0o755)
        try:
            scratch.rename(final)
        except OSError:
            # A directory that is not empty cannot be replaced: another process was first.
            if not final.is_dir():
                raise
        return final
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _shape(recipe: ModelRecipe) -> LlamaShape:
    config = recipe.config
    return LlamaShape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
    )


def _weights(recipe: ModelRecipe) -> tuple[dict[str, Any], WeightScales]:
    """Tensors by name (float32 numpy arrays), and the scales that they were drawn with."""
    if recipe.scales is not None:
        return llama_weights(_shape(recipe), recipe.seed, recipe.scales), recipe.scales
    base, scales = _weights(_base(recipe))
    return perturbed(base, _shape(recipe), recipe.seed, scales, recipe.perturbation), scales


def _write_drawn(recipe: ModelRecipe, directory: Path) -> None:
    from safetensors.numpy import save_file

    if recipe.drawn is not None:
        weights = drawn_weights(layout(recipe.name), recipe.seed, recipe.drawn)
    else:
        weights, _ = _weights(recipe)
    if recipe.grain:
        weights = {name: rounded(tensor, recipe.grain) for name, tensor in weights.items()}
    # The tag tells transformers that the tensors are laid out as PyTorch has them.
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    write = _write_byte_tokenizer if recipe.tokenizer == "bytes" else _write_word_tokenizer
    write(recipe.vocab_size, directory)


_SPECIAL = ["<unk>", "<s>", "</s>"]


def _write_word_tokenizer(vocab_size: int, directory: Path) -> None:
    """A tokenizer with one made-up word per id, so that ids -> text -> ids gives the same ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = _SPECIAL + [f"w{index:04d}" for index in range(len(_SPECIAL), vocab_size)]
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _write_tokenizer(tokenizer, directory)


def _write_byte_tokenizer(vocab_size: int, directory: Path) -> None:
    """A tokenizer with a token per byte, and pairs that text never becomes: nothing is merged."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    pairs = [one + other for one in letters for other in letters]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: i for i, word in enumerate((_SPECIAL + symbols + pairs)[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _write_tokenizer(tokenizer, directory)


def _write_tokenizer(tokenizer: Any, directory: Path) -> None:
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<unk>",
            "clean_up_tokenization_spaces": False,
        },
    )


def _convert_package(directory: Path) -> None:
    """Weights and tokenizer of the packaged model, from a child that gives its memory back."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "conformance.scenarios.smollm2", str(directory)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        kind = PackageMissing if done.returncode == 2 else RuntimeError
        raise kind(f"smollm2-135m could not be converted: {lines[-1]}")
