"""What a cause says of the pairs outside."""

import math

import duckdb
import numpy as np
import pytest

from ncclean.base.estimates import Estimate
from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.described import described, share_outside
from ncclean.explaining.folding import Folded
from ncclean.explaining.kinds import PAIR, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs import Required, Values


def test_the_interval_of_the_share_outside_is_wilsons():
    share = share_outside(0.25, 16)
    assert (share.low, share.high) == pytest.approx((0.1018, 0.4950), abs=2e-4)


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0.0, 0.2775), (1.0, 0.7225, 1.0)])
def test_ten_pairs_of_which_none_or_all_are_wrong_leave_room(rate, low, high):
    share = share_outside(rate, 10)
    assert (share.low, share.value, share.high) == pytest.approx((low, rate, high), abs=2e-4)


class Told:
    """Stands for the verdicts on groups: their rates, and those outside, by number."""

    def __init__(self, rates, pairs, outside=0.1):
        kind = Kind("shard", PAIR, "shard", ("shard",), str)
        self.values, self.options = Values(outcomes_of(["noise_probability"])), ExplainOptions()
        self.candidates = [
            Candidate(kind, f"g{number}", 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001)
            for number in range(len(rates))
        ]
        self.group_of = list(range(len(rates)))
        self.counts = [np.array([[count] for count in pairs])]
        self.rates, self.elsewhere = rates, outside

    def rate(self, number, is_listed, is_cause):
        return Estimate(self.rates[number], self.rates[number] - 0.01, self.rates[number] + 0.01)

    def outside(self, number, listed):
        return Estimate(self.elsewhere, self.elsewhere, self.elsewhere)

    def q_value(self, number, is_listed):
        return 0.001


def described_of(told, folded):
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE pairs AS SELECT range AS place, 's' AS shard, range AS row, "
        "(range % 100) / 100 AS v0 FROM range(1000)"
    )
    connection.execute(
        "CREATE TABLE members AS SELECT range AS place, range % 4 AS member FROM range(1000)"
    )
    return described(connection, folded, told, None, {1: "a proposal"})


CLEARED = Totals(
    np.full(STRATA, 100.0), np.full((1, STRATA), 10.0), np.ones((1, STRATA)), np.ones(1)
)


def test_causes_come_by_excess_then_groups_that_may_only_be_read_worse_then_what_is_folded():
    told = Told([0.2, 0.9, 0.6, 0.5], [1000, 300, 200, 100])
    first, second, apart, folded = described_of(told, Folded([0, 1], [2], {3: 1}, CLEARED))
    assert [one.value for one in (first, second, apart, folded)] == ["g1", "g0", "g2", "g3"]
    assert (first.excess, second.excess) == pytest.approx((240, 100))
    assert first.proposal == "a proposal"
    assert (first.is_cause, apart.is_cause, folded.is_cause) == (True, False, True)
    assert math.isnan(apart.excess)
    assert math.isnan(apart.q_value)
    assert apart.rate.value == 0.6
    assert (folded.folded_into, folded.number) == (1, 4)
    assert len(apart.examples) == len(first.examples) == 6
    assert min(example.probability for example in first.examples) > 0.85
    assert not folded.examples


def test_what_is_reported_exceeds_what_it_is_compared_with_by_the_least_excess():
    """By the numbers that are shown, whatever an earlier test compared."""
    told = Told([0.163, 0.9], [2000, 300], outside=0.14)
    (only,) = described_of(told, Folded([0, 1], [], {}, CLEARED))
    assert only.value == "g1"
    assert not described_of(told, Folded([0], [], {1: 0}, CLEARED))
