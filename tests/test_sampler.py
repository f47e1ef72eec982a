"""The float64 sampler against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conformance.references.expected import conforms, ending, settings_of, text_probabilities, words
from conformance.references.reference import (
    ForcedQuery,
    Provenance,
    ReferenceSet,
    SequenceReference,
    StepReference,
    query_from_json,
    query_to_json,
    reference_set_from_json,
    reference_set_to_json,
)
from conformance.references.sampler import Settings, distribution, log_softmax

# Logits whose softmax is 1/2, 1/4, 1/8, 1/16, 1/16, but for a constant that changes nothing.
_HALVES = [math.log(p) + 3.0 for p in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16)]


def _probabilities(logits, settings, prompt=(), output=()):
    found = distribution(np.array(logits), prompt, output, settings)
    return np.exp(found.logprobs()).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(Settings(), (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16), id="nothing"),
        # Squares: 64, 16, 4, 1, 1 of 86.
        pytest.param(
            Settings(temperature=0.5), (64 / 86, 16 / 86, 4 / 86, 1 / 86, 1 / 86), id="temperature"
        ),
        pytest.param(Settings(top_k=2), (2 / 3, 1 / 3, 0, 0, 0), id="top-k"),
        pytest.param(Settings(top_k=1), (1, 0, 0, 0, 0), id="top-k of one"),
        pytest.param(
            Settings(top_k=4), (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16), id="top-k keeps ties"
        ),
        pytest.param(Settings(top_p=0.7), (2 / 3, 1 / 3, 0, 0, 0), id="top-p"),
        pytest.param(Settings(top_p=0.76), (4 / 7, 2 / 7, 1 / 7, 0, 0), id="top-p just over"),
        pytest.param(Settings(top_p=0.01), (1, 0, 0, 0, 0), id="top-p keeps one"),
        pytest.param(Settings(min_p=0.2), (4 / 7, 2 / 7, 1 / 7, 0, 0), id="min-p"),
        pytest.param(Settings(min_p=1.0), (1, 0, 0, 0, 0), id="min-p of one"),
        # top-k leaves 4/7, 2/7, 1/7, of which the first two are 6/7 > 0.8; of all they are 0.75.
        pytest.param(Settings(top_k=3, top_p=0.8), (2 / 3, 1 / 3, 0, 0, 0), id="top-k before p"),
        # min-p leaves the same three.
        pytest.param(Settings(min_p=0.2, top_p=0.8), (2 / 3, 1 / 3, 0, 0, 0), id="min-p before p"),
        # At temperature 1/2 the second is a quarter as likely as the first; at 1, half.
        pytest.param(Settings(temperature=0.5, min_p=0.4), (1, 0, 0, 0, 0), id="T before min-p"),
        pytest.param(
            Settings(allowed_token_ids=(1, 3)), (0, 4 / 5, 0, 1 / 5, 0), id="allowed token ids"
        ),
        pytest.param(
            Settings(logit_bias={3: math.log(4)}),
            (8 / 19, 4 / 19, 2 / 19, 4 / 19, 1 / 19),
            id="logit bias",
        ),
        pytest.param(
            Settings(min_tokens=1, stop_ids=(0, 1)), (0, 0, 1 / 2, 1 / 4, 1 / 4), id="min tokens"
        ),
    ],
)
def test_settings_give_what_their_definition_says(settings, expected):
    assert _probabilities(_HALVES, settings) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Seen: 0 in the prompt, 1 twice and 2 once in the output.
        pytest.param(Settings(repetition_penalty=2.0), (1, -2, 0.25, 0), id="repetition"),
        pytest.param(Settings(repetition_penalty=0.5), (4, -0.5, 1, 0), id="repetition, rewarded"),
        pytest.param(Settings(frequency_penalty=0.5), (2, -2, 0, 0), id="frequency"),
        pytest.param(Settings(presence_penalty=0.75), (2, -1.75, -0.25, 0), id="presence"),
        pytest.param(
            Settings(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=-1.0),
            (1, -2, 0.75, 0),
            id="all three",
        ),
        # The bias comes first: -1 + 3 is positive, and halved.
        pytest.param(
            Settings(repetition_penalty=2.0, logit_bias={1: 3.0}),
            (1, 1, 0.25, 0),
            id="bias, then repetition",
        ),
        # Penalties come before the temperature.
        pytest.param(
            Settings(frequency_penalty=0.5, temperature=0.5), (4, -4, 0, 0), id="then temperature"
        ),
        pytest.param(
            Settings(frequency_penalty=0.5, temperature=0.0), (2, -2, 0, 0), id="greedy too"
        ),
    ],
)
def test_penalties_change_logits_as_their_definition_says(settings, expected):
    found = distribution(np.array([2.0, -1.0, 0.5, 0.0]), (0,), (1, 2, 1), settings)
    assert found.logits.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("word", "output", "excluded"),
    [
        pytest.param((3,), (), True, id="of one token, at once"),
        pytest.param((1, 3), (), False, id="of two, not at once"),
        pytest.param((1, 3), (0, 1), True, id="of two, begun"),
        pytest.param((1, 3), (1, 0), False, id="of two, begun earlier"),
        pytest.param((2, 1, 3), (2, 1), True, id="of three, begun"),
        pytest.param((2, 1, 3), (0, 1), False, id="of three, half begun"),
    ],
)
def test_a_bad_words_last_token_is_excluded_where_it_would_end_the_word(word, output, excluded):
    found = distribution(np.zeros(4), (2, 1), output, Settings(bad_words=(word,)))
    assert found.allowed.tolist() == [True, True, True, not excluded]


def test_stop_tokens_are_allowed_once_the_minimum_is_there():
    settings = Settings(min_tokens=2, stop_ids=(1,))
    seen = [distribution(np.zeros(3), (0,), (2,) * n, settings).allowed[1] for n in range(4)]
    assert seen == [False, False, True, True]


@pytest.mark.parametrize(
    ("settings", "logits", "certain", "possible"),
    [
        pytest.param(Settings(top_k=1), (0.0, -1e-3, -1.0), (), (0, 1), id="top-k at a near-tie"),
        pytest.param(Settings(top_k=1), (0.0, -0.5, -1.0), (0,), (0,), id="top-k, clear"),
        pytest.param(
            Settings(min_p=0.5), (0.0, math.log(0.5), -2.0), (0,), (0, 1), id="min-p at its edge"
        ),
        # The first token has the mass 1/2, or a little less.
        pytest.param(
            Settings(top_p=0.5), (0.0, math.log(0.5), math.log(0.5)), (0,), (0, 1, 2), id="top-p"
        ),
        pytest.param(
            Settings(temperature=10.0, top_k=1), (0.0, -5e-3, -1.0), (), (0, 1), id="scaled by T"
        ),
    ],
)
def test_a_slack_tells_what_is_sure_from_what_is_possible(settings, logits, certain, possible):
    found = distribution(np.array(logits), (0,), (), settings, slack=4e-3)
    assert tuple(np.flatnonzero(found.certain)) == certain
    assert tuple(np.flatnonzero(found.possible)) == possible


def test_a_slack_of_nothing_leaves_nothing_open():
    drawn = np.random.default_rng(7).normal(size=(50, 40)) * 2
    settings = Settings(temperature=0.8, top_k=20, top_p=0.8, min_p=0.01)
    sizes = set()
    for row in drawn:
        found = distribution(row, (1,), (2,), settings)
        assert (found.certain == found.allowed).all() and (found.possible == found.allowed).all()
        sizes.add(int(found.allowed.sum()))
    assert len(sizes) > 5 and max(sizes) < 20


def test_request_parameters_become_settings():
    parameters = {
        "temperature": 0.7,
        "top_k": 5,
        "max_tokens": 9,
        "logit_bias": {"4": 1.5},
        "allowed_token_ids": [1, 2],
        "stop_token_ids": [3],
        "min_tokens": 2,
    }
    assert Settings.of(parameters, [(8, 9)]) == Settings(
        temperature=0.7,
        top_k=5,
        bad_words=((8, 9),),
        logit_bias={4: 1.5},
        allowed_token_ids=(1, 2),
        min_tokens=2,
        stop_ids=(3,),
    )


def test_greedy_requests_have_no_cuts():
    settings = Settings.of({"temperature": 0.0, "top_k": 1, "top_p": 0.1, "min_p": 0.5}, ())
    assert _probabilities(_HALVES, settings) == pytest.approx((1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16))


def test_a_distribution_over_another_support_is_normalised_over_it():
    found = distribution(np.array(_HALVES), (), (), Settings(top_k=2))
    support = np.array([True, False, True, False, False])
    assert np.exp(found.logprobs(support)).tolist() == pytest.approx((4 / 5, 0, 1 / 5, 0, 0))


def test_no_distribution_is_an_error():
    with pytest.raises(ValueError, match="no distribution"):
        log_softmax(np.full(3, -np.inf))


def _scored(query, rows):
    """A reference's answer to a query, from a row of logits per token."""
    steps = tuple(
        StepReference(token, float(log_softmax(np.array(row))[token]), (), (), logits=tuple(row))
        for token, row in zip(query.continuation, rows, strict=True)
    )
    return SequenceReference(query.prompt, steps, len(steps), len(rows[0]))


