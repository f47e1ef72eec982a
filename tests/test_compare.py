"""Comparison with a reference, as tables: an observation, and the verdict it must get.

The references are written out by hand here, so that every number in a verdict can be checked by
reading. Each planted fault is one that a runner has made or could make.
"""

import json
import math
from collections.abc import Sequence

import pytest

from conformance.references.bounds import FACTOR, MEASUREMENTS, bound
from conformance.references.compare import (
    Judgement,
    NeedsReference,
    Observed,
    Status,
    Verdict,
    compare_greedy,
    compare_logprobs,
    judge,
)
from conformance.references.reference import (
    ForcedQuery,
    GreedyQuery,
    Provenance,
    ReferenceSet,
    SequenceReference,
    StepReference,
    query_from_json,
    query_to_json,
    reference_set_from_json,
    reference_set_to_json,
)

BOUND = 1e-3
STOP = 2
NAN, INF = math.nan, math.inf


def step(token: int, *top: tuple[int, float], **requested: float) -> StepReference:
    """A step whose top tokens are ``top``; ``i7=-3.0`` is the requested id 7."""
    ids = {int(name[1:]): value for name, value in requested.items()}
    known = {**ids, **dict(top)}
    return StepReference(
        token, known[token], tuple(i for i, _ in top), tuple(v for _, v in top), ids
    )


def sequence(
    *steps: StepReference, max_tokens: int = 4, stop_ids: tuple[int, ...] = (STOP,)
) -> SequenceReference:
    return SequenceReference((1, 9), steps, max_tokens, vocab_size=16, stop_ids=stop_ids)


# At step 1, tokens 6 and 7 are a near-tie; everywhere else the best token is far ahead.
STEPS = (
    step(5, (5, -0.1), (8, -3.0), (4, -4.0)),
    step(6, (6, -0.7), (7, -0.7005), (4, -5.0)),
    step(3, (3, -0.2), (5, -2.0), (9, -4.0)),
    step(8, (8, -0.3), (3, -1.5), (4, -6.0)),
)
GREEDY = sequence(*STEPS)
# The same prompt continued with 5, 7: another text, in which 10 and then 11 are best.
OTHER = (
    STEPS[0],
    step(7, (6, -0.7), (7, -0.7005), (4, -5.0)),
    step(10, (10, -0.2), (12, -2.0), (9, -4.0)),
    step(11, (11, -0.3), (13, -0.3002), (4, -6.0)),
)


def forced(*tokens: int, steps: Sequence[StepReference] = OTHER) -> SequenceReference:
    """The reference's score of ``tokens``; a token that its step does not list gets -9."""
    scored = [
        StepReference(token, old.known.get(token, -9.0), old.top_ids, old.top_logprobs)
        for token, old in zip(tokens, steps, strict=True)
    ]
    return SequenceReference((1, 9), tuple(scored), len(tokens), vocab_size=16)


def test_equal_tokens_are_equal() -> None:
    verdict = compare_greedy([5, 6, 3, 8], GREEDY, 0.0)
    assert verdict == Verdict(Status.EQUAL, "tokens", 0.0, compared=4)
    assert str(verdict) == "tokens: equal (4 compared)"


