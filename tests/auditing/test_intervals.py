"""Intervals: hand-computed ends, what no mismatch means, and coverage in simulated audits."""

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from ncclean.auditing.intervals import Cells, found_share, mismatched_share
from ncclean.auditing.strata import Strata


def cells(*rows):
    """Of (pairs, answers, mismatched) for each cell."""
    return Cells(*(np.array([column], dtype=float) for column in zip(*rows, strict=True)))


def drawn_by_a_judge(*rows):
    """Of (pairs, answers, mismatched, judged) for each stratum, the last three by its answer."""
    return Cells(*(np.array([c], dtype=float) for c in zip(*rows, strict=True)), True)


def share_of(made):
    return mismatched_share(made)[0]


def recall_of(flagged, others):
    return found_share(flagged, others)[0]


def test_one_cell_is_the_share_of_a_simple_sample():
    estimate = share_of(cells((1e9, 100, 20)))
    assert estimate.value == 0.2
    # Mid-p interval of 20 of 100: .1304 to .2868 (R's exactci::binom.exact with midp).
    assert estimate.low == pytest.approx(0.1304, abs=0.003)
    assert estimate.high == pytest.approx(0.2868, abs=0.003)


@pytest.mark.parametrize("answers", [3, 5, 7, 10, 20, 50, 300])
def test_of_a_simple_sample_of_any_size_at_least_93_percent_hold_the_share(answers):
    """Over all counts that a sample can have, each as likely as its share makes it."""
    counts = np.arange(answers + 1.0)[:, None]
    pairs = np.full_like(counts, 1e6)
    found = mismatched_share(Cells(pairs, np.full_like(counts, answers), counts))
    for share in np.linspace(0.005, 0.995, 199):
        holds = (found.low <= share) & (share <= found.high)
        assert binom.pmf(counts[:, 0], answers, share)[holds].sum() >= 0.93


def test_no_mismatch_in_ten_answers_leaves_as_much_doubt_as_the_exact_interval():
    assert share_of(cells((1e9, 10, 0))).high == pytest.approx(1 - 0.025**0.1, abs=0.02)


def test_without_a_mismatch_the_rule_of_three_holds():
    estimate = share_of(cells((1e9, 100, 0)))
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    # By likelihood 1.9 / n, by mid-p 3 / n, exactly 3.6 / n.
    assert 0.019 < estimate.high < 0.0362


def test_all_mismatched_mirrors_none():
    none, every = share_of(cells((1e6, 50, 0))), share_of(cells((1e6, 50, 50)))
    assert every.low == pytest.approx(1 - none.high, abs=1e-5)
    assert every.high == 1.0


def test_a_heavy_cell_without_a_mismatch_keeps_its_doubt():
    """Wald's interval would take the doubt from the small cell alone."""
    estimate = share_of(cells((9_000, 90, 0), (1_000, 90, 45)))
    assert estimate.value == pytest.approx(0.05)
    assert estimate.high > 0.05 + 0.9 * 1.9 / 90
    assert estimate.low > 0.038


def test_everything_judged_leaves_no_doubt():
    every = share_of(cells((100, 100, 7), (50, 50, 1)))
    assert (every.low, every.value, every.high) == pytest.approx([8 / 150] * 3)
    nearly = share_of(cells((102, 100, 7)))
    assert nearly.low >= 7 / 102
    assert nearly.high <= 9 / 102


def test_a_small_corpus_is_known_better():
    large, small = share_of(cells((1e6, 100, 20))), share_of(cells((200, 100, 20)))
    shrunk = (small.high - small.low) / (large.high - large.low)
    assert shrunk == pytest.approx(0.5**0.5, abs=0.03)


def test_cells_without_answers_are_like_their_neighbours():
    apart = share_of(cells((100, 10, 5), (900, 0, 0), (1000, 50, 1)))
    joined = share_of(cells((1000, 10, 5), (1000, 50, 1)))
    assert apart == joined
    # Nor does a stratum count twice of which people's pairs were drawn by a judge's answers.
    judged, few, none = [50.0, 30.0, 20.0], [20.0, 10.0, 5.0], [0.0, 0.0, 0.0]
    first, last = ([few, [2.0, 8.0, 2.0], judged], [few, [1.0, 3.0, 0.0], judged])
    apart = drawn_by_a_judge((100, *first), (900, none, none, judged), (1000, *last))
    joined = drawn_by_a_judge((1000, *first), (1000, *last))
    assert share_of(apart) == pytest.approx(share_of(joined))


