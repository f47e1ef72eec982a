"""A sampler in float64, from the published definitions: from logits to what may be drawn.

Each definition, and its source:

* temperature: logits divided by T before the softmax; 0 is greedy (Ackley, Hinton and Sejnowski,
  1985; vLLM's ``SamplingParams``).
* top-k: the k likeliest tokens (Fan, Lewis and Dauphin, 2018); as likely as the k-th is likely
  enough.
* top-p: the smallest set of likeliest tokens whose mass is at least p (Holtzman et al., 2020).
* min-p: tokens at least ``min_p`` times as likely as the likeliest (Nguyen et al., 2024).
* repetition penalty: logits of tokens in the prompt or the output are divided by it if positive,
  else multiplied with it (Keskar et al., 2019, with the sign rule that transformers gave it).
* presence and frequency penalty: logit - count * frequency - (count > 0) * presence, over the
  output alone (OpenAI's API reference).
* logit bias: added to the logit; allowed ids, bad words, ``min_tokens``: excluded tokens have
  probability 0. A bad word's last token is excluded where the output ends with the rest of it,
  and stop tokens are until ``min_tokens`` are there (vLLM's ``SamplingParams``).

The order is the one that vLLM documents at its ``Sampler``: allowed ids, bad words, minimum,
bias, penalties; then, unless greedy, temperature, min-p, top-k, top-p, each on what the one before
left.

Logits are natural logarithms up to a constant per row, shape (vocabulary,), float64. A logit's sign
matters to the repetition penalty, so log-probabilities will not do in their place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Row = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["Distribution", "Settings", "distribution", "log_softmax"]

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy (``_SAMPLING_EPS`` in vLLM's sampler)."""


@dataclass(frozen=True)
class Settings:
    """What a request asks of its sampler, by vLLM's names; the defaults ask for nothing.

    ``bad_words`` are sequences of token ids, ``allowed_token_ids`` None for all, ``stop_ids`` what
    ``min_tokens`` excludes.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, and nothing drawn."""
        return self.temperature < GREEDY_BELOW

    @classmethod
    def of(cls, parameters: Mapping[str, Any], bad_words: Collection[tuple[int, ...]]) -> Settings:
        """The settings in a request's parameters, those of other kinds left out.

        ``bad_words`` are the request's as token ids. A greedy request has no top-k, top-p or min-p:
        they could not change what it takes.
        """
        own = {
            name: parameters[name]
            for name in (
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "min_tokens",
            )
            if name in parameters
        }
        allowed = parameters.get("allowed_token_ids")
        settings = cls(
            **own,
            bad_words=tuple(bad_words),
            logit_bias={int(id_): b for id_, b in dict(parameters.get("logit_bias", {})).items()},
            allowed_token_ids=None if allowed is None else tuple(allowed),
            stop_ids=tuple(parameters.get("stop_token_ids", ())),
        )
        if settings.greedy:
            return cls(**{**vars(settings), "top_k": 0, "top_p": 1.0, "min_p": 0.0})
        return settings


@dataclass(frozen=True)
class Distribution:
    """What may be drawn after one prefix.

    ``logits`` are the processed ones, not yet cut by min-p, top-k and top-p, -inf where a token is
    excluded. ``allowed`` marks what the settings leave. Where logits are known to within a slack
    only, tokens of ``certain`` are left whichever they are, and others than those of ``possible``
    are not.
    """

    logits: Row
    allowed: Mask
    certain: Mask
    possible: Mask

    def logprobs(self, support: Mask | None = None) -> Row:
        """Log-probabilities over the tokens of ``support`` (default: the allowed ones), else -inf.

        Errors: ValueError when nothing is left.
        """
        import numpy as np

        kept = self.allowed if support is None else support
        return log_softmax(np.where(kept, self.logits, -np.inf))


