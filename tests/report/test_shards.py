"""Shards one by one, and the most unusual of very many."""

import pytest

from ncclean.report.shards import shard_table
from ncclean.report.table import ScoreTable
from tests.report.tables import write_scores


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
