"""The best fraction of a relation, with ties, by hand and against a sort."""

import duckdb
import numpy as np
import pytest

from ncclean.selection import best_fraction
from ncclean.selection.best_fraction import find_best_fraction


def best(values, fraction):
    """The conditions, and the uids for which each holds; `uid` is the position from 0."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (uid VARCHAR, place BIGINT, goodness FLOAT)")
    rows = [(f"{number:03d}", number, value) for number, value in enumerate(values)]
    if rows:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    conditions = find_best_fraction(connection, "t", fraction)

    def holds(condition):
        sql = f"SELECT uid FROM t WHERE {condition} ORDER BY uid"
        return [int(uid) for (uid,) in connection.execute(sql).fetchall()]

    return conditions, holds


def test_ties_go_to_the_first_uid():
    conditions, holds = best([0.5, 0.9, 0.5, 0.5, 0.1], 0.6)
    assert holds(conditions.exactly) == [0, 1, 2]
    assert holds(conditions.or_equal) == [0, 1, 2, 3]
    assert holds(conditions.ties_dropped) == [3]


def test_without_ties_at_the_end_no_uid_is_compared():
    conditions, holds = best([0.5, 0.9, 0.9, 0.1], 0.5)
    assert conditions.ties_dropped is None
    assert conditions.exactly == conditions.or_equal
    assert holds(conditions.exactly) == [1, 2]


@pytest.mark.parametrize(
    ("values", "fraction", "kept"),
    [
        ([], 0.5, []),
        ([0.3, 0.2], 0.0, []),
        ([0.3, 0.2], 1.0, [0, 1]),
        ([0.3, 0.2, 0.1], 0.5, [0, 1]),  # 1.5 pairs are rounded up
        ([0.5, 0.4, 0.3, 0.2, 0.1], 0.5, [0, 1, 2]),  # and so are 2.5
        ([0.3, 0.2, 0.1], 0.49, [0]),
        ([0.7] * 4, 0.5, [0, 1]),  # all values are equal
        ([1e30, -1e30, 0.0], 0.34, [0]),
    ],
)
def test_how_many(values, fraction, kept):
    conditions, holds = best(values, fraction)
    assert holds(conditions.exactly) == kept


@pytest.mark.parametrize("buckets", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize("fraction", [0.01, 0.37, 0.99])
def test_equals_a_sort_whatever_the_number_of_buckets(monkeypatch, buckets, fraction):
    monkeypatch.setattr(best_fraction, "_BUCKETS", buckets)
    values = np.round(np.random.default_rng(0).normal(size=200), 1).astype(np.float32)
    conditions, holds = best(values.tolist(), fraction)
    order = np.lexsort((np.arange(200), -values))
    assert holds(conditions.exactly) == sorted(order[: int(fraction * 200 + 0.5)].tolist())