def log_softmax(logits: Row) -> Row:
    """Log-probabilities of a row of logits; ValueError when every one is -inf."""
    import numpy as np

    largest = float(logits.max())
    if not math.isfinite(largest):
        raise ValueError(f"no distribution: the largest logit is {largest}")
    shifted = logits - largest
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def distribution(
    logits: Row,
    prompt: Sequence[int],
    output: Sequence[int],
    settings: Settings,
    slack: float = 0.0,
) -> Distribution:
    """What may be drawn after ``prompt`` and ``output``, from the model's logits there.

    ``slack``, in nats, is how far another computation's processed logits, before the temperature,
    may be from these; with 0 ``certain`` is ``allowed`` but for exact ties.
    Errors: ValueError when the settings leave no token.
    """
    import numpy as np

    row = _penalised(_masked(logits, output, settings), prompt, output, settings)
    if settings.greedy:
        everything = np.isfinite(row)
        return Distribution(row, everything, everything, everything)
    row = row / settings.temperature
    slack = slack / settings.temperature
    return Distribution(
        row,
        _cut(row, settings, 0.0),
        _cut(row, settings, -slack),
        _cut(row, settings, slack),
    )


def _masked(logits: Row, output: Sequence[int], settings: Settings) -> Row:
    """The logits, -inf where a token is excluded, with the bias added elsewhere."""
    import numpy as np

    row = np.array(logits, dtype=np.float64)
    if settings.allowed_token_ids is not None:
        others = np.ones(row.shape, dtype=bool)
        others[list(settings.allowed_token_ids)] = False
        row[others] = -np.inf
    for word in settings.bad_words:
        *begun, last = word
        if len(begun) <= len(output) and list(output[len(output) - len(begun) :]) == begun:
            row[last] = -np.inf
    if len(output) < settings.min_tokens:
        row[list(settings.stop_ids)] = -np.inf
    for token, bias in settings.logit_bias.items():
        row[token] += bias
    return row


def _penalised(row: Row, prompt: Sequence[int], output: Sequence[int], settings: Settings) -> Row:
    import numpy as np

    seen = sorted({*prompt, *output})
    factor = settings.repetition_penalty
    row[seen] = np.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
    for token in set(output):
        count = sum(1 for other in output if other == token)
        row[token] -= count * settings.frequency_penalty + settings.presence_penalty
    return row


def _cut(row: Row, settings: Settings, slack: float) -> Mask:
    """The tokens that min-p, top-k and top-p leave, one after the other.

    With a positive ``slack``, in nats, every token that may be left if each logit is off by as
    much; with a negative one those only that must be. Two logits may be off in opposite directions.
    """
    import numpy as np

    apart = 2 * slack
    kept = np.isfinite(row)
    largest = row.max()
    if settings.min_p > 0:
        kept &= row >= largest + math.log(settings.min_p) - apart
    count = int(kept.sum())
    if 0 < settings.top_k < count:
        ordered = np.sort(row[kept])[::-1]
        kept &= _from(row, ordered, settings.top_k, apart)
    if settings.top_p < 1:
        ids = np.flatnonzero(kept)
        order = ids[np.argsort(-row[ids], kind="stable")]
        values = np.exp(row[order] - largest)
        before = np.concatenate(([0.0], np.cumsum(values)[:-1])) / values.sum()
        # If the likelihoods before a token are off by a factor, so are the odds of their mass.
        odds = before / np.maximum(1 - before, 1e-300) * math.exp(-apart)
        number = int((odds / (1 + odds) < settings.top_p).sum())
        within = np.zeros(row.shape, dtype=bool)
        within[order[:number]] = True
        kept &= _from(row, row[order], number, apart) if apart else within
    return np.asarray(kept)


def _from(row: Row, ordered: Row, number: int, apart: float) -> Mask:
    """The tokens that may be, or for a negative ``apart`` must be, the first ``number``.

    ``ordered`` are the candidates' logits, the largest first. The last one that is in and the first
    one that is out decide: what is nearer to it than ``apart`` may change places with it.
    """
    import numpy as np

    if apart >= 0:
        return np.asarray(row >= ordered[number - 1] - apart)
    if number == len(ordered):
        return np.isfinite(row)
    return np.asarray(row > ordered[number] - apart)
