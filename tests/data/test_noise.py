import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.noise import PER_BATCH_SIZE, plan_noise
from ncclean.errors import InputError


@given(
    st.integers(1, 2000),
    st.floats(0, 0.5),
    st.floats(0, 0.3),
    st.sampled_from(["ncr", "decl", "per_batch"]),
    st.integers(0, 5),
)
def test_permutes_exactly_a_share_and_stays_a_permutation(pairs, rate, hard, kind, seed):
    plan = plan_noise(pairs, {kind: rate, "hard": hard}, seed)
    index = np.arange(pairs)
    moved = plan.image_source if kind == "decl" else plan.caption_source
    still = plan.caption_source if kind == "decl" else plan.image_source
    assert (still == index).all()
    assert sorted(moved) == index.tolist()
    assert ((moved != index) == (plan.kind == kind)).all()
    assert (plan.kind == "hard").sum() == int(hard * pairs + 1e-9)
    assert (plan.kind == kind).sum() <= int(rate * pairs + 1e-9)
    assert (plan.is_noisy == (plan.kind != "")).all()


def test_a_permuted_fifth_is_nearly_all_noisy():
    plan = plan_noise(10_000, {"ncr": 0.2}, seed=0)
    assert 1990 <= plan.is_noisy.sum() <= 2000


def test_per_batch_stays_within_its_batch():
    plan = plan_noise(1000, {"per_batch": 0.5}, seed=0)
    assert (plan.caption_source // PER_BATCH_SIZE == np.arange(1000) // PER_BATCH_SIZE).all()
    assert plan.is_noisy.sum() > 450


def test_seeded():
    first, again = (plan_noise(500, {"ncr": 0.3}, seed=1) for _ in range(2))
    assert (first.caption_source == again.caption_source).all()
    assert (first.caption_source != plan_noise(500, {"ncr": 0.3}, 2).caption_source).any()


@pytest.mark.parametrize("rates", [{"salt": 0.1}, {"ncr": -0.1}, {"ncr": 0.7, "hard": 0.4}])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(InputError):
        plan_noise(10, rates, 0)
