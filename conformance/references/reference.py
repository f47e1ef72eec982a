"""Reference outputs as data: what was asked, what a source answered, and where it comes from.

All log-probabilities are natural logarithms (nats) of the softmax over the whole vocabulary. A
*step* is one generated position: step 0 is the token after the prompt.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ForcedQuery",
    "GreedyQuery",
    "Provenance",
    "Query",
    "ReferenceSet",
    "SequenceReference",
    "StepReference",
    "query_from_json",
    "query_to_json",
    "reference_set_from_json",
    "reference_set_to_json",
]

SCHEMA = 1


@dataclass(frozen=True)
class GreedyQuery:
    """Continue ``prompt`` (token ids, not empty) with the likeliest token, ``max_tokens`` times.

    A token of ``stop_ids`` ends the continuation and is its last token.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a prompt needs at least one token")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, needs at least 1")


@dataclass(frozen=True)
class ForcedQuery:
    """Score a given ``continuation`` of ``prompt``: the reference's view of another's choices.

    ``requested`` is empty, or names for each step further token ids whose log-probability is
    wanted besides the continuation's own token and the top ones. With ``logits`` every step's whole
    row of logits is wanted too.
    """

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    requested: tuple[tuple[int, ...], ...] = ()
    logits: bool = False

    def __post_init__(self) -> None:
        if not self.prompt or not self.continuation:
            raise ValueError("a prompt and a continuation need at least one token each")
        if self.requested and len(self.requested) != len(self.continuation):
            raise ValueError(
                f"requested ids for {len(self.requested)} steps of {len(self.continuation)}"
            )


Query = GreedyQuery | ForcedQuery


@dataclass(frozen=True)
class Provenance:
    """Where a reference comes from.

    ``source`` is ``transformers``, ``gpu-code`` or ``cuda``; ``versions`` maps distributions to
    versions; ``dtype`` is the arithmetic's; ``device`` is torch's name of it. ``notes`` say what
    the source does not vouch for, or how it was made to compute as ``dtype`` says.
    """

    source: str
    versions: Mapping[str, str]
    dtype: str
    recipe: str
    recipe_hash: str
    device: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepReference:
    """The reference's distribution at one step.

    ``token`` is the continuation's token there and ``logprob`` its log-probability. ``top_ids`` and
    ``top_logprobs`` are the likeliest tokens, best first, equals by ascending id. ``requested`` has
    the ids that were asked for besides; ``logits``, where they were asked for, the model's own of
    every token id, from which the log-probabilities differ by a constant.
    """

    token: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    requested: Mapping[int, float] = field(default_factory=dict)
    logits: tuple[float, ...] = ()

    @property
    def best(self) -> tuple[int, float]:
        """Id and log-probability of the likeliest token."""
        return self.top_ids[0], self.top_logprobs[0]

    @property
    def known(self) -> dict[int, float]:
        """Every log-probability known at this step, by token id."""
        top = dict(zip(self.top_ids, self.top_logprobs, strict=True))
        return {**self.requested, **top, self.token: self.logprob}


@dataclass(frozen=True)
class SequenceReference:
    """A prompt with a continuation of one `StepReference` per token.

    ``max_tokens`` and ``stop_ids`` say when a continuation is complete (see `GreedyQuery`); a
    scored one (`ForcedQuery`) is as long as it was given.
    """

    prompt: tuple[int, ...]
    steps: tuple[StepReference, ...]
    max_tokens: int
    vocab_size: int
    stop_ids: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The continuation's token ids."""
        return tuple(step.token for step in self.steps)


@dataclass(frozen=True)
class ReferenceSet:
    """Answers to a list of queries, in the order of the queries, from one source."""

    provenance: Provenance
    sequences: tuple[SequenceReference, ...]


def query_to_json(query: Query) -> dict[str, Any]:
    """JSON-able form of a query."""
    if isinstance(query, GreedyQuery):
        return {
            "kind": "greedy",
            "prompt": list(query.prompt),
            "max_tokens": query.max_tokens,
            "stop_ids": list(query.stop_ids),
        }
    return {
        "kind": "forced",
        "prompt": list(query.prompt),
        "continuation": list(query.continuation),
        "requested": [list(ids) for ids in query.requested],
        **({"logits": True} if query.logits else {}),
    }


def query_from_json(data: Mapping[str, Any]) -> Query:
    """Inverse of `query_to_json`; ValueError for an unknown kind."""
    prompt = tuple(data["prompt"])
    if data["kind"] == "greedy":
        return GreedyQuery(prompt, data["max_tokens"], tuple(data["stop_ids"]))
    if data["kind"] == "forced":
        requested = tuple(tuple(ids) for ids in data["requested"])
        continuation = tuple(data["continuation"])
        return ForcedQuery(prompt, continuation, requested, data.get("logits", False))
    raise ValueError(f"unknown kind of query: {data['kind']!r}")


def reference_set_to_json(references: ReferenceSet) -> dict[str, Any]:
    """JSON-able form of a set; floats survive JSON exactly (shortest round-trip text)."""
    where = references.provenance
    return {
        "schema": SCHEMA,
        "provenance": {
            "source": where.source,
            "versions": dict(where.versions),
            "dtype": where.dtype,
            "recipe": where.recipe,
            "recipe_hash": where.recipe_hash,
            "device": where.device,
            "notes": list(where.notes),
        },
        "sequences": [_sequence_to_json(sequence) for sequence in references.sequences],
    }


def reference_set_from_json(data: Mapping[str, Any]) -> ReferenceSet:
    """Inverse of `reference_set_to_json`; ValueError for another schema."""
    if data.get("schema") != SCHEMA:
        raise ValueError(f"reference schema {data.get('schema')!r}, expected {SCHEMA}")
    where = dict(data["provenance"])
    where["notes"] = tuple(where["notes"])
    return ReferenceSet(Provenance(**where), _sequences_from_json(data["sequences"]))


def _sequence_to_json(sequence: SequenceReference) -> dict[str, Any]:
    return {
        "prompt": list(sequence.prompt),
        "max_tokens": sequence.max_tokens,
        "vocab_size": sequence.vocab_size,
        "stop_ids": list(sequence.stop_ids),
        "steps": [
            {
                "token": step.token,
                "logprob": step.logprob,
                "top_ids": list(step.top_ids),
                "top_logprobs": list(step.top_logprobs),
                "requested": {str(id_): value for id_, value in step.requested.items()},
                **({"logits": _packed(step.logits)} if step.logits else {}),
            }
            for step in sequence.steps
        ],
    }


def _sequences_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[SequenceReference, ...]:
    return tuple(
        SequenceReference(
            prompt=tuple(item["prompt"]),
            steps=tuple(
                StepReference(
                    token=step["token"],
                    logprob=step["logprob"],
                    top_ids=tuple(step["top_ids"]),
                    top_logprobs=tuple(step["top_logprobs"]),
                    requested={int(id_): value for id_, value in step["requested"].items()},
                    logits=_unpacked(step.get("logits", "")),
                )
                for step in item["steps"]
            ),
            max_tokens=item["max_tokens"],
            vocab_size=item["vocab_size"],
            stop_ids=tuple(item["stop_ids"]),
        )
        for item in data
    )


def _packed(values: Sequence[float]) -> str:
    """Float64 values, little endian, in base64: a row of logits as text is four times as long."""
    return base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode("ascii")


def _unpacked(text: str) -> tuple[float, ...]:
    data = base64.b64decode(text)
    return struct.unpack(f"<{len(data) // 8}d", data)
