"""The share of wrong pairs in a group whose probabilities hold for the corpus."""

import duckdb
import numpy as np
import pytest

from ncclean.explaining.group_rate import BINS, bin_sql, rate_of


def counts_of(probability):
    rows = duckdb.sql(
        f"SELECT {bin_sql('p')} AS bin, count(*) "
        f"FROM (SELECT unnest({list(map(float, probability))}) AS p) GROUP BY 1"
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