@pytest.mark.parametrize(
    ("name", "observed", "at", "reason"),
    [
        ("empty", [], 0, "0 tokens and no stop token, of 4 requested"),
        ("truncated", [5, 6, 3], 3, "3 tokens and no stop token, of 4 requested"),
        ("one step more", [5, 6, 3, 8, 8], 4, "5 tokens, of 4 requested"),
        ("off by one id", [5, 6, 4, 8], 2, "token 4 instead of 3 is not among"),
        ("one step late", [5, 5, 6, 3], 1, "token 5 instead of 6 is not among"),
        ("two steps swapped", [5, 3, 6, 8], 1, "token 3 instead of 6 is not among"),
        ("second best, clearly", [5, 6, 5, 8], 2, "token 5 instead of 3, margin 1.8"),
        ("first token wrong", [8, 6, 3, 8], 0, "token 8 instead of 5, margin 2.9"),
        ("last token wrong", [5, 6, 3, 3], 3, "token 3 instead of 8, margin 1.2"),
        ("beyond the vocabulary", [5, 16, 3, 8], 1, "token 16 is outside the vocabulary of 16"),
        ("a placeholder left in", [5, 6, -1, 8], 2, "token -1 is outside the vocabulary of 16"),
        ("repeats after a wrong one", [5, 4, 4, 4], 1, "token 4 instead of 6, margin 4.3"),
        ("near-tie, then truncated", [5, 7], 2, "2 tokens and no stop token, of 4 requested"),
        ("near-tie, then one more", [5, 7, 3, 8, 8], 5, "5 tokens, of 4 requested"),
        ("stops, then goes on", [5, 7, 2, 8], 4, "1 tokens after the stop token at step 2"),
    ],
)
def test_planted_fault_in_tokens_diverges(
    name: str, observed: list[int], at: int, reason: str
) -> None:
    verdict = compare_greedy(observed, GREEDY, BOUND)
    assert isinstance(verdict, Verdict), name
    assert verdict.status is Status.DIVERGES
    assert not verdict.conforms
    assert verdict.step == at
    assert reason in verdict.reason


def test_going_on_after_the_references_stop_token_diverges() -> None:
    stopped = sequence(STEPS[0], step(STOP, (STOP, -0.1), (4, -3.0)))
    verdict = compare_greedy([5, STOP, 3, 8], stopped, BOUND)
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "2 tokens after the stop token at step 1"
    assert compare_greedy([5, STOP], stopped, BOUND).status is Status.EQUAL  # type: ignore[union-attr]


def test_divergence_names_both_candidates_and_their_margin() -> None:
    verdict = compare_greedy([5, 6, 5, 8], GREEDY, BOUND)
    assert isinstance(verdict, Verdict)
    assert (verdict.observed, verdict.expected) == (5, 3)
    assert (verdict.observed_logprob, verdict.expected_logprob) == (-2.0, -0.2)
    assert verdict.margin == pytest.approx(1.8)
    assert verdict.largest == pytest.approx(1.8)
    assert str(verdict) == (
        "tokens: diverges at step 2: token 5 instead of 3, margin 1.8 (bound 0.001, largest 1.8)"
    )


def test_candidate_outside_the_top_has_a_margin_at_least_to_the_last_of_them() -> None:
    verdict = compare_greedy([5, 6, 4, 8], GREEDY, BOUND)
    assert isinstance(verdict, Verdict)
    assert "margin at least 3.8" in verdict.reason
    assert verdict.observed_logprob is None
    assert verdict.margin is None


def test_near_tie_at_the_last_step_needs_nothing_more() -> None:
    reference = sequence(*STEPS[:2], max_tokens=2)
    verdict = compare_greedy([5, 7], reference, BOUND)
    assert isinstance(verdict, Verdict)
    assert verdict.status is Status.WITHIN_BOUNDS
    assert (verdict.step, verdict.observed, verdict.expected) == (1, 7, 6)
    assert verdict.largest == pytest.approx(0.0005)


@pytest.mark.parametrize(("limit", "conforms"), [(0.00051, True), (0.00049, False)])
def test_near_tie_is_one_up_to_the_bound(limit: float, conforms: bool) -> None:
    verdict = compare_greedy([5, 7], sequence(*STEPS[:2], max_tokens=2), limit)
    assert isinstance(verdict, Verdict)
    assert verdict.conforms is conforms


def test_after_a_near_tie_the_reference_is_asked_about_the_observed_tokens() -> None:
    assert compare_greedy([5, 7, 10, 11], GREEDY, BOUND) == NeedsReference(
        ForcedQuery((1, 9), (5, 7, 10, 11))
    )


