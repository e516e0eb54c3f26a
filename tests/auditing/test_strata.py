"""Strata: every pair in one, more answers where the probability is unsure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from ncclean.auditing.strata import (
    BINS_PER_LOGIT,
    FIRST_BIN,
    LAST_BIN,
    Strata,
    by_answer,
    strata_of,
)

BINS = LAST_BIN - FIRST_BIN


def counts(**pairs):
    """Pairs by the logit of their probability."""
    made = np.zeros(BINS)
    for logit, count in pairs.values():
        made[logit * BINS_PER_LOGIT - FIRST_BIN] += count
    return made


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, BINS - 1), st.integers(1, 100_000)), min_size=1, max_size=40),
    st.integers(1, 3_000),
)
def test_every_pair_is_in_a_stratum_and_every_stratum_is_judged(members, answers):
    made = np.zeros(BINS)
    for at, count in members:
        made[at] += count
    strata = strata_of(made)
    assert strata.pairs.sum() == made.sum()
    assert (strata.pairs > 0).all()
    assert (np.diff(strata.bounds) > 0).all()
    assert len(strata.bounds) == len(strata) - 1
    allocated = strata.allocated(answers)
    assert allocated.sum() == min(max(answers, len(strata)), made.sum())
    assert (allocated >= 1).all()
    assert (allocated <= strata.pairs).all()


def test_strata_are_where_the_pairs_are():
    """The bounds are those of the bins, so that a comparison with p tells the same."""
    strata = strata_of(counts(low=(-9, 800), unsure=(0, 50), high=(7, 150)))
    probability = expit(np.repeat([-9, 0, 7], [800, 50, 150]) + 0.01)
    found = np.searchsorted(strata.bounds, probability, side="right")
    assert np.bincount(found).tolist() == strata.pairs.tolist() == [800, 50, 150]


def test_a_half_is_a_bound():
    uniform = np.ones(BINS)
    assert 0.5 in strata_of(uniform).bounds


def test_the_unsure_are_drawn_more_often():
    strata = strata_of(counts(low=(-9, 9_000), unsure=(0, 500), high=(7, 500)))
    low, unsure, high = strata.allocated(300) / strata.pairs
    assert unsure > 2 * low
    assert unsure > 2 * high
    assert low == pytest.approx(high, rel=0.1)


def test_a_small_stratum_gives_all_it_has():
    strata = strata_of(counts(low=(-9, 10_000), high=(7, 2)))
    assert strata.allocated(300).tolist() == [298, 2]
    assert strata.allocated(100_000).tolist() == [10_000, 2]


def test_strata_do_not_depend_on_the_size_of_the_sample():
    """Answers by uid alone are told to their strata by the table."""
    made = np.random.default_rng(0).integers(0, 50, BINS)
    assert len(strata_of(made)) >= 8
    np.testing.assert_array_equal(strata_of(made).bounds, strata_of(made).bounds)


def test_pairs_on_which_judge_and_estimator_differ_are_asked_about_more_often():
    strata = Strata(np.array([0.5]), np.array([9_000, 1_000]), np.array([2_000.0, 250.0]))
    judged = np.array([[1_800, 200, 0], [20, 180, 0]])
    cells = by_answer(strata, judged, np.array([0.02, 0.98]))
    assert cells.pairs.tolist() == [1_800, 200, 0, 20, 180, 0]
    each = cells.unsureness[[0, 1, 3, 4]] / cells.pairs[[0, 1, 3, 4]]
    assert each[1] > 1.2 * each[0]
    assert each[2] > 1.2 * each[3]
    taken = cells.allocated(120)
    assert taken.sum() == 120
    assert taken[2] == taken[5] == 0
