"""Find groups that stand out by themselves: every test of every kind, before folding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.base.estimates import Estimate
from ncclean.explaining.aggregates import Groups, Totals
from ncclean.explaining.discoveries import (
    FEWEST_GROUPS,
    heterogeneity,
    log_p_values,
    log_threshold,
    q_values,
)
from ncclean.explaining.kinds import LENGTH, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs import Required, Values

# Fewer pairs of a stratum outside a group say too little about what to expect.
_FEWEST_OUTSIDE = 200
MOST_CANDIDATES = 400


@dataclass(frozen=True)
class Candidate:
    """A group whose pairs are wrong significantly more often than others, in one outcome.

    `required` names the values that are in excess, and `tau2` their variances between groups
    without a cause. `rate` is the group's share of wrong pairs if it is not derived from the
    values; such a group is always a cause.
    """

    kind: Kind
    value: str
    outcome: int
    required: Required
    tau2: tuple[float, ...]
    strength: float
    q_value: float
    rate: Estimate | None = None

    @property
    def group(self) -> tuple[str, str]:
        return self.kind.name, self.value


@dataclass(frozen=True)
class Test:
    """Results of testing G groups, (G,) each: log p-value, mean, expected mean, and strength.

    The strength is the excess of the mean in standard deviations.
    """

    log_p: np.ndarray
    mean: np.ndarray
    expected: np.ndarray
    strength: np.ndarray


@dataclass(frozen=True)
class Candidates:
    """The groups that stand out, the strongest first, at most 400.

    `tested` counts the tests, `left_out` the groups beyond the limit. Tests with a log p-value up
    to `log_threshold` are discoveries.
    """

    listed: tuple[Candidate, ...]
    tested: int
    left_out: int
    log_threshold: float


def excess_tests(
    pairs: np.ndarray,
    sums: np.ndarray,
    totals: Totals,
    tau2: Sequence[float] | np.ndarray,
    required: Required,
    by_stratum: bool = True,
) -> Test:
    """Test whether the means of G groups exceed the expected ones in all of C values.

    `pairs` (G, S) and `sums` (C, G, S) are by stratum of caption length. The expected mean of a
    group is that of the pairs outside it in the same strata; see `comparison`. With `by_stratum`
    false, captions of any length are compared. `tau2`, (C,) or (C, G), is the variance of the means
    of groups without a cause. The p-value is that of the value with the weakest one; the other
    results are those of the first value.
    """
    compared, sums, means = comparison(pairs, sums, totals, by_stratum)
    count = np.maximum(compared.sum(axis=1), 1e-9)
    mean = sums.sum(axis=2) / count
    expected = (means * compared).sum(axis=2) / count
    variances = (totals.variances[:, None, :] * compared).sum(axis=2) / count**2
    spread = np.broadcast_to(np.asarray(tau2, float).reshape(len(sums), -1), mean.shape)
    of_wrong = totals.shown[:, None] * (mean - expected)[0]
    log_p = log_p_values(count, mean, expected, variances * count, spread)
    excess = mean - expected
    is_shown = excess >= np.array(required.least)[:, None] * of_wrong
    strength = excess / np.sqrt(variances + spread + 1e-12)
    return Test(np.where(is_shown, log_p, 0.0).max(axis=0), mean[0], expected[0], strength[0])


def comparison(
    pairs: np.ndarray, sums: np.ndarray, totals: Totals, by_stratum: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the comparable pairs of groups, their sums, and the means of the pairs outside.

    These are (G, S), (C, G, S) and (C, G, S), by stratum of caption length. Strata with few pairs
    outside a group are set to 0. A group that covers its strata, and with `by_stratum` false every
    group, is compared with all pairs outside, if these are enough.
    """
    outside = totals.pairs - pairs
    outside_sums = totals.sums[:, None, :] - sums
    is_comparable = (outside >= _FEWEST_OUTSIDE) & by_stratum
    is_alone = ~(pairs * is_comparable).any(axis=1)[:, None]
    is_comparable = np.where(is_alone, has_outside(pairs, totals)[:, None], is_comparable)
    overall = outside_sums.sum(axis=2) / np.maximum(outside.sum(axis=1), 1)
    means = np.where(is_alone, overall[:, :, None], outside_sums / np.maximum(outside, 1))
    return pairs * is_comparable, sums * is_comparable, np.clip(means, 0.0, 1.0)


