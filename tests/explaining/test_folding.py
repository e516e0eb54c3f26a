"""What a group is folded into: a cause that it shares pairs with, or none."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ncclean.explaining import folding
from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.kinds import PAIR, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs import Required

KIND = Kind("shard", PAIR, "shard", ("shard",), str)


@pytest.mark.parametrize(("shared", "into"), [(0.0, {}), (1.0, {1: 0})])
def test_a_group_is_folded_into_a_cause_of_its_pairs_alone(shared, into, monkeypatch):
    totals = Totals(*(np.full(shape, 1e3) for shape in ((STRATA,), (1, STRATA), (1, STRATA), (1,))))
    members = csr_matrix([[1.0, shared], [0.0, 1.0]])
    patterns = folding.Patterns(
        members, np.zeros(2, int), np.array([90.0, 60.0]), np.array([[90.0, 30.0]]), totals
    )
    candidates = [
        Candidate(KIND, value, 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001) for value in "ab"
    ]
    monkeypatch.setattr(folding, "_strength", lambda one, *_: 9.0 if one is candidates[0] else None)
    folded = folding.fold(
        candidates, [0, 1], patterns, ExplainOptions(), -5.0, ["shard"], lambda *_: True
    )
    assert (folded.causes, folded.into) == ([0], into)


def patterns_of(members, pairs, values, strata=None):
    members = csr_matrix(np.array(members, float))
    pairs, sums = np.array(pairs, float), np.array([values], float) * np.array(pairs, float)
    strata = np.zeros(len(pairs), int) if strata is None else np.array(strata)
    totals = Totals(
        np.bincount(strata, pairs, STRATA) + 5000 * (np.arange(STRATA) == 0),
        np.bincount(strata, sums[0], STRATA)[None] + 500.0 * (np.arange(STRATA) == 0),
        np.bincount(strata, sums[0], STRATA)[None] + 450.0 * (np.arange(STRATA) == 0),
        np.ones(1),
    )
    return folding.Patterns(members, strata, pairs, sums, totals)


def candidates(count, outcome=0):
    return [
        Candidate(KIND, str(number), outcome, Required((0,), (1.0,)), (0.0,), 9.0 - number, 0.001)
        for number in range(count)
    ]


def folded(patterns, several, is_cause=lambda *_: True):
    numbers = list(range(len(several)))
    return folding.fold(several, numbers, patterns, ExplainOptions(), -5.0, ["shard"], is_cause)


def test_a_group_is_folded_into_the_cause_that_shares_most_of_its_pairs():
    # Columns: two causes, and a group of 60 pairs, 10 of the first and 50 of the second.
    patterns = patterns_of(
        [[1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]], [390, 10, 250, 50], [1.0, 1.0, 0.9, 0.9]
    )
    result = folded(patterns, candidates(3))
    assert result.causes == [0, 1]
    assert result.into == {2: 1}


def test_a_group_needs_a_third_of_its_own_pairs_beside_stronger_causes():
    # 100 of 1,000 pairs are left of the second: enough by `--min-pairs`, and all of them wrong.
    for own, causes in ((100, [0]), (500, [0, 1])):
        patterns = patterns_of([[1, 0], [1, 1], [0, 1]], [600, 900, own], [1.0, 1.0, 1.0])
        assert folded(patterns, candidates(2)).causes == causes


def test_groups_that_may_only_be_read_worse_set_nothing_aside_for_causes():
    """The first is refused: the second, within it, is a cause; what is left of the first is not."""
    patterns = patterns_of([[1, 0, 0], [1, 1, 0], [1, 0, 1]], [900, 500, 300], [0.8, 1.0, 0.8])
    asked = []

    def is_cause(number, causes):
        asked.append((number, tuple(causes)))
        return number == 1

    result = folded(patterns, candidates(3), is_cause)
    assert (result.causes, result.unsure) == ([1], [0])
    assert result.into == {2: 0}
    assert asked == [(0, ()), (1, ()), (2, (1,))]
    # The totals of what is in no group: the 5,000 pairs of no pattern.
    assert result.cleared.pairs.sum() == 5000


def test_groups_of_the_same_pairs_are_one_of_the_preferred_kind():
    patterns = patterns_of([[1, 1], [1, 0]], [500, 20], [1.0, 1.0])
    first, second = candidates(2)
    other = Kind("host", PAIR, "host", ("host",), str)
    second = Candidate(other, "h", 0, second.required, (0.0,), 1.0, 0.001)
    numbers, preference = [0, 1], ["host", "shard"]
    result = folding.fold(
        [first, second], numbers, patterns, ExplainOptions(), -5.0, preference, lambda *_: True
    )
    assert (result.causes, result.into) == ([1], {0: 1})
    second = Candidate(other, "h", 1, second.required, (0.0,), 1.0, 0.001)
    result = folding.fold(
        [first, second], numbers, patterns, ExplainOptions(), -5.0, preference, lambda *_: True
    )
    assert result.causes[0] == 0  # another way to be wrong is another cause
