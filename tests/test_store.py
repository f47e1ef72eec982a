"""Recorded references: what is written is what is read, and what is missing or stale is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cache import FIXTURES, default_cache
from conformance.cli import main
from conformance.references.reference import (
    GreedyQuery,
    Provenance,
    ReferenceSet,
    SequenceReference,
    StepReference,
)
from conformance.references.store import Record, Store
from conformance.references.transformers_reference import compute
from conformance.scenarios.asking import asked_of_transformers
from conformance.scenarios.checkpoints import checkpoint_hash
from conformance.scenarios.recipes import RECIPES, materialise
from conformance.target import WrongUse

QUERY = GreedyQuery((3, 1), 2)
AGREE = 1e-9
"""Far below a float32 step (1e-6), far above what float64 sums in another order differ by."""


def record(recipe_hash: str = "hash") -> Record:
    steps = (
        StepReference(7, -0.1 - 1e-16, (7, 2), (-0.1 - 1e-16, -3.3)),
        StepReference(2, -1 / 3, (2, 9), (-1 / 3, -2.5)),
    )
    where = Provenance(
        "transformers", {"torch": "2"}, "float64", "a", recipe_hash, "cpu", ("a note",)
    )
    sequence = SequenceReference((3, 1), steps, 2, 10)
    return Record(ReferenceSet(where, (sequence,)), "2026-11-30", "a command")


def test_what_is_read_is_what_was_written_to_the_last_bit(tmp_path: Path) -> None:
    Store(tmp_path).save(record())
    assert Store(tmp_path).load("transformers", "a") == record()
    assert Store(tmp_path).answers("transformers", "a", "hash", [QUERY, QUERY]) == (
        record().references.sequences * 2
    )
    assert [path.suffix for path in sorted((tmp_path / "transformers").iterdir())] == [
        ".json",
        ".safetensors",
    ]


@pytest.mark.parametrize(
    ("recipe", "recipe_hash", "query", "sentence"),
    [
        ("b", "hash", QUERY, "no reference from transformers for b: run"),
        ("a", "other", QUERY, "for a is stale: the recipe of the model has changed since 2026"),
        ("a", "hash", GreedyQuery((3, 1), 3), r"no answer for the prompt \[3, 1\] with 3 tokens"),
        ("a", "hash", GreedyQuery((3, 1), 2, (5,)), "no answer"),
    ],
)
def test_what_is_missing_or_stale_is_one_sentence_with_the_command(
    recipe: str, recipe_hash: str, query: GreedyQuery, sentence: str, tmp_path: Path
) -> None:
    Store(tmp_path).save(record())
    with pytest.raises(WrongUse, match=sentence) as raised:
        Store(tmp_path).answers("transformers", recipe, recipe_hash, [query])
    assert f"vllm-conformance record --source transformers --recipe {recipe}" in str(raised.value)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": "another/1"}'])
def test_a_broken_record_is_one_sentence(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = Store(tmp_path).save(record())
    path.with_suffix(suffix).write_bytes(content)
    with pytest.raises(WrongUse, match="cannot be read"):
        Store(tmp_path).load("transformers", "a")


def test_numbers_of_another_record_are_refused(tmp_path: Path) -> None:
    path = Store(tmp_path).save(record())
    data = json.loads(path.read_text())
    data["sequences"][0]["tokens"].append(4)
    path.write_text(json.dumps(data))
    with pytest.raises(WrongUse, match="numbers for 2 steps, and 3 tokens"):
        Store(tmp_path).load("transformers", "a")


def test_a_store_that_cannot_be_written_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "transformers").write_text("no directory")
    with pytest.raises(WrongUse, match="cannot be written"):
        Store(tmp_path).save(record())
    assert [path.name for path in tmp_path.iterdir()] == ["transformers"]


def test_a_recipe_that_no_scenario_asks_about_is_wrong_use(tmp_path: Path) -> None:
    asked = ["record", "--source", "transformers", "--recipe", "no-such", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert "No scenario is held against transformers on no-such: name one of" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_question_of_the_scenarios_is_recorded_and_nothing_else() -> None:
    store, asked = Store(FIXTURES / "references"), asked_of_transformers()
    assert set(store.recipes("transformers")) == set(asked)
    for recipe, queries in asked.items():
        digest = checkpoint_hash(recipe)
        assert len(store.answers("transformers", recipe, digest, queries)) == len(queries)


def test_a_record_is_what_transformers_computes() -> None:
    """Of one model, computed anew: nobody has edited it, and no other version computes another."""
    stored = Store(FIXTURES / "references").load("transformers", "tiny-llama")
    assert stored is not None
    queries = asked_of_transformers()["tiny-llama"]
    computed = compute(materialise(RECIPES["tiny-llama"], default_cache() / "models"), queries)
    for query, fresh in zip(queries, computed.sequences, strict=True):
        kept = stored.answer(query)
        assert kept is not None
        assert kept.tokens == fresh.tokens
        for mine, other in zip(kept.steps, fresh.steps, strict=True):
            assert mine.top_ids == other.top_ids
            assert mine.top_logprobs == pytest.approx(other.top_logprobs, abs=AGREE)
    assert dataclasses.replace(stored.references.provenance, versions={}) == dataclasses.replace(
        computed.provenance, versions={}
    )
