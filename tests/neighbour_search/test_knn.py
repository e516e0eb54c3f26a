from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.neighbour_search.knn import (
    Heaps,
    Nearest,
    heap_keys,
    nearest_in_list,
    order_of,
    recall_by_value,
)
from ncclean.neighbour_search.list_scanner import ListScanner
from ncclean.neighbour_search.matmul import Float32Matmul
from tests.neighbour_search.simulated import clustered


def exact(queries, members, ids, k):
    """By cosine, then by id."""
    cosines = queries @ members.T
    order = np.stack([np.lexsort((ids, -row)) for row in cosines])[:, :k]
    return np.take_along_axis(cosines, order, axis=1), ids[order]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(1, 12), st.integers(1, 6))
def test_lists_together_give_the_exact_neighbours(seed, k, lists):
    """The nearest list first, then what reaches the floor: whatever the lists are."""
    rng = np.random.default_rng(seed)
    members = clustered(90, 8, seed).astype(np.float32)
    members[rng.integers(0, 90, 10)] = members[0]  # ties
    ids = rng.permutation(90).astype(np.int32)
    queries = clustered(25, 8, seed + 1).astype(np.float32)
    of_list = rng.integers(0, lists, 90)
    home = rng.integers(0, lists, 25)
    cosines = np.full((25, k), -np.inf, np.float32)
    near = np.full((25, k), -1, np.int32)
    for number in range(lists):
        here, there = home == number, of_list == number
        found = nearest_in_list(queries[here], members[there], ids[there], k, None)
        cosines[here], near[here] = found.cosines, found.ids
    best = Heaps(heap_keys(Nearest(cosines, near)))
    for number in rng.permutation(lists):
        away, there = np.flatnonzero(home != number), of_list == number
        products = ListScanner(partial(np.take, queries, axis=0), Float32Matmul())
        products.set_list(members[there])
        best.add(away, products.range_search(away, best.thresholds(away)), ids[there])
    best = best.nearest()
    expected, expected_ids = exact(queries, members, ids, k)
    np.testing.assert_allclose(best.cosines, expected, atol=1e-6)
    distinct = np.diff(expected, axis=1) < -1e-6
    agree = best.ids == expected_ids
    assert agree[:, :-1][distinct & np.pad(distinct, ((0, 0), (1, 0)))[:, :-1]].all()


def test_a_query_is_not_its_own_neighbour():
    members = clustered(20, 8).astype(np.float32)
    ids = np.arange(100, 120, dtype=np.int32)
    found = nearest_in_list(members[[3, 7]], members, ids, 19, ids[[3, 7]])
    assert 103 not in found.ids[0]
    assert sorted(found.ids[1]) == [one for one in ids if one != 107]
    few = nearest_in_list(members[:1], members[:3], ids[:3], 5, ids[:1])
    assert few.ids[0].tolist().count(-1) == 3


def test_recall_counts_ties_as_found():
    truth = np.array([[0.9, 0.8, 0.8]], np.float32)
    assert recall_by_value(np.array([[0.9, 0.8, 0.7]], np.float32), truth) == pytest.approx(2 / 3)
    assert recall_by_value(truth, truth) == 1


@pytest.mark.parametrize("count", [1 << 16, (1 << 16) + 1, 200_000])
def test_order_of_numbers_of_more_than_16_bits(count):
    numbers = np.random.default_rng(0).integers(0, count, 5000)
    numbers[:2] = count - 1
    assert np.array_equal(order_of(numbers, count), np.argsort(numbers, kind="stable"))
