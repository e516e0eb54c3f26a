"""Histograms of cosines, and the thresholds, which keep what DuckDB keeps, to the pair."""

import numpy as np
import pytest

from ncclean.base.estimates import Estimate
from ncclean.report.curves import (
    Grid,
    bin_cosines,
    cosine_distribution,
    histogram_median,
    score_curves,
)
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


@pytest.mark.parametrize(
    ("low", "high", "multiple", "digits"),
    [(-0.4, 0.62, 2, 3), (0.0, 0.148, 2, 4), (-3.0, 2.0, 5, 3), (0.2, 0.2, 1, 9), (0, 5000, 5, 0)],
)
def test_grid_has_round_steps_that_cover_the_values(low, high, multiple, digits):
    grid = Grid.over(low, high)
    assert (grid.multiple, grid.digits) == (multiple, digits)
    assert grid.steps <= 1002
    assert grid.threshold(0) <= low
    assert grid.threshold(grid.steps) > high
    assert float(grid.text(3)) == grid.threshold(3)


def test_counts_equal_those_of_the_query(tmp_path):
    rng = np.random.default_rng(0)
    # Thresholds themselves as 32-bit floats, their neighbours on both sides, and anything.
    exact = (np.arange(0, 1001, 7) / 1000).astype(np.float32)
    around = np.concatenate(
        [exact, np.nextafter(exact, np.float32(2)), np.nextafter(exact, np.float32(-1))]
    ).clip(0, 1)
    values = np.concatenate([around, rng.random(200).astype(np.float32), np.float32([0, 1, 0.5])])
    rows = [
        {
            "noise_probability": float(value),
            "similarity": float(np.float32(0.5 - value)),
            "neg_clip_loss": float(np.float32(3 * value - 2)),
            "osa_weight": 0.0,
            "is_noisy": bool(value > 0.5),
        }
        for value in values
    ]
    rows.append({"status": "image_missing"})
    path = write_scores(tmp_path / "s.parquet", rows)
    table = ScoreTable.open([str(path)])
    curves = score_curves(table)
    assert [curve.column for curve in curves] == [
        "noise_probability", "similarity", "neg_clip_loss", "osa_weight",
    ]  # fmt: skip
    for curve in curves:
        kept, wrong, noisy = (curve.kept(v) for v in (curve.pairs, curve.wrong, curve.noisy))
        assert max(kept[0], kept[-1]) == len(values)
        assert min(kept[0], kept[-1]) == 0
        # Of a share, those of `exact` and the next ones.
        indices = range(curve.grid.steps + 1)
        for index in [n for n in indices if n % 7 < 2] if curve.score.is_share else indices[::17]:
            count, expected, truth, lowest = table.rows(
                "SELECT count(*), sum(noise_probability), count(*) FILTER (is_noisy), "
                f"min(similarity) FROM scores WHERE {curve.condition(index)}"
            )[0]
            assert kept[index] == count, curve.condition(index)
            assert wrong[index] == pytest.approx(expected or 0.0, abs=1e-6)
            assert noisy[index] == truth
            if curve.score.follows_cosine:
                steps = curve.lowest[:index] if curve.keeps_below else curve.lowest[index:]
                assert np.nanmin([*steps, np.inf]) == (np.inf if lowest is None else lowest)


def test_a_pair_without_a_cosine_counts_in_the_curves_of_its_other_scores(tmp_path):
    rows = [{"similarity": 0.2, "neg_clip_loss": 0.1}, {"similarity": None, "neg_clip_loss": 0.7}]
    path = write_scores(tmp_path / "s.parquet", rows)
    by_name = {curve.column: curve for curve in score_curves(ScoreTable.open([str(path)]))}
    assert by_name["neg_clip_loss"].pairs.sum() == 2
    assert np.nanmin(by_name["neg_clip_loss"].lowest) == pytest.approx(0.2)


def test_start_is_one_half_or_what_is_expected_to_be_right(tmp_path):
    curves = score_curves(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", graded()))]))
    by_name = {curve.column: curve for curve in curves}
    probability = by_name["noise_probability"]
    assert probability.grid.text(probability.start) == "0.500"
    similarity = by_name["similarity"]  # 20 of 40 are expected to match
    assert similarity.kept(similarity.pairs)[similarity.start] == 20


@pytest.mark.parametrize(
    ("metadata", "follows"), [({}, True), ({"calibrated_on": "similarity"}, True),
                              ({"calibrated_on": "neg_clip_loss"}, False)],
)  # fmt: skip
def test_a_probability_follows_the_cosine_if_it_is_of_the_cosine(tmp_path, metadata, follows):
    path = write_scores(tmp_path / "s.parquet", graded(), metadata)
    by_name = {curve.column: curve for curve in score_curves(ScoreTable.open([str(path)]))}
    probability = by_name["noise_probability"]
    assert probability.score.follows_cosine == follows
    assert np.nanmin(by_name["similarity"].lowest) == pytest.approx(-0.5)
