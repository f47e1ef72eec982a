"""The recorded references: per source and model recipe, what the source answered to each query.

A record is two files: ``<recipe>.json`` with the provenance and the tokens, and
``<recipe>.safetensors`` with the numbers. Of ``steps`` positions in all, in the order of the
sequences, it has

- ``logprobs``, float64 [steps]: the log-probability of each sequence's own tokens;
- ``top_ids``, int32 [steps, k], and ``top_logprobs``, float64 [steps, k]: the likeliest tokens.

Log-probabilities are in nats. Nothing here computes a reference, or imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.references.reference import (
    GreedyQuery,
    Provenance,
    ReferenceSet,
    SequenceReference,
    StepReference,
)
from conformance.target import WrongUse

__all__ = ["Record", "Store"]

SCHEMA = "vllm-conformance/references/1"

_FOLDERS = {"cuda": "cuda/transformers"}
"""Where records of a source lie, if not in a folder of its name: a GPU has more than these."""


@dataclass(frozen=True)
class Record:
    """What one source answered for one recipe, and when and by which command it was asked."""

    references: ReferenceSet
    recorded: str
    """The date, as ISO 8601 has it."""
    command: str

    def answer(self, query: GreedyQuery) -> SequenceReference | None:
        """The answer to a query; None if it was not asked."""
        for sequence in self.references.sequences:
            if (sequence.prompt, sequence.max_tokens, sequence.stop_ids) == (
                query.prompt,
                query.max_tokens,
                query.stop_ids,
            ):
                return sequence
        return None


class Store:
    """The records below a directory: ``<root>/<source>/<recipe>.json`` and ``.safetensors``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[tuple[str, str], Record] = {}

    def answers(
        self, source: str, recipe: str, recipe_hash: str, queries: Sequence[GreedyQuery]
    ) -> tuple[SequenceReference, ...]:
        """Return the recorded answers to ``queries``, in order.

        Raises:
            WrongUse: there is no record, it cannot be read, it is of another model, or it has no
                answer to one of the queries. The sentence says which command records it.
        """
        again = f"run `vllm-conformance record --source {source} --recipe {recipe}`"
        record = self.load(source, recipe)
        if record is None:
            raise WrongUse(f"There is no reference from {source} for {recipe}: {again}.")
        if record.references.provenance.recipe_hash != recipe_hash:
            raise WrongUse(
                f"The reference from {source} for {recipe} is stale: the recipe of the model has "
                f"changed since {record.recorded}; {again}."
            )
        found = [record.answer(query) for query in queries]
        answers = tuple(answer for answer in found if answer is not None)
        if len(answers) < len(queries):
            missing = queries[found.index(None)]
            raise WrongUse(
                f"The reference from {source} for {recipe} has no answer for the prompt "
                f"{list(missing.prompt[:8])}{'...' if len(missing.prompt) > 8 else ''} "
                f"with {missing.max_tokens} tokens: {again}."
            )
        return answers

    def load(self, source: str, recipe: str) -> Record | None:
        """Return a record; None if there is none.

        Raises:
            WrongUse: it cannot be read, or is not of this schema.
        """
        key = (source, recipe)
        if key not in self._read:
            path = self._path(source, recipe)
            if not path.exists():
                return None
            try:
                self._read[key] = _record(json.loads(path.read_text()), _numbers(path))
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                raise WrongUse(
                    f"{path.name} of the references from {source} cannot be read ({error}): run "
                    f"`vllm-conformance record --source {source} --recipe {recipe}`."
                ) from error
        return self._read[key]

    def save(self, record: Record) -> Path:
        """Write a record, in place of an older one, and return the path of its JSON.

        Raises:
            WrongUse: the directory cannot be written; what was there stays.
        """
        from safetensors.numpy import save

        where = record.references.provenance
        path = self._path(where.source, where.recipe)
        data, numbers = _plain(record)
        # The tokens last: without them nothing is read, and numbers of another record are refused.
        parts = [
            (path.with_suffix(".safetensors"), save(numbers)),
            (path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()),
        ]
        unfinished = [file.with_suffix(f"{file.suffix}.{os.getpid()}.part") for file, _ in parts]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for (_, content), part in zip(parts, unfinished, strict=True):
                part.write_bytes(content)
            for (file, _), part in zip(parts, unfinished, strict=True):
                part.replace(file)
        except OSError as error:
            raise WrongUse(f"{self.root} cannot be written ({error}): name another.") from error
        finally:
            for part in unfinished:
                with suppress(OSError):  # there, or its directory is not
                    part.unlink()
        self._read[where.source, where.recipe] = record
        return path

    def recipes(self, source: str) -> tuple[str, ...]:
        """The recipes that a source has records for, in alphabetical order."""
        return tuple(sorted(path.stem for path in self._path(source, "x").parent.glob("*.json")))

    def _path(self, source: str, recipe: str) -> Path:
        return self.root / _FOLDERS.get(source, source) / f"{recipe}.json"


def _numbers(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        numbers: Mapping[str, Any] = load_file(path.with_suffix(".safetensors"))
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return numbers


def _record(data: Mapping[str, Any], numbers: Mapping[str, Any]) -> Record:
    if data.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {data.get('schema')!r}, not {SCHEMA!r}")
    where = Provenance(**{**data["provenance"], "notes": tuple(data["provenance"]["notes"])})
    own, top_ids = numbers["logprobs"].tolist(), numbers["top_ids"].tolist()
    top_logprobs = numbers["top_logprobs"].tolist()
    count = sum(len(item["tokens"]) for item in data["sequences"])
    if not len(own) == len(top_ids) == len(top_logprobs) == count:
        raise ValueError(f"numbers for {len(own)} steps, and {count} tokens")
    sequences, at = [], 0
    for item in data["sequences"]:
        steps = tuple(
            StepReference(token, own[i], tuple(top_ids[i]), tuple(top_logprobs[i]))
            for i, token in enumerate(item["tokens"], start=at)
        )
        at += len(steps)
        sequences.append(
            SequenceReference(
                prompt=tuple(item["prompt"]),
                steps=steps,
                max_tokens=item["max_tokens"],
                vocab_size=item["vocab_size"],
                stop_ids=tuple(item["stop_ids"]),
            )
        )
    return Record(ReferenceSet(where, tuple(sequences)), data["recorded"], data["command"])


def _plain(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    import numpy as np

    where, sequences = record.references.provenance, record.references.sequences
    steps: list[StepReference] = [step for sequence in sequences for step in sequence.steps]
    data = {
        "schema": SCHEMA,
        "provenance": asdict(where),
        "recorded": record.recorded,
        "command": record.command,
        "sequences": [
            {
                "prompt": list(sequence.prompt),
                "tokens": list(sequence.tokens),
                "max_tokens": sequence.max_tokens,
                "vocab_size": sequence.vocab_size,
                "stop_ids": list(sequence.stop_ids),
            }
            for sequence in sequences
        ],
    }
    numbers = {
        "logprobs": np.array([step.logprob for step in steps], np.float64),
        "top_ids": np.array(_column(step.top_ids for step in steps), np.int32),
        "top_logprobs": np.array(_column(step.top_logprobs for step in steps), np.float64),
    }
    return data, numbers


def _column(rows: Iterable[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in rows]
