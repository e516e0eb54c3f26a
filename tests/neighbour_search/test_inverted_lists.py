import numpy as np
import pytest

from ncclean.neighbour_search.inverted_lists import (
    Nearest,
    NearestHeap,
    nearest_lists,
    nlist_for,
    train_lists,
)
from tests.neighbour_search.simulated import clustered


@pytest.mark.parametrize("rows", [1, 40, 6000, 1_000_000, 10_000_000])
def test_lists_are_a_power_of_two_and_hold_enough_vectors(rows):
    lists = nlist_for(rows)
    assert lists & (lists - 1) == 0
    assert lists == 1 or rows / lists > 22


def test_lists_are_trained_as_asked_and_hold_what_is_near():
    sample = clustered(3000, 16).astype(np.float32)
    centroids = train_lists(sample, 64, seed=0)
    assert centroids.shape == (64, 16)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
    nearest = nearest_lists(sample.astype(np.float16), centroids, 3)
    products = sample @ centroids.T
    np.testing.assert_array_equal(nearest, np.argsort(-products, axis=1)[:, :3])
    assert np.bincount(nearest[:, 0], minlength=64).min() > 0
    assert products.max(axis=1).mean() > 0.9
    np.testing.assert_array_equal(train_lists(sample, 64, seed=0), centroids)


def test_fewer_vectors_than_lists():
    sample = np.eye(3, dtype=np.float32)
    assert len(train_lists(sample, 8, seed=0)) <= 3
    assert nearest_lists(sample, sample, 8).shape == (3, 3)


def test_the_nearest_of_pieces_are_those_of_all():
    queries, vectors = clustered(20, 16).astype(np.float32), clustered(500, 16, seed=1)
    heap = NearestHeap(queries, 9)
    for part in np.array_split(np.arange(500), [3, 3, 400]):
        heap.add(vectors[part], part)
    found = heap.nearest()
    products = queries @ vectors.astype(np.float32).T
    np.testing.assert_array_equal(found.ids, np.argsort(-products, axis=1)[:, :9])
    np.testing.assert_allclose(found.cosines, -np.sort(-products, axis=1)[:, :9], atol=1e-5)


def test_what_is_missing_has_no_cosine_and_only_those_that_ask_are_compared():
    heap = NearestHeap(np.eye(2, dtype=np.float32), 2)
    heap.add(np.array([[0.6, 0.8]], np.float16), np.array([7]), np.array([1]))
    found = heap.nearest()
    assert found.ids.tolist() == [[-1, -1], [7, -1]]
    assert found.cosines[0].tolist() == [-np.inf, -np.inf]
    assert found.cosines[1] == pytest.approx([0.8, -np.inf], abs=1e-3)


def test_a_query_is_no_neighbour_of_its_own():
    nearest = Nearest(
        np.array([[1, 0.9, 0.8], [0.7, 0.6, 0.5]], np.float32), np.array([[0, 1, 2], [5, 6, 7]])
    )
    others = nearest.without(np.array([1, 9]))
    assert others.ids.tolist() == [[0, 2], [5, 6]]
    assert others.cosines[0] == pytest.approx([1, 0.8])
