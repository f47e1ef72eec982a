"""The chi-square test against tables, against draws, and against its own promise of power."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from conformance.references.goodness import (
    POWER,
    chi_square_survival,
    detectable,
    distance,
    fit,
    noncentral_survival,
)


@pytest.mark.parametrize(
    ("value", "freedom", "survival"),
    [
        # Two degrees are an exponential; one is a normal's square; four, e^-x/2 (1 + x/2).
        (2.0, 2, math.exp(-1)),
        (60.0, 2, math.exp(-30)),
        (3.0, 1, math.erfc(math.sqrt(1.5))),
        (40.0, 1, math.erfc(math.sqrt(20))),
        (5.0, 4, math.exp(-2.5) * 3.5),
        # Quantiles from the printed tables.
        (18.307, 10, 0.05),
        (124.342, 100, 0.05),
        (2.558, 10, 0.99),
        (149.449, 100, 0.001),
    ],
)
def test_the_survival_function_has_the_known_values(value, freedom, survival):
    table = 1e-4 if survival in (0.05, 0.99, 0.001) else 1e-9
    assert chi_square_survival(value, freedom) == pytest.approx(survival, rel=10 * table)


def test_the_non_central_survival_is_that_of_shifted_normals():
    # One degree: (Z + d)^2 >= x, from the normal distribution itself.
    d, x = 1.5, 4.0
    upper = 0.5 * math.erfc((math.sqrt(x) - d) / math.sqrt(2))
    lower = 0.5 * math.erfc((math.sqrt(x) + d) / math.sqrt(2))
    assert noncentral_survival(x, 1, d * d) == pytest.approx(upper + lower, rel=1e-9)


_TARGET = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}


def _drawn(source, draws, seed):
    # Only the seed decides: two draws from it are the same.
    return Counter(random.Random(seed).choices(list(source), list(source.values()), k=draws))


def test_draws_from_the_distribution_have_p_values_from_0_to_1():
    fits = [fit(_drawn(_TARGET, 2000, seed), _TARGET) for seed in range(200)]
    values = sorted(chi_square_survival(found.statistic, 3) for found in fits)
    # Kolmogorov's distance from uniform: above 0.14 in one of a thousand.
    assert max(abs(p - (i + 0.5) / 200) for i, p in enumerate(values)) < 0.14
    assert all(found.holds for found in fits)


def test_a_source_at_the_detectable_distance_is_seen_as_often_as_promised():
    draws = 4000
    wanted = detectable(3, draws)
    # Move mass from the likeliest to the least likely: (m/0.4)m + (m/0.1)m = 12.5 m^2.
    moved = wanted / math.sqrt(12.5)
    source = {**_TARGET, 0: 0.4 - moved, 3: 0.1 + moved}
    assert distance(source, _TARGET) == pytest.approx(wanted)
    seen = sum(not fit(_drawn(source, draws, seed), _TARGET).holds for seed in range(300))
    assert seen >= 300 * POWER - 8


def test_rare_outcomes_share_a_bin():
    target = {**{i: 0.001 for i in range(100)}, "a": 0.5, "b": 0.4}
    found = fit({"a": 500, "b": 400, **{i: 1 for i in range(100)}}, target)
    assert found.bins == 3 and found.statistic == pytest.approx(0.0) and found.holds


def test_a_rare_outcome_that_comes_far_too_often_is_found_in_a_full_bin():
    target = {**{i: 0.001 for i in range(100)}, "a": 0.5, "b": 0.4}
    found = fit({"a": 500, "b": 400, 5: 100}, target)
    assert not found.holds and "5: 100 draws, 1.0 expected" in str(found)


def test_a_single_text_that_is_drawn_always_is_found_without_a_second_bin():
    assert not fit({"a": 1500}, {"a": 0.003}).holds


def test_an_impossible_outcome_is_no_chance():
    found = fit({"a": 500, "b": 499, "c": 1}, {"a": 0.5, "b": 0.5, "c": 0.0})
    assert not found.holds and "no probability" in str(found)


def test_a_test_without_bins_is_an_error():
    with pytest.raises(ValueError, match="bins"):
        fit({"a": 5}, {"a": 1.0})
