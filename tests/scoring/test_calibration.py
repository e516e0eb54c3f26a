"""What the whole corpus says, as numbers by hand: rates of groups, and the columns it fills."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from ncclean.base import schema
from ncclean.base.estimates import Estimate
from ncclean.scoring.calibration import Calibration, fill_calibrated, noise_columns
from ncclean.scoring.near_miss import NearMisses
from ncclean.scoring.null import GroupRate, Histogram, NullModel
from ncclean.scoring.recalibration import Audited, Recalibration
from ncclean.scoring.stats import Distributions


def null(centre, rate=0.5):
    """Mismatches around `centre`, and pairs of which a share is mismatched."""
    rng = np.random.default_rng(0)
    known = rng.normal(centre, 0.05, 20_000)
    pairs = np.append(rng.normal(centre, 0.05, int(2_000 * rate)), rng.normal(0.8, 0.02, 1_000))
    return NullModel.fit(*(Histogram.of(torch.from_numpy(a).float()) for a in (pairs, known)))


ALL, APART = null(0.1), null(0.4)
AUDITED = Audited(
    Recalibration(1.0, (0.0,), (1.0, 1.0)), Estimate(0.3, 0.2, 0.4), 50, "", (0.5,), (0.6,)
)


def calibration(**fields):
    return Calibration(0.2, "given", ALL, None, 100.0, **fields)


def pairs(**columns):
    """Three scored pairs, of which two are of the group `a`."""
    names = {"calibration_group": ["a", None, "a"], "similarity": [0.35, 0.35, 0.45], **columns}
    rows = [dict(zip(names, values, strict=True)) for values in zip(*names.values(), strict=True)]
    facts = [
        {"uid": str(n), "shard": "0", "key": str(n), "row": n, "status": "ok", **row}
        for n, row in enumerate(rows)
    ]
    kinds = schema.with_further(
        pa.field(name, schema.WORD_TYPES[name]) for name in columns if name in schema.WORD_TYPES
    )
    return pa.Table.from_pylist(facts, schema=kinds)


def test_the_rate_of_groups_is_that_of_their_sum():
    """Shares 3/4 and 1/4; the ends err independently of each other."""
    rates = [
        GroupRate("a", 3_000, Estimate(0.2, 0.1, 0.3), own_null=True),
        GroupRate("b", 1_000, Estimate(0.4, 0.3, 0.8), own_null=False),
    ]
    rate, low, high = calibration(groups={"a": APART}, group_rates=rates).noise_rate
    assert rate == pytest.approx(0.25)
    assert low == pytest.approx(0.25 - np.hypot(0.75 * 0.1, 0.25 * 0.1))
    assert high == pytest.approx(0.25 + np.hypot(0.75 * 0.1, 0.25 * 0.4))


def test_without_groups_of_their_own_or_with_an_audit_the_rate_is_another():
    rates = [GroupRate("a", 10, Estimate(0.9, 0.8, 1.0), own_null=False)]
    assert calibration(group_rates=rates).noise_rate == ALL.noise_rate
    audited = calibration(groups={"a": APART}, group_rates=rates, audited=AUDITED)
    assert audited.noise_rate == (0.3, 0.2, 0.4)


def test_pairs_of_a_group_have_probability_and_p_value_of_its_null():
    probability, p_value = noise_columns(pairs(), calibration(groups={"a": APART}))
    cosines = torch.tensor([0.35, 0.45])
    assert torch.equal(probability[[0, 2]], APART.noise_probability(cosines))
    assert torch.equal(p_value[[0, 2]], APART.p_value(cosines))
    assert probability[1] == ALL.noise_probability(cosines[:1])
    assert p_value[1] == ALL.p_value(cosines[:1])
    assert p_value[0] > 0.5 > p_value[1]


def test_pairs_without_a_label_may_have_a_null_of_their_own():
    probability, p_value = noise_columns(pairs(), calibration(groups={None: APART}))
    cosines = torch.tensor([0.35, 0.35, 0.45])
    for column, name in ((probability, "noise_probability"), (p_value, "p_value")):
        assert column[1] == getattr(APART, name)(cosines)[1]
        assert torch.equal(column[[0, 2]], getattr(ALL, name)(cosines[[0, 2]]))


@pytest.mark.parametrize("groups", [{}, {"a": APART}])
def test_an_audit_moves_the_probabilities_of_all(groups):
    before, p_value = noise_columns(pairs(), calibration(groups=groups))
    after, same = noise_columns(pairs(), calibration(groups=groups, audited=AUDITED))
    expected = AUDITED.recalibration(before.numpy())
    assert after.numpy() == pytest.approx(expected, abs=1e-6)
    assert not torch.equal(after, before)
    assert torch.equal(same, p_value)


def test_without_a_word_of_a_class_there_is_no_probability_of_a_near_miss():
    near = NearMisses(ALL, Estimate(0.1, 0.05, 0.15))
    table = pairs(near_miss_score=[0.1, None, 0.8], near_miss_probability=[None] * 3)
    filled = fill_calibrated(table, calibration(near_misses=near))
    first, without, last = filled.column("near_miss_probability").to_pylist()
    expected = ALL.noise_probability(torch.tensor([0.1, 0.8])).tolist()
    assert [first, last] == pytest.approx(expected)
    assert without is None
    assert filled.column("noise_probability").null_count == 0


def test_a_small_group_has_the_rate_of_its_own_pairs():
    """By the null of all: 60 % of its 500 pairs are mismatched, of all pairs 12 %."""
    rng = np.random.default_rng(0)

    def histogram(*parts):
        cosines = np.concatenate([rng.normal(centre, 0.05, count) for centre, count in parts])
        return Histogram.of(torch.from_numpy(cosines).float())

    known = histogram((0.1, 50_000))
    small = Distributions(histogram((0.1, 300), (0.6, 200)), histogram((0.1, 500)))
    large = Distributions(histogram((0.1, 180), (0.6, 3_320)), histogram((0.1, 20_000)))
    matched = Histogram(small.matched.counts + large.matched.counts)
    whole = Distributions(matched, known, groups={"small": small, "large": large})
    fitted = Calibration.fit(whole, shift=0.2, shift_source="given", scale=100.0)
    rates = {one.group: one for one in fitted.group_rates}
    assert not rates["small"].own_null
    assert rates["small"].noise_rate.value == pytest.approx(0.6, abs=0.05)
    assert rates["large"].own_null
    assert rates["large"].noise_rate.value == pytest.approx(180 / 3_500, abs=0.02)
