import numpy as np
import pytest

from ncclean.neighbour_search.inverted_lists import InvertedList, batches
from ncclean.neighbour_search.knn import order_of

QUERIES = 300


class Ids:
    """An index of which only the ids in each list are known."""

    side = "image"

    def __init__(self, rows):
        self.rows = rows

    def of_list(self, name, what, number):
        assert (name, what) == ("image", "ids")
        return np.arange(self.rows) + 10 * number


def probed_lists(seed=0):
    """Twelve lists, and who visits them."""
    rng = np.random.default_rng(seed)
    for number in range(12):
        ids = np.sort(rng.choice(QUERIES, rng.integers(0, 200), replace=False)).astype(np.int32)
        rows = rng.integers(0, 9)
        yield InvertedList(Ids(rows), number), ids[ids % 4 > 0]


@pytest.mark.parametrize("room", [1, 20, 90, QUERIES])
def test_a_task_has_room_for_the_queries_of_a_batch(room):
    asked = {}
    for batch in batches(probed_lists(), room, QUERIES):
        distinct = np.unique(np.concatenate([asking for _, asking in batch.probes]))
        np.testing.assert_array_equal(batch.queries, distinct)
        assert len(distinct) <= room
        assert batch.comparisons == sum(len(one.ids) * len(ids) for one, ids in batch.probes)
        for members, asking in batch.probes:
            asked.setdefault(int(members.ids[0]), []).append(asking)
    expected = {}
    for members, ids in probed_lists():
        if len(members.ids) and len(ids):
            expected[int(members.ids[0])] = ids
    assert asked.keys() == expected.keys()
    for first, pieces in asked.items():
        np.testing.assert_array_equal(np.concatenate(pieces), expected[first])


def test_small_numbers_are_ordered_as_large_ones():
    numbers = np.random.default_rng(0).integers(0, 50, 1000)
    stable = np.argsort(numbers, kind="stable")
    np.testing.assert_array_equal(order_of(numbers, 50), stable)
    np.testing.assert_array_equal(order_of(numbers + 70_000, 70_050), stable)
