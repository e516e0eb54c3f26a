"""A judge beside people: estimates by hand, what it is worth, coverage whatever it says."""

import numpy as np
import pytest

from ncclean.auditing.answers import Answered
from ncclean.auditing.intervals import Cells, found_share, mismatched_share, variances
from ncclean.auditing.two_phase import Problem

MATCH, MISMATCH, NEITHER = range(3)


def judged(*rows, drawn_by_judge=False):
    """Cells of (pairs, judge's answers, people's, those mismatched), the latter three by answer."""
    pairs, judge, answers, mismatched = (
        np.array([column], float) for column in zip(*rows, strict=True)
    )
    return Cells(pairs, answers, mismatched, judge, drawn_by_judge)


def width(estimates):
    return estimates.high[0] - estimates.low[0]


def test_the_estimate_is_the_difference_estimator_with_the_slope_within_cells():
    """60 of 200 people's pairs are called mismatched, but 25 % of the judge's."""
    cells = judged((1e9, (7_500, 2_500, 0), (140, 60, 0), (10, 50, 0)))
    y, f = np.zeros(200), np.zeros(200)
    y[:10], f[140:], y[140:190] = 1, 1, 1
    slope = np.cov(y, f)[0, 1] / (0.25 * 0.75)
    slope *= 60 / (60 + 2)  # shrunk, by 60 mismatches
    expected = 0.3 - slope * (0.3 - 0.25)
    assert slope < 1
    assert mismatched_share(cells).value[0] == pytest.approx(expected, rel=1e-6)


def test_pairs_drawn_by_the_judge_are_samples_of_their_own():
    """Double sampling for stratification: sum phi_j y_j, and its variance (Cochran, 12.2)."""
    cells = judged((1e9, (8_000, 2_000, 0), (50, 150, 0), (5, 120, 0)), drawn_by_judge=True)
    found = mismatched_share(cells)
    value = 0.8 * 0.1 + 0.2 * 0.8
    assert found.value[0] == pytest.approx(value)
    variance = 0.8**2 * 0.1 * 0.9 / 50 + 0.2**2 * 0.8 * 0.2 / 150 + value * (1 - value) / 10_000
    assert width(found) == pytest.approx(2 * 1.96 * variance**0.5, rel=0.08)


def test_a_judge_who_says_nothing_is_left_out():
    cells = judged((1e6, (4_000, 1_000, 0), (120, 30, 0), (24, 6, 0)))
    alone = mismatched_share(cells.without_judge())
    assert mismatched_share(cells)[0] == alone[0]


def test_a_judge_who_says_little_is_left_out_too():
    """It would take one part in thirty of the variance, and its cells leave more room."""
    cells = judged((1e6, (4_000, 1_000, 0), (120, 30, 0), (20, 10, 0)))
    assert mismatched_share(cells)[0] == mismatched_share(cells.without_judge())[0]


def test_the_judges_own_sample_is_drawn_within_strata():
    """Two strata that are nearly clean and nearly mismatched: little varies within them."""
    cells = judged(
        (5e8, (180, 20, 0), (90, 10, 0), (0, 2, 0)),
        (5e8, (20, 180, 0), (10, 90, 0), (8, 90, 0)),
        drawn_by_judge=True,
    )
    rates = np.array([0.1 * 0.2, 0.1 * 0.8 + 0.9])
    assert mismatched_share(cells).value[0] == pytest.approx(rates.mean())
    of_people, of_judge = variances(cells)
    assert of_judge == pytest.approx(0.25 * (rates * (1 - rates)).sum() / 200, rel=1e-3)
    left = (20 - 10) / (20 - 1) / 10  # ten of twenty
    assert of_people == pytest.approx(0.25 * 2 * 0.1**2 * 0.16 * left, rel=1e-3)