@pytest.mark.parametrize(
    ("observed", "status", "at"),
    [
        ((5, 7, 10, 11), Status.WITHIN_BOUNDS, 1),
        ((5, 7, 10, 13), Status.WITHIN_BOUNDS, 1),  # a second near-tie
        ((5, 7, 12, 11), Status.DIVERGES, 2),
        ((5, 7, 10, 4), Status.DIVERGES, 3),
        ((5, 7, 3, 8), Status.DIVERGES, 2),  # goes on with the reference's text: stale state
    ],
)
def test_tokens_after_a_near_tie_are_held_against_their_own_prefix(
    observed: tuple[int, ...], status: Status, at: int
) -> None:
    verdict = compare_greedy(observed, GREEDY, BOUND, forced=forced(*observed))
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.step) == (status, at)
    if status is Status.DIVERGES:
        assert verdict.expected == OTHER[at].best[0]
        assert verdict.observed == observed[at]
        assert verdict.margin is not None
        assert verdict.margin > 1


def test_stop_token_reached_by_a_near_tie_may_end_early() -> None:
    steps = (STEPS[0], step(6, (6, -0.7), (STOP, -0.7005), (4, -5.0)), *STEPS[2:])
    verdict = compare_greedy([5, STOP], sequence(*steps), BOUND)
    assert isinstance(verdict, Verdict)
    assert verdict.status is Status.WITHIN_BOUNDS


def test_near_tie_needs_the_reference_s_token_among_the_runner_s() -> None:
    reference = sequence(*STEPS[:2], max_tokens=2)
    alone = compare_greedy([5, 7], reference, BOUND, observed_logprobs=[{5: -0.1}, {7: -0.1}])
    both = compare_greedy(
        [5, 7], reference, BOUND, observed_logprobs=[{5: -0.1}, {7: -0.7, 6: -0.7}]
    )
    assert isinstance(alone, Verdict)
    assert isinstance(both, Verdict)
    assert not alone.conforms
    assert "token 6 is not among the runner's top 1" in alone.reason
    assert both.conforms


def test_score_of_other_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="another prompt or continuation"):
        compare_greedy([5, 7, 10, 11], GREEDY, BOUND, forced=forced(5, 7, 10, 13))


def rows(*steps: StepReference, error: float = 0.0) -> list[dict[int, float]]:
    """What a runner would give that is off by ``error`` everywhere: the top two of each step."""
    return [
        {id_: value + error for id_, value in zip(s.top_ids[:2], s.top_logprobs, strict=False)}
        for s in steps
    ]


def changed(at: int, **values: float | None) -> list[dict[int, float]]:
    """Correct rows, but at step ``at`` ids are set, or removed by None."""
    wrong = rows(*STEPS)
    for name, value in values.items():
        if value is None:
            del wrong[at][int(name[1:])]
        else:
            wrong[at][int(name[1:])] = value
    return wrong


def test_logprobs_off_by_less_than_the_bound_are_within_it() -> None:
    verdict = compare_logprobs(rows(*STEPS, error=-5e-4), GREEDY, BOUND, top=2)
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.compared) == (Status.WITHIN_BOUNDS, 8)
    assert verdict.largest == pytest.approx(5e-4)


