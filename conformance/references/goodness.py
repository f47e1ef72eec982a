"""Are draws distributed as they should be? Pearson's chi-square test, with its power.

The error rate is the probability that draws from the very distribution are called wrong; seeds are
fixed, so a run that passed once passes always. The power says which deviations are seen: a source
of other probabilities q at a distance of at least `detectable` is called wrong with 99 in 100.

Pure Python. The survival functions are those of the chi-square distribution and its non-central
one (Abramowitz and Stegun, 6.5 and 26.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Fit", "chi_square_survival", "detectable", "distance", "fit", "noncentral_survival"]

Outcome = TypeVar("Outcome", bound=Hashable)

ERROR_RATE = 1e-6
"""Probability of a false alarm, per test."""
POWER = 0.99
LEAST_EXPECTED = 10.0
"""Draws that a bin must expect; those that expect fewer are pooled (Cochran's rule says 5)."""


@dataclass(frozen=True)
class Fit:
    """What a test says: the statistic, a p-value, and the bin that deviates most.

    ``detectable`` is the distance (see `distance`) at which another source is seen.
    """

    draws: int
    bins: int
    statistic: float
    p_value: float
    detectable: float
    worst: str

    @property
    def holds(self) -> bool:
        """Whether the draws may come from the distribution."""
        return self.p_value >= ERROR_RATE

    def __str__(self) -> str:
        return (
            f"chi-square {self.statistic:.1f} over {self.bins} bins of {self.draws} draws, "
            f"p {self.p_value:.2g} (error rate {ERROR_RATE:g}); most in {self.worst}"
        )


def fit(counts: Mapping[Outcome, int], probabilities: Mapping[Outcome, float]) -> Fit:
    """Hold draws, counted by outcome, against the probability of each outcome.

    Outcomes that expect fewer than `LEAST_EXPECTED` draws share a bin, together with what
    ``probabilities`` leaves out of 1; one of them that comes far too often is a finding of its own
    (`_repetition`), which takes half of the error rate. A draw of an outcome of probability 0 is a
    p-value of 0. ``probabilities`` must have every outcome that was drawn.
    Errors: ValueError when there are fewer than two bins, and no other finding.
    """
    draws = sum(counts.values())
    impossible = [o for o, count in counts.items() if count and probabilities[o] == 0.0]
    seen: dict[str, int] = {}
    expected: dict[str, float] = {}
    for outcome, probability in probabilities.items():
        if probability * draws >= LEAST_EXPECTED:
            expected[str(outcome)] = probability * draws
            seen[str(outcome)] = counts.get(outcome, 0)
    rest = draws - sum(expected.values())
    others = draws - sum(seen.values())
    if rest >= LEAST_EXPECTED:
        expected["all others"], seen["all others"] = rest, others
    elif others and expected:
        # Too few to be a bin: they join the least likely one.
        least = min(expected, key=lambda outcome: expected[outcome])
        expected[least] += max(rest, 0.0)
        seen[least] += others
    rare = {o: n for o, n in counts.items() if probabilities[o] * draws < LEAST_EXPECTED}
    often = max(rare, key=lambda outcome: rare[outcome], default=None)
    repeated = _repetition(rare[often], draws) if often is not None else 1.0
    freedom = max(len(expected) - 1, 1)

    def told(statistic: float, p_value: float, worst: str) -> Fit:
        sees = detectable(freedom, draws)
        return Fit(draws, len(expected), statistic, p_value, sees, worst)

    if impossible:
        return told(math.inf, 0.0, f"{impossible[0]}, which has no probability at all")
    if often is not None and 2 * repeated < ERROR_RATE:
        wanted = probabilities[often] * draws
        text = f"{often}: {rare[often]} draws, {wanted:.1f} expected"
        return told(math.inf, 2 * repeated, text)
    if len(expected) < 2:
        raise ValueError(f"{len(expected)} bins of at least {LEAST_EXPECTED:g} draws, of {draws}")
    terms = {o: (seen[o] - wanted) ** 2 / wanted for o, wanted in expected.items()}
    statistic = sum(terms.values())
    worst = max(terms, key=lambda outcome: terms[outcome])
    p_value = min(1.0, 2 * chi_square_survival(statistic, freedom))
    return told(statistic, p_value, f"{worst}: {seen[worst]} draws, {expected[worst]:.1f} expected")


def _repetition(count: int, draws: int) -> float:
    """A bound on the probability that any outcome too rare for a bin is drawn so often.

    Any of them has p < L/n of L expected draws. The chance that one is drawn c times is at most
    C(n, c) p^c, and the sum over all of them at most C(n, c) (L/n)^(c - 1), as their p add up to 1
    at most.
    """
    ways = math.lgamma(draws + 1) - math.lgamma(count + 1) - math.lgamma(draws - count + 1)
    return math.exp(min(0.0, ways + (count - 1) * math.log(LEAST_EXPECTED / draws)))


def distance(source: Mapping[Outcome, float], target: Mapping[Outcome, float]) -> float:
    """The chi-square distance of two distributions: sqrt(sum((q - p)^2 / p)); inf outside of p."""
    outside = any(q > 0 and target.get(outcome, 0.0) == 0.0 for outcome, q in source.items())
    if outside:
        return math.inf
    return math.sqrt(sum((source.get(o, 0.0) - p) ** 2 / p for o, p in target.items() if p > 0))


def detectable(freedom: int, draws: int) -> float:
    """The distance at which draws from another source fail the test with `POWER`."""
    limit = _least(lambda x: 2 * chi_square_survival(x, freedom) <= ERROR_RATE)
    shift = _least(lambda x: noncentral_survival(limit, freedom, x) >= POWER)
    return math.sqrt(shift / draws)


def chi_square_survival(value: float, freedom: int) -> float:
    """P(X >= value) for a chi-square variable of ``freedom`` degrees; relative error below 1e-9."""
    return _upper_gamma(freedom / 2, value / 2)


def noncentral_survival(value: float, freedom: int, shift: float) -> float:
    """P(X >= value) for a chi-square variable with the non-centrality ``shift``.

    A Poisson mixture of central ones; terms below 1e-12 in all are left out.
    """
    mean = shift / 2
    middle, width = int(mean), int(10 * math.sqrt(mean) + 40)
    total = 0.0
    for j in range(max(0, middle - width), middle + width):
        weight = math.exp(-mean + (j * math.log(mean) if j else 0.0) - math.lgamma(j + 1))
        total += weight * chi_square_survival(value, freedom + 2 * j)
    return total


def _upper_gamma(a: float, x: float) -> float:
    """Q(a, x), the regularised upper incomplete gamma function: a series, or a fraction."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return 1 - scale * total
    # Lentz's evaluation of the continued fraction.
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    value = d
    for i in range(1, 10_000):
        numerator = i * (a - i)
        b += 2
        d = 1 / (numerator * d + b or tiny)
        c = b + numerator / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * value


def _least(holds: Callable[[float], bool]) -> float:
    """The least value from which a claim holds, by bisection to a thousandth."""
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
