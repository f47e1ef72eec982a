"""What a request must get: where it stops, what it may draw, and how often. Pure data and numpy.

The word tokenizer of the recipes writes token 123 as ``w0123``, words apart by a space, and the
three special ones (0 to 2; 2 ends a text) not at all.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.references.reference import ForcedQuery, SequenceReference, StepReference
from conformance.references.sampler import Distribution, Settings, distribution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "END_OF_TEXT",
    "Ending",
    "conforms",
    "distributions",
    "ending",
    "settings_of",
    "text_probabilities",
    "text_queries",
    "words",
]

END_OF_TEXT = 2


def words(tokens: Sequence[int]) -> str:
    """The text that tokens add to a text before them, under the word tokenizer."""
    return "".join(f" w{token:04d}" for token in tokens if token > END_OF_TEXT)


def settings_of(parameters: Mapping[str, Any]) -> Settings:
    """The float64 sampler's settings of a request to a model with the word tokenizer.

    ``min_tokens`` excludes the end of the text whether it would be ignored or not.
    """
    bad = [
        tuple(int(word[1:]) for word in text.split()) for text in parameters.get("bad_words", ())
    ]
    stops = [*parameters.get("stop_token_ids", ()), END_OF_TEXT]
    return Settings.of({**parameters, "stop_token_ids": stops}, bad)


@dataclass(frozen=True)
class Ending:
    """Where a request must end: its tokens, its text, why, and at what."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: int | str | None


def ending(whole: Sequence[int], parameters: Mapping[str, Any]) -> Ending:
    """Where a request ends whose continuation without stops is ``whole``, by vLLM's documentation.

    Of several reasons at one token the end of the text comes first, then stop tokens, then stop
    texts, then the limit. A text stops at the first of its stop texts, and is cut before it unless
    ``include_stop_str_in_output``.
    Errors: ValueError when ``whole`` is too short to tell.
    """
    limit = parameters["max_tokens"]
    for count in range(1, min(limit, len(whole)) + 1):
        tokens = tuple(whole[:count])
        text, last = words(tokens), tokens[-1]
        if last == END_OF_TEXT and not parameters.get("ignore_eos", False):
            return Ending(tokens, text, "stop", None)
        if last in parameters.get("stop_token_ids", ()):
            # A token that is a stop is not part of the text, unless it was asked for.
            return Ending(tokens, words(tokens[:-1]), "stop", last)
        found = [(text.find(stop), stop) for stop in parameters.get("stop", ()) if stop in text]
        if found:
            where, stop = min(found)
            included = parameters.get("include_stop_str_in_output", False)
            return Ending(tokens, text[: where + (len(stop) if included else 0)], "stop", stop)
    if len(whole) < limit:
        raise ValueError(f"{len(whole)} tokens do not tell what {limit} are")
    return Ending(tuple(whole[:limit]), words(whole[:limit]), "length", None)


def conforms(text: str, grammar: Mapping[str, Any]) -> str | None:
    """Say how a text is not in the language of a grammar (vLLM's ``structured_outputs``).

    Known are ``regex``, ``choice``, ``json`` with a flat object, and parentheses of ``grammar``.
    """
    if "regex" in grammar:
        matched = re.fullmatch(grammar["regex"], text)
        return None if matched else f"{text!r} does not match {grammar['regex']!r}"
    if "choice" in grammar:
        return None if text in grammar["choice"] else f"{text!r} is none of {grammar['choice']}"
    if "json" in grammar:
        return _in_schema(text, grammar["json"])
    depth = (len(text) - 1) // 2
    if depth < 1 or not re.fullmatch(rf"\({{{depth}}}[x-z]\){{{depth}}}", text):
        return f"{text!r} is no letter in as many closing as opening parentheses"
    return None


def _in_schema(text: str, schema: Mapping[str, Any]) -> str | None:
    try:
        data = json.loads(text)
    except ValueError as error:
        return f"{text!r} is no JSON: {error}"
    if not isinstance(data, dict) or set(data) != set(schema["required"]):
        return f"{text!r} is no object of {', '.join(schema['required'])}"
    for name, wanted in schema["properties"].items():
        value = data[name]
        if "enum" in wanted:
            right = value in wanted["enum"]
        elif wanted["type"] == "boolean":
            right = isinstance(value, bool)
        else:
            right = type(value) is int and wanted["minimum"] <= value <= wanted["maximum"]
        if not right:
            return f"{name} is {value!r} in {text!r}"
    return None


def distributions(
    prompt: Sequence[int],
    reference: SequenceReference,
    settings: Settings,
    slack: float,
) -> Iterator[tuple[StepReference, Distribution]]:
    """What may be drawn at each step of a continuation that the reference scored with logits."""
    import numpy as np

    for index, step in enumerate(reference.steps):
        row: NDArray[np.float64] = np.array(step.logits)
        yield step, distribution(row, prompt, reference.tokens[:index], settings, slack)


def text_queries(
    prompt: tuple[int, ...], texts: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], ForcedQuery]:
    """What `text_probabilities` asks, by the beginnings of the texts: all but their last tokens."""
    # What is said of a last token is in the row before it, whichever it is.
    return {
        beginning: ForcedQuery(prompt, (*beginning, 0), logits=True)
        for beginning in sorted({text[:-1] for text in texts})
    }


def text_probabilities(
    prompt: tuple[int, ...],
    texts: Collection[tuple[int, ...]],
    settings: Settings,
    ask: Callable[[Sequence[ForcedQuery]], Sequence[SequenceReference]],
) -> dict[tuple[int, ...], float]:
    """The probability of each text after a prompt: the product of its tokens' probabilities."""
    queries = text_queries(prompt, texts)
    last: dict[tuple[int, ...], NDArray[np.float64]] = {}
    for beginning, answer in zip(queries, ask(list(queries.values())), strict=True):
        rows = [found.logprobs() for _, found in distributions(prompt, answer, settings, 0.0)]
        begun = sum(float(row[token]) for row, token in zip(rows, beginning, strict=False))
        last[beginning] = begun + rows[-1]
    return {text: math.exp(last[text[:-1]][text[-1]]) for text in set(texts)}
