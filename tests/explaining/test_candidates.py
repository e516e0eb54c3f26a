"""The test of one group: what must be higher in it, and by how much."""

import numpy as np
import pytest

from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import excess_tests
from ncclean.explaining.explain_scores import explain_scores
from ncclean.explaining.pairs_file import Required
from tests.explaining.tables import columns, judged, write

REQUIRED = Required(columns=(0, 1, 2), least=(1.0, 0.85, 0.5), far=2)
SHORT, LONG = 0, 4


def totals(short_outside=0):
    """5,000 pairs of long captions and some of short ones, a fifth wrong by the estimator.

    The values are the probability, the evidence of the ranks, and whether a rank is far.
    """
    pairs = np.zeros(STRATA)
    pairs[LONG], pairs[SHORT] = 5000, short_outside + 300
    means = np.array([0.2, 0.2, 0.1])[:, None]
    # The short captions outside score as the group of `short` does that is right.
    of_short = np.array([0.345, 0.38, 0.2])[:, None]
    is_short = np.arange(STRATA) == SHORT
    sums = np.where(is_short, of_short, means) * pairs
    squares = np.where(is_short, of_short, means) * pairs * 0.6
    return Totals(pairs, sums, squares, np.array([1.0, 0.95, 0.9]))


def log_p_of(mean, known, count=300, by_stratum=True):
    """The log p-value of a group of short captions with these means of the three values."""
    pairs = np.zeros((1, STRATA))
    pairs[0, SHORT] = count
    sums = np.array(mean)[:, None, None] * pairs
    test = excess_tests(pairs, sums, known, np.zeros(3), REQUIRED, by_stratum)
    return float(test.log_p[0])


def test_short_captions_of_a_weak_estimator_are_no_cause():
    """It puts a fifth of their images in the lower half, and gives them twice the probability."""
    assert log_p_of([0.345, 0.38, 0.2], totals()) == 0
    assert log_p_of([0.345, 0.38, 0.2], totals(1000)) == 0
    assert log_p_of([0.345, 0.38, 0.3], totals()) == 0
    assert log_p_of([0.345, 0.38, 0.2], totals(), by_stratum=False) == 0


def test_short_captions_whose_images_lie_anywhere_are_one():
    # 300 KL(1/2 || 1/4): what right pairs show at most is taken to be one quarter.
    exponent = 300 * (np.log(2) / 2 + np.log(2 / 3) / 2)
    assert log_p_of([0.75, 0.74, 0.5], totals()) == pytest.approx(-exponent, rel=1e-3)
    assert log_p_of([0.75, 0.74, 0.5], totals(), count=100) < -12


def test_ranks_that_lie_in_the_lower_half_count_only_without_captions_as_short_outside():
    assert log_p_of([0.75, 0.74, 0.3], totals()) == 0
    assert log_p_of([0.75, 0.74, 0.3], totals(1000)) < -30


def test_evidence_must_rise_with_the_probability():
    assert log_p_of([0.75, 0.4, 0.5], totals(1000)) == 0
    assert log_p_of([0.75, 0.74, 0.5], totals(1000)) < -30


def test_a_group_of_all_pairs_exceeds_nothing():
    """As the words of a template that all captions of class folders have."""
    known = totals(1000)
    pairs, sums = known.pairs[None], known.sums[:, None]
    test = excess_tests(pairs, sums, known, np.zeros(3), REQUIRED)
    assert test.log_p[0] == 0
    assert test.expected[0] == pytest.approx(test.mean[0])


def test_groups_of_all_pairs_are_no_spread(tmp_path):
    """Classes of captions "a photo of X", of which two are wrong: their words are the causes."""
    values = columns(3000, 0, 0.02)
    names = np.array([f"thing{number}" for number in range(10)])
    place = np.arange(3000) % 10
    values["text"] = np.array([f"a photo of {name}" for name in names[place]], object)
    values["wrong"] |= place < 2
    values = judged(values)
    # Right classes differ a little, as those of an estimator do.
    values["noise_probability"] = values["noise_probability"] * (1 + 0.1 * (place % 3))
    scores = write(tmp_path / "scores.parquet", values)
    found = explain_scores([scores], str(tmp_path / "causes.parquet"))
    assert {cause.label for cause in found.causes} == {"of thing0", "of thing1"}
    assert max(c.rate.high - c.rate.low for c in found.causes) < 0.1
