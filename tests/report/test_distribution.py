"""Fine histograms to the curves that are drawn."""

import numpy as np
import pytest

from ncclean.base.estimates import Estimate
from ncclean.report.distribution import bin_cosines, cosine_distribution, histogram_median
from ncclean.report.table import ScoreTable
from ncclean.scoring.null import BINS, Histogram
from ncclean.storage.run_facts import RunFacts
from tests.report.tables import graded, write_scores


def histogram(values: dict[int, int]) -> np.ndarray:
    counts = np.zeros(BINS, dtype=np.int64)
    for index, count in values.items():
        counts[index] = count
    return counts


def test_median_is_linear_within_its_bin():
    # Bin 2048 spans 0 to 1/2048. Half of 4 lies at its end, half of 2 * 3 a third into it.
    assert histogram_median(histogram({2048: 2, 3000: 2})) == pytest.approx(1 / 2048)
    assert histogram_median(histogram({1000: 2, 2048: 3, 3000: 1})) == pytest.approx(1 / 3 / 2048)
    assert histogram_median(histogram({0: 8})) == pytest.approx(-1 + 1 / 4096)


def test_matched_is_observed_less_noise_rate_times_null():
    # 80 pairs, a quarter of them mismatched: 20 under the null, of which 15 at bin 2000.
    counts = histogram({2000: 10, 2500: 70})
    null = histogram({2000: 300, 2100: 100})
    facts = RunFacts(noise_rate=Estimate(0.25), mismatched=Histogram(null))
    distribution = bin_cosines(counts, np.zeros(BINS), np.zeros(BINS, dtype=np.int64), facts)
    assert distribution.observed.sum() == 80
    assert distribution.mismatched.sum() == pytest.approx(20)
    low = np.searchsorted(distribution.edges, -1 + 2000 / 2048, side="right") - 1
    assert distribution.observed[low] == 10
    assert distribution.mismatched[low] == pytest.approx(15)
    assert distribution.matched[low] == 0  # 10 - 15, and no fewer than none
    assert distribution.matched.sum() == pytest.approx(70)
    assert distribution.null_pairs == 400
    assert np.isnan(distribution.probability).all()
    assert np.allclose(np.diff(distribution.edges), distribution.width)


def test_tails_beyond_the_axis_are_counted():
    counts = histogram({0: 1, 2048: 100_000, 2060: 100_000, 4095: 3})
    distribution = bin_cosines(counts, np.zeros(BINS), np.zeros(BINS, dtype=np.int64), RunFacts())
    assert distribution.beyond == 4
    assert distribution.observed.sum() + distribution.beyond == counts.sum()
    assert distribution.edges[0] > -0.1
    assert distribution.edges[-1] < 0.1
    assert distribution.mismatched is None


def test_without_a_null_the_noise_probabilities_are_summed(tmp_path):
    path = write_scores(tmp_path / "s.parquet", graded())
    distribution = cosine_distribution(ScoreTable.open([str(path)]))
    assert distribution is not None
    assert not distribution.has_null
    assert distribution.null_median is None
    assert distribution.mismatched.sum() == pytest.approx(20)
    seen = distribution.observed > 0
    assert np.isfinite(distribution.probability[seen]).all()
    assert (np.diff(distribution.probability[seen]) <= 0).all()


def test_no_scored_pair_is_no_distribution(tmp_path):
    path = write_scores(tmp_path / "s.parquet", [{"status": "image_missing"}] * 3)
    assert cosine_distribution(ScoreTable.open([str(path)])) is None
