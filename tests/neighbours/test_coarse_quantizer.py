import numpy as np
import pytest

from ncclean.neighbours.coarse_quantizer import Centroids, number_of_lists
from tests.neighbours.simulated import clustered


def test_number_of_lists():
    assert number_of_lists(1) == 1
    assert number_of_lists(1_000_000) == 2048
    assert number_of_lists(2000) == 64  # 32 vectors each


def trained(rows=4000, lists=64, dim=16):
    vectors = clustered(rows, dim).astype(np.float32)
    return Centroids.train(vectors, lists, 0), vectors


def test_lists_that_are_alike_have_consecutive_numbers():
    centroids, _ = trained()
    assert 48 <= len(centroids) <= 64
    assert np.linalg.norm(centroids.lists, axis=1) == pytest.approx(1, abs=1e-5)
    cosines = centroids.lists @ centroids.lists.T
    far = np.abs(np.subtract.outer(*2 * (np.arange(len(centroids)),))) > 16
    assert np.diagonal(cosines, 1).mean() > cosines[far].mean() + 0.1


def test_the_nearest_lists_are_found_wherever_they_are():
    centroids, vectors = trained()
    routes = centroids.route(vectors, 5)
    exact = np.argsort(-(vectors @ centroids.lists.T), axis=1)[:, :5]
    assert (routes == exact).mean() > 0.999  # but for rounding


def test_the_nearest_list_does_not_depend_on_how_many_are_asked_for():
    centroids, vectors = trained(20_000, 1024)
    few, many = centroids.route(vectors, 1), centroids.route(vectors, 200)
    np.testing.assert_array_equal(few[:, 0], many[:, 0])
    assert all(len(set(row)) == 200 for row in many[:50].tolist())
    exact = (vectors @ centroids.lists.T).argmax(axis=1)
    assert (few[:, 0] == exact).mean() > 0.9999  # but for rounding


def test_more_lists_than_there_are():
    centroids, vectors = trained(10, 4)
    assert centroids.route(vectors, 50).shape == (10, len(centroids))
    again = Centroids.of(centroids.arrays("x_"), "x_")
    np.testing.assert_array_equal(again.route(vectors, 2), centroids.route(vectors, 2))
    one = Centroids.train(vectors[:1], 8, 0)
    assert one.route(vectors, 3).tolist() == [[0]] * 10


def test_routes_of_many_vectors_are_those_of_few():
    centroids, vectors = trained(20_000, 1024)
    vectors = np.tile(vectors, (2, 1))  # more than are compared at a time
    whole = centroids.route(vectors, 8)
    parts = [centroids.route(part, 8) for part in np.split(vectors, 10)]
    assert (whole == np.concatenate(parts)).mean() > 0.9999
