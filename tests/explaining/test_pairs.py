"""The pairs of a search: what the table knows of them, their values, and the kinds of groups."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from ncclean_pipelines.explain import Explain

from ncclean.base.progress import SILENT
from ncclean.errors import InputError
from ncclean.explaining.aggregates import Totals, group_sums
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs import Values, pairs_query, prepared_pairs
from tests.explaining.tables import columns, judged, write


def prepared(folder, values, by=()):
    scores = write(folder / "scores.parquet", values)
    return prepared_pairs(folder, [scores], (), by, None, None, SILENT)


def valued(table):
    connection = duckdb.connect()
    connection.register("scores", pa.table(table))
    values = Values(outcomes_of(table))
    query = pairs_query(connection, dict.fromkeys(table, "x"), values, {})
    return values, connection.execute(f"SELECT * FROM ({query})").fetchnumpy()


def test_pairs_with_scores_are_counted(tmp_path):
    values = judged(columns(1000))
    values["status"][:100] = ["image_corrupt"] * 100
    with prepared(tmp_path, values, by=["width % 2", "width % 2"]) as pairs:
        assert (pairs.rows, pairs.scored) == (1000, 900)
        rows = pairs.connection.execute("SELECT count(*), min(_by_0), max(_by_0) FROM pairs")
        assert rows.fetchall() == [(900, 0, 1)]
        assert [kind.name for kind in pairs.kinds].count("width % 2") == 1


def test_probabilities_that_nobody_knows_are_no_outcome(tmp_path):
    """An estimator that cannot tell near misses has none: that is said, and not tested."""
    values = judged(columns(1000))
    values["near_miss_probability"] = np.full(1000, None, object)
    scores = write(tmp_path / "scores.parquet", values)
    done = Explain(scores=[scores], out=str(tmp_path / "causes.parquet")).run()
    assert (done.summary.outcomes, done.summary.unknown) == (("mismatch",), ("near miss",))
    assert any("by near miss is not known" in str(line) for line in done.shown)


def test_a_table_that_knows_no_probability_is_refused(tmp_path):
    values = judged(columns(100))
    values["noise_probability"] = np.full(100, None, object)
    with pytest.raises(InputError, match="none of its noise probabilities is known"):
        prepared(tmp_path, values).__enter__()


def test_kinds_have_more_than_one_value_and_numbers_come_in_ranges(tmp_path):
    with prepared(tmp_path, judged(columns(2000)), ["similarity"]) as pairs:
        names = [kind.name for kind in pairs.kinds]
        totals = Totals.read(pairs.connection, pairs.values)
        shards, ranges = (
            group_sums(pairs.connection, pairs.kinds[names.index(name)], ["v0"], ["v0"], totals, 50)
            for name in ("shard", "similarity")
        )
    assert {"shard", "host", "word", "phrase", "similarity", "image size"} <= set(names)
    assert not {"ending of the url", "length of the caption"} & set(names)  # all pairs have one
    assert shards.values == [f"{number:05d}" for number in range(4)]
    assert shards.pairs.sum() == 2000
    assert len(ranges.values) == 8
    assert np.ptp(ranges.pairs.sum(axis=1)) < 100


def test_a_value_that_some_pairs_lack_is_a_group(tmp_path):
    """Such as the only boilerplate of a corpus, or the only source that is named."""
    some = "CASE WHEN row % 3 = 0 THEN 'feed' END"
    with prepared(tmp_path, judged(columns(300)), [some, "CASE WHEN row < 0 THEN 1 END"]) as pairs:
        assert [kind.name for kind in pairs.kinds if kind.is_by] == [some]


def test_a_mismatched_pair_has_no_wrong_word():
    values, pairs = valued({
        "status": ["ok", "ok", "failed", "ok"], "text": ["a b", "a b c d e", "a", None],
        "noise_probability": [0.8, 0.0, 0.0, None],
        "near_miss_probability": [0.5, 0.5, 0.5, float("nan")],
    })  # fmt: skip
    assert [outcome.name for outcome in values.outcomes] == ["mismatch", "near miss"]
    assert pairs["v0"] == pytest.approx([0.8, 0, 0])
    assert pairs["v1"] == pytest.approx([0.1, 0.5, 0])
    assert pairs["stratum"].tolist() == [0, 2, 0]


def test_evidence_has_the_mean_probability_of_the_pairs_with_a_like_number():
    margin = [-1.0] * 40 + [2.0] * 40
    probability = [0.9, 0.7] * 20 + [0.1, 0.3] * 20
    values, pairs = valued({
        "status": ["ok"] * 80, "noise_probability": [0.0] * 80, "word_margin": margin,
        "near_miss_probability": probability,
    })  # fmt: skip
    assert values.names() == ["v0", "v1", "v1_margin"]
    assert values.required(1).columns == (1, 2)
    assert values.required(0).columns == (0,)
    assert pairs["v1_margin"] == pytest.approx([0.8] * 40 + [0.2] * 40)
