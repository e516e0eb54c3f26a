"""Counts, failures, shards, and the overlap and detection of the rules, by hand."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.report.counts import Failure, count_pairs, overlap_of_rules, shard_table
from ncclean.report.curves import score_curves
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


@pytest.fixture
def table(tmp_path):
    rows = []
    for shard in range(20):
        for number in range(50):
            # Shard 7 is noisy, shard 11 has failures, the others are alike.
            noisy = number < (30 if shard == 7 else 10)
            broken = shard == 11 and number >= 40
            scores = {"similarity": 0.2, "noise_probability": 1.0 if noisy else 0.0}
            rows.append(
                {
                    "shard": f"{shard:05d}",
                    "row": number,
                    **({"status": "image_corrupt"} if broken else scores),
                }
            )
    return ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))])


def test_all_shards_by_name(table):
    shards = shard_table(table)
    assert shards.is_complete
    assert (shards.total, shards.with_failures) == (20, 1)
    assert [row.shard for row in shards.rows] == [f"{i:05d}" for i in range(20)]
    assert shards.rows[7].noise_rate == pytest.approx(0.6)
    # 20 shards: (19 * 10 + 30) of 990 pairs are noisy; 30 of 50 is 6.5 standard errors away.
    p = 220 / 990
    assert shards.rows[7].unusual == pytest.approx((0.6 - p) / (p * (1 - p) / 50) ** 0.5)
    assert (shards.rows[11].ok, shards.rows[11].failed) == (40, 10)
    assert shards.quantiles[2] == pytest.approx(0.2)


def test_of_too_many_the_most_unusual(table):
    shards = shard_table(table, most=2)
    assert not shards.is_complete
    assert shards.total == 20
    assert {row.shard for row in shards.rows} == {"00007", "00011"}
    assert shards.rows[0].unusual >= shards.rows[1].unusual


def test_shards_of_two_runs_may_share_a_name(tmp_path):
    paths = []
    for name, rates in (("it's", (0.25, 0.75, None)), ("b", (1.0, 1.0))):
        rows = [{"similarity": 0.2, "noise_probability": rate} for rate in rates]
        rows.append({"status": "image_missing"})
        paths.append(str(write_scores(tmp_path / f"{name}.parquet", rows, {"shift": name})))
    table = ScoreTable.open([str(tmp_path / "*.parquet")])
    rows = [(row.shard, row.noise_rate, row.unusual) for row in shard_table(table).rows]
    p = 3 / 4  # of the pairs with a probability
    assert rows == [
        (f"00000 ({paths[1]})", 1.0, pytest.approx((1 - p) / (p * (1 - p) / 2) ** 0.5)),
        (f"00000 ({paths[0]})", 0.5, pytest.approx((p - 0.5) / (p * (1 - p) / 2) ** 0.5)),
    ]
    counts = count_pairs(table)
    assert (counts.shards, counts.failures[0].shards) == (2, 2)


def test_a_shard_that_is_too_clean_is_unusual_too(tmp_path):
    """30 pairs of a corpus of which half are noisy; in one shard none is."""
    rows = [
        {"shard": f"{shard}", "row": n, "similarity": 0.2, "noise_probability": float(n % 2)}
        for shard in range(5)
        for n in range(30)
    ]
    for row in rows[:30]:
        row["noise_probability"] = 0.0
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))])
    (first,) = shard_table(table, most=1).rows
    p = 60 / 150
    assert (first.shard, first.noise_rate) == ("0", 0.0)
    assert first.unusual == pytest.approx(p / (p * (1 - p) / 30) ** 0.5)


def test_a_name_of_a_megabyte_is_cut_and_its_characters_are_shown(tmp_path):
    rows = [{"shard": "\u202e" + "L" * 1_000_000, "row": 0, "similarity": 0.2}]
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))])
    (row,) = shard_table(table).rows
    assert row.shard.startswith("⟨U+202E⟩LLL")
    assert len(row.shard) <= 200


def row(osa: bool, forget: bool, probability: float, noisy: bool | None, kind: str | None = None):
    return {
        "similarity": 0.1,
        "osa_noisy": osa,
        "ncu_split": "forget" if forget else "retain",
        "noise_probability": probability,
        "is_noisy": noisy,
        "noise_kind": kind,
    }


@pytest.fixture
def overlap(tmp_path):
    rows = [
        row(True, True, 0.9, True, "ncr"),
        row(True, False, 0.9, True, "ncr"),
        row(False, True, 0.2, True, "hard"),
        row(True, True, 0.5, False),
        row(False, False, 0.1, False),
        row(False, False, 0.0, None),
        {"status": "image_missing"},
    ]
    return overlap_of_rules(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))]))


def test_counts_and_jaccard(overlap):
    assert [rule.short for rule in overlap.rules] == ["OSA", "NCU", "p\u00a0≥\u00a0½"]
    assert overlap.pairs == 6
    assert [overlap.both(i, i) for i in range(3)] == [3, 3, 3]
    assert overlap.both(0, 1) == 2
    assert overlap.jaccard(0, 1) == 0.5
    assert overlap.jaccard(0, 2) == 1.0
    largest = overlap.combinations[0]
    assert (largest.mask, largest.pairs) == (0, 2)
    assert {c.mask: c.pairs for c in overlap.combinations} == {0: 2, 7: 2, 5: 1, 2: 1}
    assert sum(c.expected_mismatched for c in overlap.combinations) == pytest.approx(2.6)


def test_detection_where_the_truth_is_known(overlap):
    truth = overlap.truth
    assert (truth.noisy, truth.clean, truth.kinds) == (3, 2, {"ncr": 2, "hard": 1})
    osa, ncu, _ = truth.detections
    assert (osa.counts.flagged, osa.counts.caught) == (3, 2)
    assert osa.counts.precision == pytest.approx(2 / 3)
    assert osa.counts.recall == pytest.approx(2 / 3)
    assert osa.counts.f1 == pytest.approx(2 / 3)
    assert osa.counts.clean_flagged == 0.5
    assert osa.by_kind == {"ncr": 1.0, "hard": 0.0}
    assert ncu.by_kind == {"ncr": 0.5, "hard": 1.0}
    assert truth.expected_mismatched == pytest.approx(2.6)


def test_a_truth_of_nan_is_unknown(tmp_path):
    """As in `evaluate noise`; DuckDB takes it for true."""
    rows = [row(True, True, 0.9, True), row(True, True, 0.9, False), row(False, False, 0.1, None)]
    path = write_scores(tmp_path / "s.parquet", rows)
    table, truth = pq.read_table(path), pa.array([1.0, 0.0, math.nan])
    number = table.schema.get_field_index("is_noisy")
    pq.write_table(table.set_column(number, "is_noisy", truth), path)
    opened = ScoreTable.open([str(path)])
    truth = overlap_of_rules(opened).truth
    assert (truth.noisy, truth.clean) == (1, 1)
    (curve,) = [one for one in score_curves(opened) if one.column == "noise_probability"]
    assert curve.noisy.sum() == 1


def test_a_score_of_nan_is_none(tmp_path):
    """DuckDB ranks it above all numbers, and a sum with it is NaN."""
    rows = [{"similarity": 0.1, "noise_probability": 0.75}, {"similarity": 0.3}]
    broken = {"similarity": math.nan, "noise_probability": math.nan}
    path, other = write_scores(tmp_path / "s.parquet", [*rows, broken]), tmp_path / "o.parquet"
    scores = pa.array([0.5, 0.2, math.nan])
    pq.write_table(pa.table({"uid": ["u0", "u1", "u2"], "similarity": scores}), other)
    table = ScoreTable.open([str(path)], join=[str(other)])
    counts = count_pairs(table)
    assert (counts.ok, counts.calibrated, counts.expected_mismatched) == (3, 1, 0.75)
    assert shard_table(table).rows[0].noise_rate == 0.75
    assert overlap_of_rules(table).both(0, 0) == 1
    kept = {curve.column: int(curve.pairs.sum()) for curve in score_curves(table)}
    assert kept == {"noise_probability": 1, "similarity": 2, "o.similarity": 2}


def test_without_truth_and_without_flags(tmp_path):
    rows = [{"similarity": 0.2, "osa_noisy": False}, {"similarity": 0.3, "osa_noisy": False}]
    overlap = overlap_of_rules(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))]))
    assert overlap.truth is None
    assert overlap.jaccard(0, 0) is None
    assert overlap.combinations[0].expected_mismatched is None