def test_equal_logprobs_are_equal() -> None:
    assert compare_logprobs(rows(*STEPS), GREEDY, 0.0, top=2).status is Status.EQUAL  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "observed", "at", "reason"),
    [
        ("empty", [], 0, "log-probabilities for 0 steps, expected 4"),
        ("truncated", rows(*STEPS[:3]), 3, "for 3 steps, expected 4"),
        ("one step more", rows(*STEPS, STEPS[3]), 4, "for 5 steps, expected 4"),
        ("off by more than the bound", rows(*STEPS, error=-2e-3), 0, "difference 0.002"),
        ("swapped in one step", changed(2, i3=-2.0, i5=-0.2), 2, "token 3 has -2, the reference"),
        ("rows of two steps swapped", rows(STEPS[0], *STEPS[2:0:-1], STEPS[3]), 1, "itself, 6"),
        ("NaN", changed(1, i6=NAN), 1, "log-probability of token 6 is nan"),
        ("minus infinity", changed(3, i3=-INF), 3, "log-probability of token 3 is -inf"),
        ("logits, not log-probabilities", changed(0, i5=4.2), 0, "token 5 is 4.2, above 0"),
        ("own token missing", changed(2, i3=None), 2, "no log-probability for the token itself, 3"),
        ("fewer than asked for", changed(2, i5=None), 2, "1 log-probabilities, 2 were asked for"),
        ("no id of the vocabulary", changed(0, i16=-3.0), 0, "token 16 is outside the vocabulary"),
        ("third best for second", changed(0, i8=None, i4=-4.0), 0, "token 8, -3 in the reference"),
    ],
)
def test_planted_fault_in_logprobs_diverges(
    name: str, observed: list[dict[int, float]], at: int, reason: str
) -> None:
    verdict = compare_logprobs(observed, GREEDY, BOUND, top=2)
    assert isinstance(verdict, Verdict), name
    assert verdict.status is Status.DIVERGES
    assert verdict.step == at
    assert reason in verdict.reason


def test_wrong_logprob_is_reported_with_both_values() -> None:
    verdict = compare_logprobs(changed(2, i5=-2.5), GREEDY, BOUND)
    assert isinstance(verdict, Verdict)
    assert (verdict.observed, verdict.expected) == (5, 5)
    assert (verdict.observed_logprob, verdict.expected_logprob) == (-2.5, -2.0)
    assert verdict.largest == pytest.approx(0.5)


def test_ids_that_the_reference_does_not_know_are_asked_for() -> None:
    observed = changed(1, i12=-7.0)
    answer = compare_logprobs(observed, GREEDY, BOUND)
    assert answer == NeedsReference(
        ForcedQuery((1, 9), (5, 6, 3, 8), ((5, 8), (6, 7, 12), (3, 5), (3, 8)))
    )
    told = (STEPS[0], step(6, (6, -0.7), (7, -0.7005), (4, -5.0), i12=-7.5), *STEPS[2:])
    verdict = compare_logprobs(observed, sequence(*told), BOUND)
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.step, verdict.observed) == (Status.DIVERGES, 1, 12)


def test_tied_ids_at_the_end_of_the_top_may_be_either() -> None:
    tied = sequence(step(5, (5, -0.1), (8, -3.0), (4, -3.0005)), max_tokens=1)
    verdict = compare_logprobs([{5: -0.1, 4: -3.0005}], tied, BOUND, top=2)
    assert isinstance(verdict, Verdict)
    assert verdict.conforms


def test_judge_asks_once_and_only_for_what_it_needs() -> None:
    asked: list[Sequence[ForcedQuery]] = []

    def ask(queries: Sequence[ForcedQuery]) -> list[SequenceReference]:
        asked.append(queries)
        return [forced(*query.continuation) for query in queries]

    observations = [
        Observed((5, 6, 3, 8)),
        Observed((5, 7, 10, 11)),
        Observed((5, 4, 3, 8)),
        Observed((5, 7, 12, 11)),
    ]
    verdicts = judge(observations, [GREEDY] * 4, ask, token_bound=BOUND, logprob_bound=BOUND)
    assert [judged.tokens.status.value for judged in verdicts] == [
        "equal",
        "within bounds",
        "diverges",
        "diverges",
    ]
    assert [[query.continuation for query in batch] for batch in asked] == [
        [(5, 7, 10, 11), (5, 7, 12, 11)]
    ]


def refuse(queries: Sequence[ForcedQuery]) -> list[SequenceReference]:
    raise AssertionError(f"asked without need: {queries}")