def test_recall_by_hand():
    """100 of 400 flagged and 40 of 1,600 others: 100 / (100 + 160) at a tenth of the pairs."""
    flagged, others = cells((4_000, 400, 100)), cells((64_000, 1_600, 40))
    estimate = recall_of(flagged, others)
    assert estimate.value == pytest.approx(1_000 / 2_600)
    # The delta method on the logit: log-odds of recall = log A - log B, variances 1/x (1 - x/n).
    spread = 1.96 * np.sqrt((1 - 0.25) / 100 + (1 - 0.025) / 40)
    odds = np.log(1_000 / 1_600)
    assert estimate.low == pytest.approx(1 / (1 + np.exp(-(odds - spread))), abs=0.01)
    assert estimate.high == pytest.approx(1 / (1 + np.exp(-(odds + spread))), abs=0.01)


def test_recall_of_a_rule_that_missed_nothing_is_not_certain():
    estimate = recall_of(cells((500, 50, 50)), cells((9_500, 250, 0)))
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert 0.75 < estimate.low < 0.9  # 95 to 115 missed ones would go unseen once in 40 times


@pytest.mark.parametrize(
    ("flagged", "others"),
    [
        (cells((0, 0, 0)), cells((100, 10, 1))),
        (cells((100, 0, 0)), cells((100, 10, 1))),
        (cells((100, 10, 1)), cells((100, 0, 0))),
        (cells((100, 10, 0)), cells((100, 10, 0))),
    ],
)
def test_what_answers_do_not_tell_is_unknown(flagged, others):
    recall = recall_of(flagged, others)
    assert not recall.is_known
    assert recall[1:] == (0.0, 1.0)


def test_more_answers_of_the_same_share_narrow_both_ends():
    few, many = (share_of(cells((1e6, n, n / 10), (1e5, n, n / 2))) for n in (20, 200))
    assert few.low < many.low < many.value < many.high < few.high


def test_rows_are_apart():
    """Rules and draws are computed at once, and none sees another."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(1, 60, (6, 6)) * rng.choice([1.0, 1.0, 50.0], (6, 6))
    answers = np.minimum(pairs, rng.integers(0, 40, (6, 6)))
    mismatched = rng.binomial(answers.astype(int), rng.choice([0, 0.05, 0.5, 1], (6, 6)))
    together = mismatched_share(Cells(pairs, answers, mismatched))
    recalls = found_share(
        Cells(pairs[:, :3], answers[:, :3], mismatched[:, :3]),
        Cells(pairs[:, 3:], answers[:, 3:], mismatched[:, 3:]),
    )
    for row in range(6):
        cut = [each[row : row + 1] for each in (pairs, answers, mismatched)]
        assert mismatched_share(Cells(*cut))[0] == together[row]
        alone = found_share(Cells(*(c[:, :3] for c in cut)), Cells(*(c[:, 3:] for c in cut)))
        assert alone[0] == recalls[row]
        for estimate in (together[row], recalls[row]):
            assert 0 <= estimate.low <= estimate.high <= 1
            if estimate.value is not None:
                assert estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.5])
def test_intervals_cover_in_simulated_audits(rate):
    """In three strata, the lowest of which has mismatches that many samples do not show.

    The full check, of whole corpora, is tests/benchmarks/audits/coverage.py.
    """
    rng = np.random.default_rng(round(1000 * rate))
    pairs = np.array([8_000, 1_500, 500])
    mismatched = np.minimum(np.array([0.1, 0.4, 0.5]) * rate * 10_000, 0.9 * pairs).astype(int)
    strata = Strata(np.array([0.1, 0.5]), pairs, np.array([0.6, 0.25, 0.15]))
    answers = strata.allocated(300)
    counts = hypergeom.rvs(pairs, mismatched, answers, size=(1_000, 3), random_state=rng)

    def taken(cells):
        rows = np.ones((len(counts), 1))
        return Cells(rows * pairs[cells], rows * answers[cells], counts[:, cells].astype(float))

    flagged, others = taken([2]), taken([0, 1])
    for truth, figures in (
        (mismatched.sum() / pairs.sum(), mismatched_share(taken([0, 1, 2]))),
        (mismatched[2] / pairs[2], mismatched_share(flagged)),
        (mismatched[2] / mismatched.sum(), found_share(flagged, others)),
    ):
        covered = ((figures.low <= truth) & (truth <= figures.high)).mean()
        # Of 1,000 draws at 95 %, one count in ten thousand lies below 92.2 %.
        assert covered >= 0.922


@pytest.mark.parametrize(("judged", "others"), [(900, 30), (950, 30), (980, 100)])
def test_a_cell_that_is_nearly_all_judged_adds_no_doubt(judged, others):
    """The end is that of the other cell, at half its weight."""
    alone = share_of(cells((1_000, others, 0)))
    both = share_of(cells((1_000, judged, judged / 2), (1_000, others, 0)))
    assert both.high == pytest.approx((0.5 + alone.high) / 2, abs=0.003)
