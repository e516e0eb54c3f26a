"""Counts and failures, by hand."""

from ncclean.report.counts import Failure, count_pairs
from ncclean.report.table import ScoreTable
from tests.report.tables import write_scores


def test_counts_and_the_commonest_reason(tmp_path):
    rows = [
        {"similarity": 0.1, "noise_probability": 0.75},
        {"similarity": 0.2, "noise_probability": 0.5, "shard": "00001"},
        {"similarity": 0.3},
        *[{"status": "image_corrupt", "error": "not an image"}] * 3,
        {"status": "image_corrupt", "error": "zero bytes", "shard": "00001"},
        {"status": "image_missing"},
    ]
    counts = count_pairs(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))]))
    assert (counts.rows, counts.ok, counts.shards) == (8, 3, 2)
    assert (counts.expected_mismatched, counts.calibrated) == (1.25, 2)
    assert counts.failures == (
        Failure("image_corrupt", 4, 2, "not an image"),
        Failure("image_missing", 1, 1, None),
    )