def judge_one(observed: Observed, ask: object = refuse) -> Judgement:
    (judged,) = judge(
        [observed],
        [GREEDY],
        ask,  # type: ignore[arg-type]
        token_bound=BOUND,
        logprob_bound=BOUND,
        top=2,
    )
    return judged


def test_judge_asks_nothing_when_the_tokens_are_the_references() -> None:
    judged = judge_one(Observed((5, 6, 3, 8), tuple(rows(*STEPS, error=1e-4))))
    assert judged.tokens.status is Status.EQUAL
    assert judged.logprobs is not None
    assert judged.logprobs.status is Status.WITHIN_BOUNDS


def test_wrong_choice_with_right_numbers_is_one_finding_not_two() -> None:
    tokens = (8, 6, 3, 8)
    judged = judge_one(
        Observed(tokens, tuple(rows(*STEPS))), lambda _: [forced(*tokens, steps=STEPS)]
    )
    assert not judged.tokens.conforms
    assert judged.logprobs is not None
    assert judged.logprobs.conforms


@pytest.mark.parametrize("tokens", [(), (5, -1, 3, 8)])
def test_tokens_that_cannot_be_scored_diverge_without_a_question(tokens: tuple[int, ...]) -> None:
    judged = judge_one(Observed(tokens, tuple({token: -0.1} for token in tokens)))
    assert not judged.tokens.conforms
    assert judged.logprobs is not None
    assert not judged.logprobs.conforms


def test_judge_refuses_what_does_not_belong_together() -> None:
    with pytest.raises(ValueError, match="1 observations, 0 references"):
        judge([Observed((5,))], [], refuse, token_bound=BOUND, logprob_bound=BOUND)
    with pytest.raises(ValueError, match="1 queries, 0 answers"):
        judge_one(Observed((5, 7, 10, 11)), lambda _: [])


def test_references_and_queries_survive_json_exactly() -> None:
    told = step(6, (6, -0.1 - 1e-17), (7, -1 / 3), i12=-math.pi)
    where = Provenance("cuda", {"torch": "1"}, "float32", "tiny", "ab", "H200", ("a note",))
    references = ReferenceSet(where, (sequence(told), GREEDY))
    assert reference_set_from_json(json.loads(json.dumps(reference_set_to_json(references)))) == (
        references
    )
    for query in (GreedyQuery((1,), 3, (2,)), ForcedQuery((1,), (2, 3), ((4,), ()))):
        assert query_from_json(json.loads(json.dumps(query_to_json(query)))) == query


def test_reference_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="reference schema 99, expected 1"):
        reference_set_from_json({"schema": 99})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GreedyQuery((), 3), "at least one token"),
        (lambda: GreedyQuery((1,), 0), "max_tokens is 0"),
        (lambda: ForcedQuery((1,), ()), "at least one token"),
        (lambda: ForcedQuery((1,), (2, 3), ((4,),)), "requested ids for 1 steps of 2"),
    ],
)
def test_query_without_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


_MEASURED = sorted({(item.what, item.dtype) for item in MEASUREMENTS})


@pytest.mark.parametrize(("what", "dtype"), _MEASURED)
def test_bound_is_the_factor_times_the_largest_measured(what: str, dtype: str) -> None:
    found = bound(what, dtype)
    measured = [item for item in MEASUREMENTS if (item.what, item.dtype) == (what, dtype)]
    largest = max(item.largest for item in measured)
    assert found.value == FACTOR * largest
    assert found.measurements == tuple(measured)
    assert f"{largest:.3g}" in str(found)


@pytest.mark.parametrize("what", ["logprob", "margin"])
def test_float32_was_measured_on_a_drawn_model_and_a_real_one(what: str) -> None:
    found = bound(what, "float32")
    assert {item.recipe for item in found.measurements} == {"tiny-llama", "smollm2-135m"}


def test_bound_that_nobody_measured_is_an_error_with_the_command() -> None:
    with pytest.raises(KeyError, match=r"benchmarks/measure_bounds\.py"):
        bound("logprob", "float8")