@pytest.mark.parametrize(("errors", "narrower"), [(0, 0.45), (2, 0.6), (12, 0.85)])
def test_the_better_a_judge_the_narrower_the_interval(errors, narrower):
    """Of 150 pairs, 30 mismatched; the judge errs as often on both sides."""
    cells = judged((1e6, (4_000, 1_000, 0), (120, 30, 0), (errors // 2, 30 - errors // 2, 0)))
    ratio = width(mismatched_share(cells)) / width(mismatched_share(cells.without_judge()))
    assert narrower - 0.25 < ratio < narrower


def test_a_judge_that_never_erred_so_far_may_err():
    """No error in 150 pairs leaves room for one in fifty, on either side."""
    cells = judged((1e9, (80_000, 20_000, 0), (120, 30, 0), (0, 30, 0)))
    found = mismatched_share(cells)
    assert found.value[0] == pytest.approx(0.2)
    assert 0.015 < found.high[0] - 0.2 < 0.03
    assert 0.01 < 0.2 - found.low[0] < 0.03


def test_what_the_judge_cannot_tell_is_the_mean_of_the_others():
    """A third of people's pairs, a tenth of the judge's, of which it calls a third mismatched."""
    cells = judged((1e9, (6_000, 3_000, 1_000), (40, 60, 50), (2, 50, 15)))
    f = np.repeat([0.0, 1.0, 1 / 3], [40, 60, 50])
    y = np.concatenate([np.arange(n) < x for n, x in ((40, 2), (60, 50), (50, 15))])
    of_judge = np.repeat([0.0, 1.0, 1 / 3], [6_000, 3_000, 1_000])
    slope = np.cov(y, f)[0, 1] / of_judge.var() * 67 / (67 + 2)
    expected = y.mean() - slope * (f.mean() - of_judge.mean())
    assert mismatched_share(cells).value[0] == pytest.approx(expected, rel=1e-6)


def test_mismatches_found_by_the_judge_raise_a_recall_alike_on_both_sides():
    flagged = judged((2_000, (300, 700, 0), (10, 50, 0), (1, 48, 0)))
    others = judged((8_000, (3_800, 200, 0), (80, 10, 0), (0, 9, 0)))
    found = found_share(flagged, others)
    alone = found_share(flagged.without_judge(), others.without_judge())
    assert found.low[0] <= found.value[0] <= found.high[0]
    assert width(found) < 0.8 * width(alone)


KINDS = {
    "right": lambda y, p, rng: y,
    "nine of ten": lambda y, p, rng: y ^ (rng.random(len(y)) < 0.1),
    "useless": lambda y, p, rng: rng.random(len(y)) < 0.2,
    "lenient": lambda y, p, rng: y & (rng.random(len(y)) < 0.6),
    "strict": lambda y, p, rng: y | (rng.random(len(y)) < 0.2),
    "inverted": lambda y, p, rng: ~y,
    "as the estimator": lambda y, p, rng: p >= 0.5,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.01, 0.2])
@pytest.mark.parametrize("by_judge", [False, True])
def test_intervals_hold_whatever_the_judge_says(kind, rate, by_judge):
    rng = np.random.default_rng([len(kind), round(100 * rate), by_judge])
    pairs, draws = 8_000, 150
    p = rng.beta(0.3, 0.3 * (1 - rate) / rate, pairs)
    y = rng.random(pairs) < 0.8 * p + 0.1 * rate
    said = KINDS[kind](y, p, rng).astype(int)
    stratum = np.searchsorted([0.05, 0.5, 0.95], p)
    of_cell = 3 * stratum + said
    counts = []
    for _ in range(draws):
        order = rng.permutation(pairs)
        judge = order[:3_000]
        people = judge[:150]
        if by_judge:  # twelve of each stratum and answer
            people = np.concatenate([judge[of_cell[judge] == cell][:12] for cell in range(12)])
        counts.append(
            [
                np.bincount(of_cell[mine], minlength=12).reshape(4, 3)
                for mine in (judge, people, people[y[people]])
            ]
        )
    judge, answers, mismatched = (
        np.stack(part).astype(float) for part in zip(*counts, strict=True)
    )
    whole = np.broadcast_to(np.bincount(stratum, minlength=4).astype(float), (draws, 4))
    found = mismatched_share(Cells(whole, answers, mismatched, judge, by_judge))
    holds = (found.low <= y.mean()) & (y.mean() <= found.high)
    assert holds.mean() >= 0.9  # two standard errors below .935


def test_rows_do_not_touch_each_other():
    one = judged((9_000, (3_000, 500, 10), (60, 20, 2), (3, 15, 1)))
    other = judged((9_000, (2_000, 100, 0), (60, 0, 0), (0, 0, 0)))
    fields = ("pairs", "answers", "mismatched", "judged")
    both = Cells(*(np.concatenate([getattr(c, n) for c in (one, other)]) for n in fields))
    assert mismatched_share(both)[0] == mismatched_share(one)[0]
    assert mismatched_share(both)[1] == mismatched_share(other)[0]


def test_variances_are_those_of_repeated_draws():
    rng = np.random.default_rng(5)
    y = np.arange(6_000) < 1_500
    said = (y ^ (rng.random(6_000) < 0.1)).astype(int)
    values, expected = [], []
    for _ in range(400):
        judge = rng.permutation(6_000)[:2_000]
        people = judge[:1_000]
        rows = [np.bincount(said[m], minlength=3) for m in (judge, people, people[y[people]])]
        cells = judged((6_000, *rows))
        problem = Problem(
            cells.pairs, cells.answers, cells.mismatched, cells.judged, np.zeros(1), np.zeros(1)
        )
        values.append(problem.mean[0, 0])
        expected.append(problem.variance(np.ones((1, 1)))[0])
    assert np.mean(values) == pytest.approx(0.25, abs=0.003)
    assert np.mean(expected) == pytest.approx(np.var(values), rel=0.15)


def test_answers_count_by_stratum_and_by_what_the_judge_says():
    people = Answered(
        strata=2,
        stratum=np.array([0, 0, 1, 1]),
        mismatched=np.array([0.0, 1.0, 1.0, 0.0]),
        judge=np.array([0, 1, -1, 2]),
        drawn_by_judge=False,
    )
    among = np.array([[True, True, True, False]])
    cells = people.cells(among, np.array([[50.0, 10.0]]), np.array([[[30, 5, 1], [4, 2, 0]]]))
    assert cells.answers[0].tolist() == [[1, 1, 0], [0, 0, 1]]
    assert cells.mismatched[0].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert cells.judged[0].tolist() == [[30, 5, 1], [4, 2, 1]]  # unjudged: it is neither


def test_weights_bring_the_judges_answers_to_their_share():
    people = Answered(
        strata=1,
        stratum=np.zeros(4, int),
        mismatched=np.array([0.0, 0.0, 0.0, 1.0]),
        judge=np.array([0, 0, 0, 1]),
        drawn_by_judge=False,
    )
    whole = people.cells(np.ones((1, 4), bool), np.array([[100.0]]), np.array([[[90, 10, 0]]]))
    assert people.weights(whole, with_judge=False) == pytest.approx([25.0] * 4)
    assert people.weights(whole, with_judge=True) == pytest.approx([30.0, 30.0, 30.0, 10.0])


def test_third_cumulants_of_the_judges_sample_are_a_binomials():
    """With a judge who never errs all that varies is its sample: p (1 - p) (1 - 2p) / n^2."""
    cells = judged((1e9, (9_000, 1_000, 0), (900, 100, 0), (0, 100, 0)))
    problem = Problem(
        cells.pairs, cells.answers, cells.mismatched, cells.judged, np.zeros(1), np.zeros(1)
    )
    weights = np.ones((1, 1))
    variances_of, thirds, _ = problem._cumulants(weights, problem._full(problem._seen))
    assert variances_of[0, -1] == pytest.approx(0.1 * 0.9 / 10_000, rel=1e-3)
    assert thirds[0, -1] == pytest.approx(0.1 * 0.9 * 0.8 / 10_000**2, rel=1e-3)
