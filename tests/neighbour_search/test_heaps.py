import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.neighbour_search.knn import Heaps, Nearest, heap_keys, nearest_in_list
from ncclean.neighbour_search.list_scanner import Hits
from tests.neighbour_search.simulated import clustered


def brute_force(queries, members, ids, k):
    """By cosine, then by id."""
    cosines = queries @ members.T
    order = np.stack([np.lexsort((ids, -row)) for row in cosines])[:, :k]
    return np.take_along_axis(cosines, order, axis=1), ids[order]


def add(rising, rows, products, ids):
    """All products of a list, of which those that reach the floors are taken."""
    row, place = np.nonzero(products >= rising.thresholds(rows)[:, None])
    rising.add(rows, Hits(row, place, products[row, place]), ids)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(1, 12), st.integers(1, 6))
def test_lists_one_by_one_give_the_nearest_of_all(seed, k, lists):
    """Whatever the lists are, and in whatever order they come."""
    rng = np.random.default_rng(seed)
    members = clustered(90, 8, seed).astype(np.float32)
    ids = rng.permutation(90).astype(np.int32)
    queries = clustered(25, 8, seed + 1).astype(np.float32)
    of_list, home = rng.integers(0, lists, 90), rng.integers(0, lists, 25)
    cosines, near = np.full((25, k), -np.inf, np.float32), np.full((25, k), -1, np.int32)
    for number in range(lists):
        here, there = home == number, of_list == number
        found = nearest_in_list(queries[here], members[there], ids[there], k, None)
        cosines[here], near[here] = found.cosines, found.ids
    rising = Heaps(heap_keys(Nearest(cosines, near)))
    for number in rng.permutation(lists):
        away, there = np.flatnonzero(home != number), of_list == number
        add(rising, away, queries[away] @ members[there].T, ids[there])
    best = rising.nearest()
    expected, expected_ids = brute_force(queries, members, ids, k)
    np.testing.assert_allclose(best.cosines, expected, atol=1e-6)
    clear = np.abs(np.diff(expected, axis=1)) > 1e-6
    assert (best.ids == expected_ids)[:, :-1][clear & np.pad(clear, ((0, 0), (1, 0)))[:, :-1]].all()


def test_only_what_beats_the_known_is_found():
    known = Nearest(np.array([[0.5, -0.25]], np.float32), np.array([[7, 8]], np.int32))
    rising = Heaps(heap_keys(known))
    add(rising, np.array([0]), np.array([[-0.5, 0.75, -0.3]], np.float32), np.array([1, 2, 3]))
    rows, keys = rising.added()
    assert rows.tolist() == [0]
    again = Heaps.empty(1, 2)
    again.merge(rows, keys)
    assert again.nearest().ids.tolist() == [[2, -1]]
    assert again.nearest().cosines.tolist() == [[0.75, -np.inf]]
    assert rising.nearest().ids.tolist() == [[2, 7]]


@pytest.mark.parametrize("order", [[5, 2, 9, 4], [9, 5, 4, 2], [2, 4, 5, 9]])
def test_of_ties_the_smallest_ids_are_kept(order):
    known = Nearest(np.array([[0.5, -np.inf, -np.inf]], np.float32), np.array([[3, -1, -1]]))
    rising = Heaps(heap_keys(known))
    for one in order:
        add(rising, np.array([0]), np.array([[0.5]], np.float32), np.array([one], np.int32))
    assert rising.nearest().ids.tolist() == [[2, 3, 4]]


def test_negative_cosines_are_in_order():
    rising = Heaps.empty(1, 2)
    values = np.array([[-0.5, -0.25, -0.75, -0.0]], np.float32)
    add(rising, np.array([0]), values, np.arange(4, dtype=np.int32))
    assert rising.nearest().cosines.tolist() == [[0, -0.25]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 4))
def test_what_several_found_is_merged_with_what_is_known(seed, k, parts):
    """As tasks do that see other lists each, many new ones of a query among them."""
    rng = np.random.default_rng(seed)
    products = rng.integers(-9, 9, (20, 60)).astype(np.float32) / 8
    ids = rng.permutation(60).astype(np.int32)
    own = nearest(products[:, :10], ids[:10], k)
    whole = Heaps(heap_keys(own))
    for columns in np.array_split(np.arange(10, 60), parts):
        rising = Heaps(heap_keys(own))
        add(rising, np.arange(20), products[:, columns], ids[columns])
        whole.merge(*rising.added())
    expected = nearest(products, ids, k)
    np.testing.assert_array_equal(whole.nearest().ids, expected.ids)
    np.testing.assert_array_equal(whole.nearest().cosines, expected.cosines)


def nearest(products, ids, k):
    order = np.stack([np.lexsort((ids, -row)) for row in products])[:, :k]
    return Nearest(np.take_along_axis(products, order, axis=1), ids[order])
