import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.scoring.neighbours.products import Reached
from ncclean.scoring.neighbours.rising import RisingNearest
from ncclean.scoring.neighbours.search import Nearest, merge_nearest, nearest_in_list
from tests.scoring.neighbours.simulated import clustered


def brute_force(queries, members, ids, k):
    """By cosine, then by id."""
    cosines = queries @ members.T
    order = np.stack([np.lexsort((ids, -row)) for row in cosines])[:, :k]
    return np.take_along_axis(cosines, order, axis=1), ids[order]


def add(rising, rows, products, ids):
    """All products of a list, of which those that reach the floors are taken."""
    row, place = np.nonzero(products >= rising.floors(rows)[:, None])
    rising.add(rows, Reached(row, place, products[row, place]), ids)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(1, 12), st.integers(1, 6))
def test_lists_one_by_one_give_the_nearest_of_all(seed, k, lists):
    """Whatever the lists are, and in whatever order they come."""
    rng = np.random.default_rng(seed)
    members = clustered(90, 8, seed).astype(np.float32)
    ids = rng.permutation(90).astype(np.int32)
    queries = clustered(25, 8, seed + 1).astype(np.float32)
    query_ids = np.arange(100, 125, dtype=np.int32)
    of_list, home = rng.integers(0, lists, 90), rng.integers(0, lists, 25)
    cosines, near = np.full((25, k), -np.inf, np.float32), np.full((25, k), -1, np.int32)
    for number in range(lists):
        here, there = home == number, of_list == number
        found = nearest_in_list(queries[here], members[there], ids[there], k, None)
        cosines[here], near[here] = found.cosines, found.ids
    known = Nearest(cosines, near)
    rising = RisingNearest(known)
    for number in rng.permutation(lists):
        away, there = np.flatnonzero(home != number), of_list == number
        add(rising, away, queries[away] @ members[there].T, ids[there])
    best = merge_nearest(query_ids, known, rising.found(query_ids))
    expected, expected_ids = brute_force(queries, members, ids, k)
    np.testing.assert_allclose(best.cosines, expected, atol=1e-6)
    clear = np.abs(np.diff(expected, axis=1)) > 1e-6
    assert (best.ids == expected_ids)[:, :-1][clear & np.pad(clear, ((0, 0), (1, 0)))[:, :-1]].all()


def test_only_what_beats_the_known_is_found():
    known = Nearest(np.array([[0.5, -0.25]], np.float32), np.array([[7, 8]], np.int32))
    rising = RisingNearest(known)
    add(rising, np.array([0]), np.array([[-0.5, 0.75, -0.3]], np.float32), np.array([1, 2, 3]))
    found = rising.found(np.array([11]))
    assert (found.queries.tolist(), found.ids.tolist()) == ([11], [2])
    assert found.cosines.tolist() == [0.75]


@pytest.mark.parametrize("order", [[5, 2, 9, 4], [9, 5, 4, 2], [2, 4, 5, 9]])
def test_of_ties_the_smallest_ids_are_kept(order):
    known = Nearest(np.array([[0.5, -np.inf, -np.inf]], np.float32), np.array([[3, -1, -1]]))
    rising = RisingNearest(known)
    for one in order:
        add(rising, np.array([0]), np.array([[0.5]], np.float32), np.array([one], np.int32))
    assert sorted(rising.found(np.array([0])).ids.tolist()) == [2, 4]


def test_negative_cosines_are_in_order():
    rising = RisingNearest(Nearest(np.full((1, 2), -np.inf, np.float32), np.full((1, 2), -1)))
    values = np.array([[-0.5, -0.25, -0.75, -0.0]], np.float32)
    add(rising, np.array([0]), values, np.arange(4, dtype=np.int32))
    assert sorted(rising.found(np.array([0])).cosines.tolist()) == [-0.25, 0]