def test_logits_survive_json_and_older_files_have_none():
    query = ForcedQuery((5,), (0, 1), logits=True)
    answer = _scored(query, [(0.1, -1 / 3, 1e-300), (2.0, 3.0, -5.5)])
    written = ReferenceSet(Provenance("hand", {}, "float64", "none", "none", "cpu"), (answer,))
    data = reference_set_to_json(written)
    assert reference_set_from_json(data).sequences == (answer,)
    assert query_from_json(query_to_json(query)) == query
    for step in data["sequences"][0]["steps"]:
        del step["logits"]
    assert not any(s.logits for s in reference_set_from_json(data).sequences[0].steps)
    assert "logits" not in query_to_json(ForcedQuery((5,), (0, 1)))


def test_the_probability_of_a_text_is_the_product_of_its_tokens():
    # Whatever came before, token 0 has 3/4 at the first step, and 1/4 after a 0, 1/2 after a 1.
    after = {(): 3 / 4, (0,): 1 / 4, (1,): 1 / 2}

    def ask(queries):
        return [
            _scored(
                query,
                [
                    (
                        math.log(after[query.continuation[:i]]),
                        math.log1p(-after[query.continuation[:i]]),
                    )
                    for i in range(len(query.continuation))
                ],
            )
            for query in queries
        ]

    found = text_probabilities((1,), [(0, 0), (0, 1), (1, 0), (0, 1)], Settings(), ask)
    assert found == pytest.approx({(0, 0): 3 / 16, (0, 1): 9 / 16, (1, 0): 1 / 8})


