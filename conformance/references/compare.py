"""Is an observed output the reference's, close enough to it, or another one?

Structure is judged before values. Two greedy runs that compute alike may part where two tokens are
nearly equally likely, and from there on they are different texts; so after such a parting, the
observed tokens are held against the reference's view of *them*, which may have to be asked for
first: a comparison then answers `NeedsReference` with the queries to ask.

Pure Python. Log-probabilities are in nats; every bound is an absolute difference in nats.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conformance.references.reference import ForcedQuery, SequenceReference

__all__ = [
    "Judgement",
    "NeedsReference",
    "Observed",
    "Status",
    "Verdict",
    "compare_greedy",
    "compare_logprobs",
    "judge",
]


class Status(enum.StrEnum):
    """How an observation stands to its reference."""

    EQUAL = "equal"
    WITHIN_BOUNDS = "within bounds"
    DIVERGES = "diverges"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison.

    ``what`` is ``tokens`` or ``logprobs``. ``largest`` is the largest deviation seen among the
    ``compared`` tokens or values: for tokens, how much likelier the reference's best token was than
    the observed one; for log-probabilities, the absolute difference. For a verdict that diverges,
    ``reason`` says how, and where it applies ``step`` is the first such step, ``observed`` and
    ``expected`` are the token ids there, and the two log-probabilities belong to them: both from
    the reference for tokens, the observed and the reference's of one id for log-probabilities.
    For tokens within bounds these fields describe the first near-tie.
    """

    status: Status
    what: str
    bound: float
    largest: float = 0.0
    compared: int = 0
    reason: str = ""
    step: int | None = None
    observed: int | None = None
    expected: int | None = None
    observed_logprob: float | None = None
    expected_logprob: float | None = None

    @property
    def conforms(self) -> bool:
        """True unless the observation diverges."""
        return self.status is not Status.DIVERGES

    @property
    def margin(self) -> float | None:
        """``expected_logprob - observed_logprob``; None when either is not known."""
        if self.expected_logprob is None or self.observed_logprob is None:
            return None
        return self.expected_logprob - self.observed_logprob

    def __str__(self) -> str:
        text = f"{self.what}: {self.status}"
        if self.status is Status.EQUAL:
            return f"{text} ({self.compared} compared)"
        where = "" if self.step is None else f" at step {self.step}"
        detail = f": {self.reason}" if self.reason else ""
        return f"{text}{where}{detail} (bound {self.bound:.3g}, largest {self.largest:.3g})"


@dataclass(frozen=True)
class NeedsReference:
    """No verdict yet: answer ``query`` with the reference, and compare again with the answer."""

    query: ForcedQuery


