"""Products by way of bfloat16 are those of float32."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.scoring.neighbours import products
from ncclean.scoring.neighbours.products import CoarseProducts, Products
from tests.scoring.neighbours.simulated import clustered


def both(vectors, rows, members, floors):
    return [
        one.reaching(rows, members, floors)
        for one in (Products(vectors), CoarseProducts(vectors, "cpu"))
    ]


def assert_same(exact, coarse, floors, length):
    """What float32 finds; within its rounding of the floor there may be some more or fewer."""
    found, again = (
        dict(
            zip(zip(one.rows.tolist(), one.places.tolist(), strict=True), one.cosines, strict=True)
        )
        for one in (exact, coarse)
    )
    for pair in found.keys() | again.keys():
        value, other = (float(one.get(pair, floors[pair[0]])) for one in (found, again))
        assert value == pytest.approx(other, abs=2e-6 * length**2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([3, 64, 257]),
    st.floats(0.9, 1.0),
    st.sampled_from([1, 40]),
)
def test_all_that_reach_their_floor_are_found(seed, dim, quantile, length):
    """Of unit vectors and of longer ones, however high the floor is."""
    rng = np.random.default_rng(seed)
    vectors = length * clustered(120, dim, seed).astype(np.float32)
    members = length * clustered(150, dim, seed).astype(np.float32) * rng.uniform(0.1, 1, (150, 1))
    members = members.astype(np.float32)
    rows = rng.permutation(120)[:70]
    floors = np.quantile(vectors[rows] @ members.T, quantile, axis=1).astype(np.float32)
    exact, coarse = both(vectors, rows, members, floors)
    assert_same(exact, coarse, floors, length)
    assert (np.diff(coarse.rows) >= 0).all()


def test_rounding_that_moves_all_elements_the_same_way_is_within_the_bound():
    """All lie just below the middle between two numbers of bfloat16, and are rounded down."""
    element = np.float32(1 + 2.0**-8 - 2.0**-20)
    vectors, members = np.full((1, 512), element), np.full((33, 512), -element)
    members[5] = element
    floors = np.array([512 * element**2 * (1 - 1e-6)], np.float32)
    exact, coarse = both(vectors, np.arange(1), members, floors)
    assert exact.places.tolist() == coarse.places.tolist() == [5]


def test_where_most_reach_the_floor_float32_is_taken(monkeypatch):
    vectors = clustered(20, 8).astype(np.float32)
    floors = np.full(20, -np.inf, np.float32)
    monkeypatch.setattr(CoarseProducts, "_exact", None)
    exact, coarse = both(vectors, np.arange(20), vectors, floors)
    assert len(exact.rows) == 400
    np.testing.assert_array_equal(coarse.cosines, exact.cosines)


def test_nothing_is_found_of_nothing():
    vectors = clustered(20, 8).astype(np.float32)
    for rows, members in ((np.arange(0), vectors), (np.arange(3), vectors[:0])):
        for one in both(vectors, rows, members, np.zeros(len(rows), np.float32)):
            assert len(one.rows) == len(one.places) == len(one.cosines) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_used_where_there_is_one():
    vectors = clustered(120, 64).astype(np.float32)
    floors = np.quantile(vectors @ vectors.T, 0.97, axis=1).astype(np.float32)
    coarse = products.products_of(vectors)
    assert type(coarse) is CoarseProducts
    exact = Products(vectors).reaching(np.arange(120), vectors, floors)
    assert_same(exact, coarse.reaching(np.arange(120), vectors, floors), floors, 1)


def test_without_a_gpu_products_are_taken_in_float32(monkeypatch):
    monkeypatch.setattr(products, "_has_gpu", lambda: False)
    assert type(products.products_of(clustered(20, 8).astype(np.float32))) is Products


def test_negative_floors():
    """The bits of negative numbers are in the opposite order."""
    vectors = clustered(60, 32, 1).astype(np.float32) + np.float32(0.5)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    members = -vectors[::-1].copy()
    floors = np.quantile(vectors @ members.T, 0.97, axis=1).astype(np.float32)
    assert (floors < 0).all()
    exact, coarse = both(vectors, np.arange(60), members, floors)
    assert_same(exact, coarse, floors, 1)
    assert 60 < len(coarse.rows) < 300
