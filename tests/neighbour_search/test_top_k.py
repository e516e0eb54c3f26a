"""The largest products by way of bfloat16 are those of float32, to the last digit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.neighbour_search.list_scanner import TopK
from ncclean.neighbour_search.matmul import Bfloat16Matmul, Float32Matmul
from tests.neighbour_search.simulated import clustered


@pytest.mark.parametrize("width", [7, 200, 4099])
@pytest.mark.parametrize("levels", [4, 1 << 20], ids=["ties", "few ties"])
def test_largest_are_those_of_a_stable_sort(width, levels):
    """Of one dimension, so that products are the members themselves."""
    members = np.random.default_rng(width).integers(0, levels, (width, 1)).astype(np.float32)
    queries = np.ones((20, 1), np.float32)
    for count in (1, 2, 7, min(width, 150)):
        expected = np.argsort(-members[:, 0], kind="stable")[:count]
        for matmul in (Float32Matmul(), Bfloat16Matmul("cpu")):
            places, products = TopK(members, matmul).search(queries, count)
            assert (places == expected).all()
            assert (products == members[expected, 0]).all()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([3, 64, 257]),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([-1, 0, 1]),
)
def test_by_way_of_rounded_products(seed, dim, count, shift):
    """Whatever the sign of the products."""
    members = clustered(700, dim, seed).astype(np.float32)
    queries = clustered(60, dim, seed + 1).astype(np.float32) + np.float32(shift)
    exact, coarse = (
        TopK(members, matmul).search(queries, count)
        for matmul in (Float32Matmul(), Bfloat16Matmul("cpu"))
    )
    np.testing.assert_array_equal(coarse[0], exact[0])
    np.testing.assert_array_equal(coarse[1], exact[1])
    values = queries @ members.T
    expected = -np.sort(-values, axis=1)[:, :count]
    np.testing.assert_allclose(exact[1], expected, atol=1e-5 * (1 + abs(shift) * dim**0.5))
    take_float32 = np.take_along_axis(values, exact[0], axis=1)
    np.testing.assert_allclose(take_float32, exact[1], atol=1e-5 * (1 + abs(shift) * dim**0.5))
    assert all(len(set(row)) == count for row in exact[0].tolist())


def test_members_that_are_nearly_the_same():
    """What rounds the products in the end is not small, as members less their mean are."""
    rng = np.random.default_rng(0)
    base = clustered(1, 64).astype(np.float32)
    members = base + 1e-6 * rng.standard_normal((400, 64), np.float32)
    queries = clustered(30, 64, 1).astype(np.float32)
    exact, coarse = (
        TopK(members, matmul).search(queries, 9)
        for matmul in (Float32Matmul(), Bfloat16Matmul("cpu"))
    )
    np.testing.assert_array_equal(coarse[1], exact[1])
    np.testing.assert_array_equal(coarse[0], exact[0])


def test_members_that_are_all_the_same():
    members = np.ones((400, 32), np.float32)
    places, products = TopK(members, Bfloat16Matmul("cpu")).search(members[:9], 7)
    assert places.tolist() == [list(range(7))] * 9
    assert (products == 32).all()
