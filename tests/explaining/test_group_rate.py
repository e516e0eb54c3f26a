"""The share of wrong pairs in a group whose probabilities hold for the corpus."""

import contextlib

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from ncclean.explaining.group_rate import BINS, bin_sql, fits, rate_of


def counts_of(probability):
    with contextlib.closing(duckdb.connect()) as connection:
        connection.register("given", pa.table({"p": np.asarray(probability, float)}))
        rows = connection.execute(
            f"SELECT {bin_sql('p')} AS bin, count(*) FROM given GROUP BY 1"
        ).fetchall()
    counts = np.zeros(BINS)
    for place, count in rows:
        counts[place] = count
    return counts


def drawn(rng, pairs, share, corpus=0.1):
    """Exact probabilities of a corpus, of pairs of a group that has another share of wrong ones."""
    wrong = rng.random(pairs) < share
    score = rng.normal(np.where(wrong, 0.0, 2.5))
    odds = corpus / (1 - corpus) * np.exp(-2.5 * score + 2.5**2 / 2)
    return odds / (1 + odds), wrong


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_of_the_group_is_not_that_of_the_corpus(share):
    rng = np.random.default_rng(3)
    probability, wrong = drawn(rng, 4000, share)
    estimate = rate_of(counts_of(probability), 0.1)
    assert estimate.value == pytest.approx(wrong.mean(), abs=0.03)
    if share == 1.0:  # the mean of the probabilities is not
        assert probability.mean() < 0.85


def test_intervals_hold():
    rng = np.random.default_rng(4)
    held = 0
    for trial in range(100):
        share = (0.1, 0.3, 0.7)[trial % 3]
        probability, _ = drawn(rng, 300, share)
        estimate = rate_of(counts_of(probability), 0.1)
        held += estimate.low <= share <= estimate.high
    assert held >= 90


def test_what_groups_differ_by_widens_the_interval():
    probability, _ = drawn(np.random.default_rng(5), 300, 0.3)
    counts = counts_of(probability)
    narrow, wide = rate_of(counts, 0.1), rate_of(counts, 0.1, 0.1**2)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert not rate_of(np.zeros(BINS), 0.1).is_known


def normal_counts(rng, wrong, mean=2.5, corpus=0.1):
    """Counts of pairs whose right ones have this mean score, judged as those of the corpus."""
    score = rng.normal(np.where(wrong, 0.0, mean))
    odds = corpus / (1 - corpus) * np.exp(-2.5 * score + 2.5**2 / 2)
    return counts_of(odds / (1 + odds))


def test_more_wrong_pairs_fit_and_worse_scores_do_not():
    rng = np.random.default_rng(6)
    outside = normal_counts(rng, rng.random(6000) < 0.1)
    fitting = [
        fits(normal_counts(rng, rng.random(300) < share), outside, 0.1)
        for share in (0.1, 0.4, 0.8, 1.0)
        for _ in range(20)
    ]
    assert np.mean(fitting) > 0.95
    worse = [
        fits(normal_counts(rng, rng.random(300) < 0.1, mean), outside, 0.1)
        for mean in (0.5, 1.2, 1.8)
        for _ in range(20)
    ]
    assert np.mean(worse) < 0.05


def test_few_pairs_outside_make_the_comparison_doubtful():
    """What is expected scatters as much as the group: such a group is not told from a mixture."""
    rng = np.random.default_rng(7)
    fitting = []
    for _ in range(60):
        outside = normal_counts(rng, rng.random(700) < 0.1)
        group = normal_counts(rng, rng.random(3000) < 0.1)
        fitting.append(fits(group, outside, 0.1))
    assert np.mean(fitting) > 0.9


def test_without_wrong_pairs_outside_nothing_is_known():
    rng = np.random.default_rng(8)
    group = normal_counts(rng, rng.random(300) < 0.5)
    assert not fits(group, normal_counts(rng, np.zeros(300, bool)), 0.1)
    assert not fits(np.zeros(BINS), normal_counts(rng, rng.random(3000) < 0.1), 0.1)
