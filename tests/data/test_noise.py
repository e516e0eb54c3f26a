import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.noise import PER_BATCH_SIZE, PERMUTING, WITH_PARTNER, parse_rates, plan_noise


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


def test_per_batch_stays_within_its_batch():
    plan = plan_noise(1000, {"per_batch": 0.5}, seed=0)
    assert (plan.caption_source // PER_BATCH_SIZE == np.arange(1000) // PER_BATCH_SIZE).all()
    assert plan.is_noisy.sum() > 450


def test_donors_are_drawn_once_each_as_far_as_they_go(refused):
    plan = plan_noise(100, {"ncr": 0.2, "donor": 0.3}, 1, donors=40)
    taken = plan.caption_source[plan.kind == "donor"]
    assert len(taken) == len(set(taken)) == 30
    assert (taken >= 100).all()
    assert (taken < 140).all()
    assert (plan.caption_source[plan.kind != "donor"] < 100).all()
    assert (plan.kind == "ncr").sum() == (plan_noise(100, {"ncr": 0.2}, 1).kind == "ncr").sum()
    few = plan_noise(100, {"donor": 0.5}, 1, donors=20)
    counts = np.bincount(few.caption_source[few.is_noisy] - 100, minlength=20)
    assert (few.is_noisy.sum(), counts.min(), counts.max()) == (50, 2, 3)
    refused(plan_noise, 100, {"donor": 0.5}, 1)


def test_seeded():
    first, again = (plan_noise(500, {"ncr": 0.3}, seed=1) for _ in range(2))
    assert (first.caption_source == again.caption_source).all()
    assert (first.caption_source != plan_noise(500, {"ncr": 0.3}, 2).caption_source).any()


@pytest.mark.parametrize("rates", [{"salt": 0.1}, {"ncr": -0.1}, {"ncr": 0.7, "hard": 0.4}])
def test_impossible_rates_are_refused(rates, refused):
    refused(plan_noise, 10, rates, 0)


def test_hard_takes_changeable_pairs_only_and_may_run_short():
    changeable = np.arange(100) % 4 == 0
    plan = plan_noise(100, {"ncr": 0.2, "hard": 0.5}, 0, changeable=changeable)
    assert changeable[plan.kind == "hard"].all()
    assert plan.planned["ncr"] == 20
    assert plan.planned["hard"] == (plan.kind == "hard").sum() <= 25
    # Whatever could be changed and was not drawn before is hard now.
    assert (plan.kind[changeable & (plan.caption_source == np.arange(100))] != "").sum() > 15


def test_all_changeable_is_the_plan_without_the_mask():
    rates = {"ncr": 0.2, "hard": 0.1, "junk": 0.05}
    plain = plan_noise(500, rates, 3)
    masked = plan_noise(500, rates, 3, changeable=np.ones(500, dtype=bool))
    assert (plain.kind == masked.kind).all()


@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 5), st.sampled_from(PERMUTING))
def test_exact_counts_and_permutations(pairs, rate, seed, kind):
    plan = plan_noise(pairs, {kind: rate}, seed)
    assert plan.planned == {kind: math.floor(rate * pairs + 1e-9)}
    assert plan.is_noisy.sum() <= plan.planned[kind]
    for source in (plan.caption_source, plan.image_source):
        assert (np.sort(source) == np.arange(pairs)).all()
    moved = (plan.caption_source != np.arange(pairs)) | (plan.image_source != np.arange(pairs))
    assert (moved == plan.is_noisy).all()


def test_rates_from_the_command_line():
    assert parse_rates(["ncr"], [0.2], []) == {"ncr": 0.2}
    assert parse_rates(["ncr"], [0.2], ["hard=0.05,junk=0.1"]) == {
        "ncr": 0.2,
        "hard": 0.05,
        "junk": 0.1,
    }


@pytest.mark.parametrize(
    ("kinds", "rates", "noise"),
    [
        (["ncr"], [], []),
        (["ncr"], [0.1], ["ncr=0.2"]),
        ([], [], ["ncr"]),
        ([], [], ["ncr=much"]),
        ([], [], ["salt=0.1"]),
        ([], [], ["ncr=nan"]),
        (["ncr", "hard"], [0.7, 0.7], []),
    ],
)
def test_mistakes_in_rates(kinds, rates, noise, refused):
    refused(parse_rates, kinds, rates, noise)


@pytest.mark.parametrize("kind", WITH_PARTNER)
def test_sentences_come_from_another_image(kind):
    """Of captions of three images each; every giver gives once."""
    images = np.repeat(np.arange(200), 3)
    plan = plan_noise(600, {kind: 0.3, "ncr": 0.2}, 4, images=images)
    assert plan.planned == {"ncr": 120, kind: 180}
    takes = np.flatnonzero(plan.kind == kind)
    assert 170 < len(takes) <= 180
    assert plan.partners.keys() == set(takes.tolist())
    givers = [plan.partners[place] for place in takes.tolist()]
    assert len(set(givers)) == len(givers)
    assert (plan.images[takes] != images[givers]).all()
    # They stay with their image, in their place.
    assert (plan.images[takes] == images[plan.caption_source[takes]]).all()
    moved = plan.images != images[plan.caption_source]
    assert (moved == (plan.kind == "ncr")).all()


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=60),
    st.floats(0, 0.5),
    st.sampled_from(["", "ncr", "ncr_image", "decl", "hard"]),
    st.integers(0, 9),
)
def test_partners_whatever_else_moves(counts, rate, other, seed):
    images = np.repeat(np.arange(len(counts)), counts)
    rates = {"foreign_sentence": rate, **({other: rate} if other else {})}
    plan = plan_noise(len(images), rates, seed, images=images)
    takes = np.flatnonzero(plan.kind == "foreign_sentence").tolist()
    assert len(takes) <= int(rate * len(images) + 1e-9)
    assert sorted(plan.partners) == takes
    for place, giver in plan.partners.items():
        own = images[plan.caption_source[place]]
        assert images[giver] != own
        assert plan.images[place] == own


def test_of_one_image_nothing_is_foreign():
    for images in (np.zeros(8, int), np.arange(1)):
        plan = plan_noise(len(images), {"added_detail": 1.0}, 0, images=images)
        assert not plan.is_noisy.any()
        assert plan.partners == {}


@pytest.mark.parametrize("seed", range(5))
def test_with_one_caption_for_each_image_all_that_are_drawn_are_noisy(seed):
    """No caption gives a sentence to itself."""
    plan = plan_noise(200, {"foreign_sentence": 0.3, "added_detail": 0.2}, seed)
    assert [(plan.kind == kind).sum() for kind in WITH_PARTNER] == [60, 40]
    assert plan_noise(2, {"added_detail": 1.0}, seed).partners == {0: 1, 1: 0}
