"""The float64 sampler against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

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
