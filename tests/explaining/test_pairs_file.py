"""The values of pairs: probabilities by outcome, and evidence in place of them."""

import duckdb
import pyarrow as pa
import pytest

from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs_file import Values, pairs_query


def valued(table):
    connection = duckdb.connect()
    connection.register("scores", pa.table(table))
    values = Values(outcomes_of(table))
    columns = dict.fromkeys(table, "x")
    query = pairs_query(connection, columns, values, {})
    return values, connection.execute(f"SELECT * FROM ({query})").fetchnumpy()


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