def test_bad_words_and_the_end_of_the_text_are_token_ids():
    settings = settings_of({"bad_words": ["w0007 w0123", "w0004"], "stop_token_ids": [9]})
    assert settings.bad_words == ((7, 123), (4,)) and settings.stop_ids == (9, 2)


_WHOLE = (30, 31, 2, 40, 41, 40, 41, 50)


@pytest.mark.parametrize(
    ("parameters", "tokens", "text", "reasons"),
    [
        pytest.param({}, (30, 31, 2), " w0030 w0031", ("stop", None), id="end of the text"),
        pytest.param({"ignore_eos": True, "max_tokens": 4}, _WHOLE[:4], None, None, id="limit"),
        pytest.param({"max_tokens": 2}, (30, 31), " w0030 w0031", None, id="limit before the end"),
        pytest.param({"max_tokens": 3}, (30, 31, 2), None, ("stop", None), id="end at the limit"),
        pytest.param({"stop_token_ids": [31]}, (30, 31), " w0030", ("stop", 31), id="stop token"),
        pytest.param(
            {"ignore_eos": True, "stop": ["w0041 w0040"]},
            _WHOLE[:6],
            " w0030 w0031 w0040 ",
            ("stop", "w0041 w0040"),
            id="stop text over two tokens",
        ),
        pytest.param(
            {"ignore_eos": True, "stop": ["41", "0040"], "include_stop_str_in_output": True},
            _WHOLE[:4],
            " w0030 w0031 w0040",
            ("stop", "0040"),
            id="the first of two, included",
        ),
    ],
)
def test_a_request_ends_at_what_comes_first(parameters, tokens, text, reasons):
    found = ending(_WHOLE, {"max_tokens": 8, **parameters})
    assert found.tokens == tokens
    assert found.text == (words(tokens) if text is None else text)
    assert (found.finish_reason, found.stop_reason) == (reasons or ("length", None))


def test_too_short_a_text_tells_no_ending():
    with pytest.raises(ValueError, match="do not tell"):
        ending(_WHOLE[:2], {"max_tokens": 8})


_OBJECT = {
    "json": {
        "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": 9},
            "c": {"enum": ["x"]},
            "ok": {"type": "boolean"},
        },
        "required": ["n", "c", "ok"],
    }
}
_NESTED = {"grammar": "..."}


@pytest.mark.parametrize(
    ("grammar", "text", "inside"),
    [
        ({"regex": "a+b"}, "aab", True),
        ({"regex": "a+b"}, "aabc", False),
        ({"choice": ["yes", "no"]}, "no", True),
        ({"choice": ["yes", "no"]}, "n", False),
        (_OBJECT, '{"n": 9, "c": "x", "ok": true}', True),
        (_OBJECT, '{"n": 10, "c": "x", "ok": true}', False),
        (_OBJECT, '{"n": true, "c": "x", "ok": true}', False),
        (_OBJECT, '{"n": 9, "c": "y", "ok": true}', False),
        (_OBJECT, '{"n": 9, "c": "x", "ok": 1}', False),
        (_OBJECT, '{"n": 9, "c": "x"}', False),
        (_OBJECT, '{"n": 9, "c": "x", "ok": tr', False),
        (_NESTED, "((y))", True),
        (_NESTED, "((y)", False),
        (_NESTED, "y", False),
    ],
)
def test_a_text_is_in_a_grammars_language_or_not(grammar, text, inside):
    assert (conforms(text, grammar) is None) == inside