def has_outside(pairs: np.ndarray, totals: Totals) -> np.ndarray:
    """Return (G,) bool: whether at least 200 pairs are outside a group, of any caption length.

    `pairs` (G, S) counts the groups' pairs by stratum.
    """
    enough: np.ndarray = totals.pairs.sum() - pairs.sum(axis=1) >= _FEWEST_OUTSIDE
    return enough


def compares_lengths(kind: Kind) -> bool:
    """Return whether groups of a kind are compared with captions of the same length only."""
    return kind.name != LENGTH


def candidates_of(
    groups: Sequence[Groups], totals: Totals, values: Values, options: ExplainOptions
) -> Candidates:
    """Test every group of every kind in every outcome, and return those that stand out.

    They are discoveries at the rate `false_discoveries` whose mean exceeds the expected one by
    `min_excess`.
    """
    spreads = _spreads(groups, totals, len(values.names()))
    candidates, tested = [], 0
    for of_kind, spread in zip(groups, spreads, strict=True):
        for number in range(len(values.outcomes)):
            required = values.required(number)
            places = list(required.columns)
            tested += of_kind.tested
            if not len(of_kind.values):
                continue
            tau2 = spread[places]
            test = excess_tests(
                of_kind.pairs, of_kind.sums[places], totals.of(places), tau2, required,
                compares_lengths(of_kind.kind),
            )  # fmt: skip
            candidates.append((of_kind, number, required, tuple(map(float, tau2)), test))
    log_p = np.concatenate([test.log_p for *_, test in candidates]) if candidates else np.empty(0)
    threshold = log_threshold(log_p, tested, options.false_discoveries)
    ends = np.cumsum([len(test.log_p) for *_, test in candidates])[:-1]
    of_tests = np.split(q_values(log_p, tested), ends) if candidates else []
    listed = [
        Candidate(
            of_kind.kind,
            of_kind.values[at],
            number,
            required,
            tau2,
            float(test.strength[at]),
            float(rates[at]),
        )
        for (of_kind, number, required, tau2, test), rates in zip(candidates, of_tests, strict=True)
        for at in np.flatnonzero(
            (test.log_p <= threshold) & (test.mean - test.expected >= options.min_excess)
        )
    ]
    listed.sort(key=lambda one: (-one.strength, one.kind.name, one.value))
    return Candidates(
        tuple(listed[:MOST_CANDIDATES]), tested, max(len(listed) - MOST_CANDIDATES, 0), threshold
    )


def _spreads(groups: Sequence[Groups], totals: Totals, columns: int) -> list[np.ndarray]:
    """Return (C,) tau^2 of each kind: its own, or that of words if it has too few groups."""
    by_kind = {of_kind.kind.name: _spread(of_kind, totals, columns) for of_kind in groups}
    fallback = by_kind.get("word")
    if fallback is None:
        largest = [spread for spread in by_kind.values() if spread is not None]
        fallback = np.max(largest, axis=0) if largest else np.zeros(columns)
    spreads = (by_kind[of_kind.kind.name] for of_kind in groups)
    return [fallback if spread is None else spread for spread in spreads]


def _spread(of_kind: Groups, totals: Totals, columns: int) -> np.ndarray | None:
    typical = of_kind.is_typical & has_outside(of_kind.pairs, totals)
    pairs, sums, means = comparison(
        of_kind.pairs[typical], of_kind.sums[:, typical], totals, compares_lengths(of_kind.kind)
    )
    some = pairs.sum(axis=1) > 0
    if some.sum() < FEWEST_GROUPS:
        return None
    pairs, sums, means = pairs[some], sums[:, some], means[:, some]
    count = pairs.sum(axis=1)
    excess = (sums - means * pairs).sum(axis=2) / count
    variance = (totals.variances[:, None, :] * pairs).sum(axis=2) / count**2
    return np.array([heterogeneity(excess[n], variance[n]) for n in range(columns)])
