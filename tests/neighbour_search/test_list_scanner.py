"""Products by way of bfloat16 are those of float32, to the last digit."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.neighbour_search import matmul
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import Bfloat16Matmul, Float32Matmul, fastest_matmul
from tests.neighbour_search.simulated import clustered


def range_search(products, rows, members, thresholds, first=None):
    products.set_list(members)
    return products.range_search(rows, thresholds, first)


def both(vectors, rows, members, thresholds, first=None):
    return [
        range_search(
            ListScanner(partial(np.take, vectors, axis=0), matmul), rows, members, thresholds, first
        )
        for matmul in (Float32Matmul(), Bfloat16Matmul("cpu"))
    ]


def assert_same(exact, coarse):
    np.testing.assert_array_equal(coarse.rows, exact.rows)
    np.testing.assert_array_equal(coarse.places, exact.places)
    np.testing.assert_array_equal(coarse.cosines, exact.cosines)


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
    thresholds = np.quantile(vectors[rows] @ members.T, quantile, axis=1).astype(np.float32)
    exact, coarse = both(vectors, rows, members, thresholds)
    assert_same(exact, coarse)
    assert (np.diff(coarse.rows) >= 0).all()


def test_rounding_that_moves_all_elements_the_same_way_is_within_the_bound():
    """All lie just below the middle between two numbers of bfloat16, and are rounded down."""
    element = np.float32(1 + 2.0**-8 - 2.0**-20)
    vectors, members = np.full((1, 512), element), np.full((33, 512), -element)
    members[5] = element
    thresholds = np.array([512 * element**2 * (1 - 1e-6)], np.float32)
    exact, coarse = both(vectors, np.arange(1), members, thresholds)
    assert exact.places.tolist() == coarse.places.tolist() == [5]


def test_where_one_long_member_makes_the_bound_wide():
    """Most products may reach their floor by rounded ones: float32 tells which do."""
    vectors = clustered(60, 32).astype(np.float32)
    members = clustered(200, 32, 1).astype(np.float32)
    members[7] *= 1e3
    thresholds = np.quantile(vectors @ members.T, 0.97, axis=1).astype(np.float32)
    assert_same(*both(vectors, np.arange(60), members, thresholds))


def test_all_that_there_is():
    vectors = clustered(20, 8).astype(np.float32)
    thresholds = np.full(20, -np.inf, np.float32)
    exact, coarse = both(vectors, np.arange(20), vectors, thresholds)
    assert len(exact.rows) == 400
    assert_same(exact, coarse)


def test_nothing_is_found_of_nothing():
    vectors = clustered(20, 8).astype(np.float32)
    for rows, members in ((np.arange(0), vectors), (np.arange(3), vectors[:0])):
        for one in both(vectors, rows, members, np.zeros(len(rows), np.float32)):
            assert len(one.rows) == len(one.places) == len(one.cosines) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_used_where_there_is_one():
    vectors = clustered(120, 64).astype(np.float32)
    thresholds = np.quantile(vectors @ vectors.T, 0.97, axis=1).astype(np.float32)
    matmul = fastest_matmul(1)
    assert type(matmul) is Bfloat16Matmul
    exact, coarse = (
        range_search(
            ListScanner(partial(np.take, vectors, axis=0), one), np.arange(120), vectors, thresholds
        )
        for one in (Float32Matmul(), matmul)
    )
    assert_same(exact, coarse)


@pytest.mark.parametrize(("tiles", "count", "kind"), [
    (False, 1e12, Float32Matmul), (True, 1e12, Bfloat16Matmul), (True, 10, Float32Matmul)
])  # fmt: skip
def test_many_products_are_rounded_first_where_tiles_take_them(monkeypatch, tiles, count, kind):
    monkeypatch.setattr(matmul, "_has_gpu", lambda: False)
    monkeypatch.setattr(matmul, "_has_tiles", lambda: tiles)
    assert type(fastest_matmul(count)) is kind


def test_the_first_members_alone():
    vectors = clustered(90, 32).astype(np.float32)
    members = clustered(200, 32, 1).astype(np.float32)
    thresholds = np.quantile(vectors @ members.T, 0.97, axis=1).astype(np.float32)
    exact, coarse = both(vectors, np.arange(90), members, thresholds, first=70)
    assert_same(exact, coarse)
    assert 60 < coarse.places.max() < 70


def test_negative_floors():
    """The bits of negative numbers are in the opposite order."""
    vectors = clustered(60, 32, 1).astype(np.float32) + np.float32(0.5)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    members = -vectors[::-1].copy()
    thresholds = np.quantile(vectors @ members.T, 0.97, axis=1).astype(np.float32)
    assert (thresholds < 0).all()
    exact, coarse = both(vectors, np.arange(60), members, thresholds)
    assert_same(exact, coarse)
    assert 60 < len(coarse.rows) < 300