@dataclass(frozen=True)
class Observed:
    """One sequence as a runner gave it.

    ``tokens`` are the generated ids. ``logprobs`` is None, or maps for each step token ids to
    log-probabilities, the generated token among them.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] | None = None


@dataclass(frozen=True)
class Judgement:
    """Verdicts on one observed sequence; ``logprobs`` is None when none were observed."""

    tokens: Verdict
    logprobs: Verdict | None


def _complete(tokens: Sequence[int], reference: SequenceReference) -> str:
    """Empty when ``tokens`` ends where such a request must end, else how it does not."""
    for index, token in enumerate(tokens):
        if token in reference.stop_ids:
            extra = len(tokens) - index - 1
            return f"{extra} tokens after the stop token at step {index}" if extra else ""
    if len(tokens) < reference.max_tokens:
        return f"{len(tokens)} tokens and no stop token, of {reference.max_tokens} requested"
    if len(tokens) > reference.max_tokens:
        return f"{len(tokens)} tokens, of {reference.max_tokens} requested"
    return ""


def _outside(tokens: Sequence[int], reference: SequenceReference) -> int | None:
    """Step of the first token that is no id of the vocabulary."""
    for index, token in enumerate(tokens):
        if not 0 <= token < reference.vocab_size:
            return index
    return None


def _check_forced(
    tokens: Sequence[int], reference: SequenceReference, forced: SequenceReference
) -> None:
    if forced.prompt != reference.prompt or forced.tokens != tuple(tokens):
        raise ValueError("the scored reference is of another prompt or continuation")


def compare_greedy(
    observed: Sequence[int],
    reference: SequenceReference,
    bound: float,
    *,
    forced: SequenceReference | None = None,
    observed_logprobs: Sequence[Mapping[int, float]] | None = None,
) -> Verdict | NeedsReference:
    """Hold greedy token ids against the reference's greedy continuation of the same prompt.

    Equal tokens are `equal`. At the first differing step the two tokens must be a near-tie: each
    among the other's top tokens, their reference log-probabilities no further apart than ``bound``.
    Every later observed token must then be within ``bound`` of the best token that the reference
    sees after the observed prefix; that is ``forced``, the reference's score of all observed
    tokens. Without it the answer is `NeedsReference`, unless the parting is at the last token.

    ``observed_logprobs`` are the runner's per step; without them only the reference's side of
    "among the other's top tokens" is checked.
    Errors: ValueError when ``forced`` is of other tokens.
    """
    tokens = tuple(observed)

    def diverges(reason: str, step: int, largest: float = 0.0, **details: float | None) -> Verdict:
        seen = tokens[step] if step < len(tokens) else None
        wanted = reference.tokens[step] if step < len(reference.steps) else None
        fields = {"observed": seen, "expected": wanted, **details}
        return Verdict(
            Status.DIVERGES,
            "tokens",
            bound,
            largest=largest,
            compared=step,
            reason=reason,
            step=step,
            **fields,  # type: ignore[arg-type]
        )

    invalid = _outside(tokens, reference)
    if invalid is not None:
        return diverges(
            f"token {tokens[invalid]} is outside the vocabulary of {reference.vocab_size}", invalid
        )
    if tokens == reference.tokens:
        return Verdict(Status.EQUAL, "tokens", bound, compared=len(tokens))

    shared = min(len(tokens), len(reference.steps))
    parting = next(
        (step for step in range(shared) if tokens[step] != reference.tokens[step]), shared
    )
    incomplete = _complete(tokens, reference)
    if parting == shared:
        reason = incomplete or f"{len(tokens)} tokens, the reference has {len(reference.steps)}"
        return diverges(reason, parting)

    ours, theirs = tokens[parting], reference.tokens[parting]
    step = reference.steps[parting]
    known = step.known.get(ours)
    # Of a token outside the top ones only a lower bound of the margin is known.
    margin = step.logprob - (step.top_logprobs[-1] if known is None else known)
    pair = {"observed_logprob": known, "expected_logprob": step.logprob}
    if ours not in step.top_ids:
        return diverges(
            f"token {ours} instead of {theirs} is not among the reference's top "
            f"{len(step.top_ids)}, margin {'at least ' if known is None else ''}{margin:.3g}",
            parting,
            largest=abs(margin),
            **pair,
        )
    if not abs(margin) <= bound:
        return diverges(
            f"token {ours} instead of {theirs}, margin {margin:.3g}",
            parting,
            largest=abs(margin),
            **pair,
        )
    if observed_logprobs is not None:
        listed = observed_logprobs[parting] if parting < len(observed_logprobs) else {}
        if theirs not in listed:
            return diverges(
                f"token {theirs} is not among the runner's top {len(listed)}, which chose {ours}",
                parting,
                largest=abs(margin),
                **pair,
            )
    if incomplete:
        return diverges(incomplete, len(tokens), largest=abs(margin))

    largest = abs(margin)
    if parting + 1 < len(tokens):
        if forced is None:
            return NeedsReference(ForcedQuery(reference.prompt, tokens))
        _check_forced(tokens, reference, forced)
        for index in range(parting + 1, len(tokens)):
            best, best_logprob = forced.steps[index].best
            gap = best_logprob - forced.steps[index].logprob
            largest = max(largest, gap)
            if not gap <= bound:
                return diverges(
                    f"after a near-tie at step {parting}: token {tokens[index]} instead of {best}, "
                    f"margin {gap:.3g}",
                    index,
                    largest=largest,
                    expected=best,
                    observed_logprob=forced.steps[index].logprob,
                    expected_logprob=best_logprob,
                )
    return Verdict(
        Status.WITHIN_BOUNDS,
        "tokens",
        bound,
        largest=largest,
        compared=len(tokens),
        reason=f"near-tie of {ours} and {theirs}, margin {margin:.3g}",
        step=parting,
        observed=ours,
        expected=theirs,
        **pair,
    )


def compare_logprobs(
    observed: Sequence[Mapping[int, float]],
    reference: SequenceReference,
    bound: float,
    *,
    top: int | None = None,
) -> Verdict | NeedsReference:
    """Hold observed log-probabilities against the reference's view of the same tokens.

    ``reference`` has the observed tokens as its continuation. One mapping per step, id ->
    log-probability, the step's own token among the ids. First the structure: number of steps, ids
    of the vocabulary, finite values (a masked token's -inf is none), none above 0 by more than
    ``bound``, with ``top`` at least that many ids; then each value. With ``top``, the number of
    likeliest tokens that were asked for, the ids are also judged: a token that the reference puts
    clearly (by more than ``bound``) above the least likely of the observed top ones must be there.

    Ids of which the reference says nothing give `NeedsReference`. `equal` means equal as floats.
    """

    def diverges(
        reason: str,
        step: int,
        token: int | None = None,
        value: float | None = None,
        expected: float | None = None,
        largest: float = 0.0,
        compared: int = 0,
    ) -> Verdict:
        return Verdict(
            Status.DIVERGES,
            "logprobs",
            bound,
            largest=largest,
            compared=compared,
            reason=reason,
            step=step,
            observed=token,
            expected=token,
            observed_logprob=value,
            expected_logprob=expected,
        )

    steps = reference.steps
    if len(observed) != len(steps):
        return diverges(
            f"log-probabilities for {len(observed)} steps, expected {len(steps)}",
            min(len(observed), len(steps)),
        )
    for index, row in enumerate(observed):
        for token, value in row.items():
            if not 0 <= token < reference.vocab_size:
                return diverges(f"token {token} is outside the vocabulary", index, token, value)
            if not math.isfinite(value):
                return diverges(f"log-probability of token {token} is {value}", index, token, value)
            if value > bound:
                return diverges(
                    f"log-probability of token {token} is {value:.6g}, above 0", index, token, value
                )
        if steps[index].token not in row:
            return diverges(
                f"no log-probability for the token itself, {steps[index].token}",
                index,
                steps[index].token,
            )
        if top is not None and len(row) < top:
            return diverges(f"{len(row)} log-probabilities, {top} were asked for", index)

    missing = [
        tuple(sorted(set(row) - set(step.known))) for row, step in zip(observed, steps, strict=True)
    ]
    if any(missing):
        requested = tuple(tuple(sorted(row)) for row in observed)
        return NeedsReference(ForcedQuery(reference.prompt, reference.tokens, requested))

    largest, compared = 0.0, 0
    for index, (row, step) in enumerate(zip(observed, steps, strict=True)):
        known = step.known
        for token, value in row.items():
            difference = abs(value - known[token])
            largest, compared = max(largest, difference), compared + 1
            if not difference <= bound:
                return diverges(
                    f"token {token} has {value:.9g}, the reference {known[token]:.9g} "
                    f"(difference {difference:.3g})",
                    index,
                    token,
                    value,
                    known[token],
                    largest,
                    compared,
                )
        if top is not None and top > 0:
            least = sorted(row.values(), reverse=True)[top - 1]
            for token, value in zip(step.top_ids, step.top_logprobs, strict=True):
                if token not in row and value > least + bound:
                    return diverges(
                        f"token {token}, {value:.9g} in the reference, is not among the top {top}, "
                        f"whose least is {least:.9g}",
                        index,
                        token,
                        None,
                        value,
                        largest,
                        compared,
                    )
    status = Status.EQUAL if largest == 0.0 else Status.WITHIN_BOUNDS
    return Verdict(status, "logprobs", bound, largest=largest, compared=compared)


def judge(
    observations: Sequence[Observed],
    references: Sequence[SequenceReference],
    ask: Callable[[Sequence[ForcedQuery]], Sequence[SequenceReference]],
    *,
    token_bound: float,
    logprob_bound: float,
    top: int | None = None,
) -> list[Judgement]:
    """Verdicts on a batch of greedy runs, asking the reference at most once, for all that it needs.

    ``observations`` and ``references`` belong together pairwise. ``ask`` answers queries in order;
    it is not called when the references at hand are enough. Log-probabilities are held against the
    reference's view of the observed tokens, also where the tokens themselves diverge: a wrong
    choice and wrong numbers are two findings. ``top`` as in `compare_logprobs`.
    Errors: ValueError when the counts differ, or ``ask`` answers another number than was asked.
    """
    if len(observations) != len(references):
        raise ValueError(f"{len(observations)} observations, {len(references)} references")
    queries: dict[int, ForcedQuery] = {}
    for index, (seen, reference) in enumerate(zip(observations, references, strict=True)):
        query = _open_question(seen, reference, token_bound, logprob_bound)
        if query is not None:
            queries[index] = query
    answers = ask(tuple(queries.values())) if queries else ()
    if len(answers) != len(queries):
        raise ValueError(f"{len(queries)} queries, {len(answers)} answers")
    scored = dict(zip(queries, answers, strict=True))
    return [
        _judgement(seen, reference, scored.get(index), token_bound, logprob_bound, top)
        for index, (seen, reference) in enumerate(zip(observations, references, strict=True))
    ]


def _open_question(
    seen: Observed, reference: SequenceReference, token_bound: float, logprob_bound: float
) -> ForcedQuery | None:
    """What must be asked before both verdicts on one observation can be given."""
    if seen.logprobs is None:
        verdict = compare_greedy(seen.tokens, reference, token_bound)
        return verdict.query if isinstance(verdict, NeedsReference) else None
    if seen.tokens == reference.tokens:
        values = compare_logprobs(seen.logprobs, reference, logprob_bound)
        return values.query if isinstance(values, NeedsReference) else None
    if not seen.tokens or _outside(seen.tokens, reference) is not None:
        return None
    requested: tuple[tuple[int, ...], ...] = ()
    if len(seen.logprobs) == len(seen.tokens):
        valid = range(reference.vocab_size)
        requested = tuple(tuple(sorted(i for i in row if i in valid)) for row in seen.logprobs)
    return ForcedQuery(reference.prompt, seen.tokens, requested)


def _judgement(
    seen: Observed,
    reference: SequenceReference,
    scored: SequenceReference | None,
    token_bound: float,
    logprob_bound: float,
    top: int | None,
) -> Judgement:
    if scored is not None:
        _check_forced(seen.tokens, reference, scored)
    tokens = compare_greedy(
        seen.tokens, reference, token_bound, forced=scored, observed_logprobs=seen.logprobs
    )
    if isinstance(tokens, NeedsReference):
        raise ValueError("the reference gave no answer that was needed")
    if seen.logprobs is None:
        return Judgement(tokens, None)
    view = scored or (reference if seen.tokens == reference.tokens else None)
    if view is None:
        reason = "no reference for these tokens: they are none, or outside the vocabulary"
        return Judgement(tokens, Verdict(Status.DIVERGES, "logprobs", logprob_bound, reason=reason))
    values = compare_logprobs(seen.logprobs, view, logprob_bound, top=top)
    if isinstance(values, NeedsReference):
        raise ValueError("the reference left out ids that were requested")
    return Judgement(tokens, values)
