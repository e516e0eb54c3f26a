"""What is done chunk by chunk, against the same at once."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ncclean.neighbour_search import chunked
from ncclean.storage.array_files import ArrayFolder


@pytest.fixture(params=[3, 16, 1 << 18], autouse=True)
def values(request, monkeypatch):
    monkeypatch.setattr(chunked, "VALUES", request.param)
    return request.param


@pytest.mark.parametrize("most", [1, 7, 400])
def test_first_rows_with_an_equal_key(tmp_path, values, most):
    keys = np.random.default_rng(most).integers(0, most, (300, 2)).astype(np.uint64)
    keys[::5, 0] <<= np.uint64(60)  # digests fill all bits, group numbers a few
    first = np.zeros(300, np.int32)
    chunked.first_rows(ArrayFolder(str(tmp_path)), lambda: np.array_split(keys, 7), first)
    _, expected, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(first, expected[inverse.reshape(-1)])
    assert not list(tmp_path.iterdir())  # what was sorted on the disk is gone


def test_stable_places():
    numbers = np.random.default_rng(0).integers(0, 20, 200)
    next_place = np.bincount(numbers, minlength=20)
    chunked.exclusive_sums(next_place, next_place)
    places = [chunked.take_places(some, next_place) for some in np.array_split(numbers, 9)]
    expected = np.argsort(numbers, kind="stable")
    np.testing.assert_array_equal(np.argsort(np.concatenate(places)), expected)


def test_counts():
    numbers = np.random.default_rng(0).integers(0, 9, 100)
    counts = np.zeros(9, np.int32)
    chunked.add_counts(counts, numbers)
    np.testing.assert_array_equal(counts, np.bincount(numbers, minlength=9))


@pytest.mark.parametrize("seed", range(5))
def test_disjoint_sets_are_the_connected_components(seed):
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, 60, (2, 30))
    if seed == 0:  # a chain, from its end
        one, other = np.arange(59, 0, -1), np.arange(58, -1, -1)
    sets = chunked.DisjointSets(parent := np.zeros(60, np.int32))
    for some in np.array_split(np.arange(len(one)), 4):
        sets.join(one[some], other[some])
    sets.finish()
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(60, 60))
    label = connected_components(graph, directed=False)[1]
    np.testing.assert_array_equal(parent, np.unique(label, return_index=True)[1][label])
