"""Sums by group and stratum, and which groups are looked at where there are very many."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from ncclean.explaining import aggregates
from ncclean.explaining.aggregates import STRATA, Totals, group_sums
from ncclean.explaining.kinds import PAIR, Kind
from ncclean.explaining.outcomes import OUTCOMES, outcomes_of
from ncclean.explaining.pairs import Values

KIND = Kind("host", PAIR, "host", ("host",), str)
VALUES = Values(outcomes_of(["noise_probability"]))


def opened(hosts, strata, values, evidence=None):
    connection = duckdb.connect()
    table = {"host": pa.array(hosts, pa.string()), "stratum": pa.array(strata, pa.uint8()),
             "v0": pa.array(values, pa.float32())}  # fmt: skip
    if evidence is not None:
        table["v0_margin"] = pa.array(evidence, pa.float32())
    connection.register("given", pa.table(table))
    connection.execute("CREATE TABLE pairs AS FROM given")
    return connection


def summed(connection, min_pairs=10):
    totals = Totals.read(connection, VALUES)
    return group_sums(connection, KIND, VALUES.names(), VALUES.own(), totals, min_pairs), totals


def test_sums_and_variances_by_hand():
    connection = opened(
        ["a"] * 4 + ["b"] * 12, [0, 0, 1, 1] + [1] * 12, [0.5, 1.0] * 2 + [0.5] * 12
    )
    groups, totals = summed(connection)
    assert groups.values == ["b"]  # of `min_pairs` in all lengths together
    assert totals.pairs[:2].tolist() == [2, 14]
    assert totals.sums[0, :2] == pytest.approx([1.5, 7.5])
    assert totals.means[0, :3] == pytest.approx([0.75, 7.5 / 14, 9 / 16])
    assert totals.variances[0, 0] == pytest.approx(0.25**2)
    assert totals.variances[0, 2] == 0
    both, _ = summed(connection, min_pairs=4)
    assert both.values == ["a", "b"]
    assert both.pairs[0, :2].tolist() == [2, 2]
    assert both.sums[0, 0, :2] == pytest.approx([1.5, 1.5])
    assert both.tested == 2


def test_evidence_shows_what_it_differs_by_between_wrong_and_right_pairs():
    """Half as much as the probability does: .8 and .2 for 1 and 0 are .6."""
    near = {"near_miss_probability", "noise_probability", "word_margin"}
    values = Values(outcomes_of(near)[1:])
    connection = opened(
        ["a"] * 1000, [0] * 1000, [1.0] * 300 + [0.0] * 700, [0.8] * 300 + [0.2] * 700
    )
    assert Totals.read(connection, values).shown == pytest.approx([1.0, 0.6], rel=1e-6)


def test_a_caption_of_one_part_is_no_evidence_of_a_wrong_sentence():
    [gap] = OUTCOMES[-1].evidence
    rows = "(VALUES (1, 0.5, 0.5), (2, 0.5, 0.25))"
    found = duckdb.sql(f"SELECT {gap.sql} FROM {rows} t({', '.join(gap.columns)})").fetchall()
    assert [value and float(value) for (value,) in found] == [None, 0.25]


def many(seed=0):
    """4,000 hosts of 20 pairs; one is wrong, of captions that no other host has."""
    rng = np.random.default_rng(seed)
    hosts = np.array([f"h{number // 20}" for number in range(80_000)], object)
    strata, values = np.ones(80_000, int), rng.random(80_000) * 0.2
    strata[:20], values[:20] = 3, 0.9
    return opened(hosts, strata, values)


def test_of_very_many_groups_those_that_exceed_are_looked_at_and_some_others(monkeypatch):
    monkeypatch.setattr(aggregates, "_ALL_BUCKETS", 100)
    monkeypatch.setattr(aggregates, "_SAMPLED", 200)
    groups, _ = summed(many())
    # All captions of its length are of the one host, whose mean is that of the stratum.
    assert "h0" in groups.values
    assert len(groups.values) < 500
    assert groups.tested >= 3900
    typical = groups.is_typical
    assert 100 < typical.sum() < 400
    assert not typical.all()
    means = groups.sums[0].sum(axis=1) / groups.pairs.sum(axis=1)
    assert means[~typical].mean() > means[typical].mean() + 0.005


def test_few_groups_are_all_looked_at():
    groups, _ = summed(many())
    assert len(groups.values) == groups.tested == 4000
    assert groups.is_typical.all()
    assert groups.pairs.shape == (4000, STRATA)
