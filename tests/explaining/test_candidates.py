"""The test of one group: what must be higher in it, by how much, and what it is compared with."""

import dataclasses

import numpy as np
import pytest

from ncclean.explaining.aggregates import STRATA, Groups, Totals
from ncclean.explaining.candidates import candidates_of, comparison, excess_tests
from ncclean.explaining.explain_scores import explain_scores
from ncclean.explaining.kinds import PAIR, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs import Required, Values
from tests.explaining.tables import columns, judged, write

REQUIRED = Required(columns=(0, 1), least=(1.0, 0.85))
SHORT, LONG = 0, 4


def totals(short_outside=0):
    """5,000 pairs of long captions and some of short ones; values are a probability and evidence.

    A fifth of the long ones is wrong by the estimator, a third of the short ones.
    """
    pairs = np.zeros(STRATA)
    pairs[LONG], pairs[SHORT] = 5000, short_outside + 300
    means = np.where(np.arange(STRATA) == SHORT, 0.345, 0.2) * np.ones((2, 1))
    return Totals(pairs, means * pairs, means * pairs * 0.6, np.array([1.0, 0.95]))


def excess(short, known, long_pairs=0, long_mean=0.2, by_stratum=True):
    """The test of a group of 300 short captions with these means of both values, and long ones."""
    pairs = np.zeros((1, STRATA))
    pairs[0, SHORT], pairs[0, LONG] = 300, long_pairs
    sums = np.zeros((2, 1, STRATA))
    sums[:, 0, SHORT] = np.array(short) * 300
    sums[:, 0, LONG] = long_mean * long_pairs
    return excess_tests(pairs, sums, known, np.zeros(2), REQUIRED, by_stratum)


def test_groups_are_compared_with_captions_as_long():
    assert excess([0.345, 0.345], totals(1000)).log_p[0] > -1e-9
    assert excess([0.345, 0.345], totals(1000), by_stratum=False).log_p[0] < -5
    assert excess([0.75, 0.74], totals(1000)).log_p[0] < -30


def test_a_stratum_with_few_pairs_outside_is_left_out_and_not_compared_with_other_lengths():
    alone = excess([0.75, 0.74], totals(199), long_pairs=2000)
    assert alone.log_p[0] > -1e-9
    assert alone.mean[0] == pytest.approx(0.2)
    assert alone.expected[0] == pytest.approx(0.2)
    assert excess([0.75, 0.74], totals(200), long_pairs=2000).log_p[0] < -10


def test_a_group_of_nothing_but_such_strata_is_one_by_length():
    test = excess([0.75, 0.74], totals())
    assert test.expected[0] == pytest.approx((1000 + 300 * 0.345 - 300 * 0.75) / 5000)
    assert test.log_p[0] < -30
    few_outside = Totals(np.full(STRATA, 20.0), *(np.ones((2, STRATA)) for _ in range(3)))
    assert not comparison(np.ones((1, STRATA)), np.ones((2, 1, STRATA)), few_outside, True)[0].any()


def test_what_is_left_of_a_group_is_tested_by_its_own_pairs():
    # 2,000 long captions at .3 for .2, beside 300 short ones that nothing is compared with.
    test = excess([0.0, 0.0], totals(), long_pairs=2000, long_mean=0.3)
    assert test.mean[0] == pytest.approx(0.3)
    assert test.expected[0] == pytest.approx((1000 - 600) / 3000)
    assert test.log_p[0] < -30


def test_evidence_must_rise_with_the_probability():
    assert excess([0.75, 0.4], totals(1000)).log_p[0] == 0
    assert excess([0.75, 0.74], totals(1000)).log_p[0] < -30


def test_a_group_of_all_pairs_exceeds_nothing():
    """As the words of a template that all captions of class folders have."""
    known = totals(1000)
    pairs, sums = known.pairs[None], known.sums[:, None]
    test = excess_tests(pairs, sums, known, np.zeros(2), REQUIRED)
    assert test.log_p[0] == 0
    assert not comparison(pairs, sums, known, by_stratum=False)[0].any()


def test_groups_of_all_pairs_are_no_spread(tmp_path):
    """Classes of captions "a photo of X", of which two are wrong: their words are the causes."""
    values = columns(3000, 0, 0.06)
    names = np.array([f"thing{number}" for number in range(10)])
    place = np.arange(3000) % 10
    values["text"] = np.array([f"a photo of {name}" for name in names[place]], object)
    values["wrong"] |= place < 2
    values = judged(values)
    # Right classes differ a little, as those of an estimator do.
    factor = np.where(values["wrong"], 1, 1 + 0.1 * (place % 3))
    values["noise_probability"] = values["noise_probability"] * factor
    scores = write(tmp_path / "scores.parquet", values)
    found = explain_scores([scores], str(tmp_path / "causes.parquet"))
    assert {cause.label for cause in found.causes} == {"of thing0", "of thing1"}
    assert max(c.rate.high - c.rate.low for c in found.causes) < 0.1


def groups_of(means, count=500, tested=None):
    """Groups of one stratum with these means of one value."""
    pairs = np.zeros((len(means), STRATA))
    pairs[:, LONG] = count
    sums = (pairs * np.array(means)[:, None])[None]
    kind = Kind("shard", PAIR, "shard", ("shard",), str)
    names = [str(number) for number in range(len(means))]
    return Groups(kind, names, pairs, sums, np.ones(len(means), bool), tested or len(means))


def of_corpus(rate=0.1, pairs=20_000):
    counts = np.zeros(STRATA)
    counts[LONG] = pairs
    sums = (counts * rate)[None]
    return Totals(counts, sums, sums * 0.9, np.ones(1))


VALUES = Values(outcomes_of(["noise_probability"]))


def test_groups_that_stand_out_exceed_by_the_least_excess_and_the_strongest_is_first():
    means = [0.3, 0.13, 0.1, 0.6]
    found = candidates_of([groups_of(means)], of_corpus(), VALUES, ExplainOptions(min_excess=0.05))
    assert [one.value for one in found.listed] == ["3", "0"]
    assert found.listed[0].strength > found.listed[1].strength
    assert found.tested == 4
    few = candidates_of([groups_of(means)], of_corpus(), VALUES, ExplainOptions(min_excess=0.4))
    assert [one.value for one in few.listed] == ["3"]
    assert found.left_out == 0


def test_groups_that_were_counted_but_not_looked_at_are_tests_too():
    """A group of many more is surer than it would have to be of a few."""
    weak = [0.145]
    few = candidates_of([groups_of(weak)], of_corpus(), VALUES, ExplainOptions(min_excess=0.01))
    many = candidates_of(
        [groups_of(weak, tested=10**6)], of_corpus(), VALUES, ExplainOptions(min_excess=0.01)
    )
    assert (few.tested, many.tested) == (1, 10**6)
    assert len(few.listed) == 1
    assert not many.listed


def test_groups_chosen_for_their_excess_are_no_measure_of_the_spread():
    rng = np.random.default_rng(0)
    typical, chosen = rng.normal(0.1, 0.01, 40), rng.normal(0.5, 0.1, 60)
    groups = groups_of([*typical, *chosen])
    marked = dataclasses.replace(groups, is_typical=np.arange(100) < 40)
    found = candidates_of([marked], of_corpus(pairs=200_000), VALUES, ExplainOptions())
    assert len(found.listed) == 60
    assert max(one.tau2[0] for one in found.listed) < 0.02**2
