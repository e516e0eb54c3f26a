"""What a threshold keeps is what DuckDB keeps, to the pair."""

import numpy as np
import pytest

from ncclean.report.table import ScoreTable
from ncclean.report.thresholds import Grid, score_curves
from tests.report.tables import graded, write_scores


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
        for index in range(0, curve.grid.steps + 1, 1 if curve.score.is_share else 17):
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
