import numpy as np
import pytest

from ncclean.neighbour_search.coarse_quantizer import CoarseQuantizer, nlist_for
from tests.neighbour_search.simulated import clustered


def test_number_of_lists():
    assert nlist_for(1) == 1
    assert nlist_for(1_000_000) == 2048
    assert nlist_for(2000) == 64  # 32 vectors each


def trained(rows=4000, lists=64, dim=16):
    vectors = clustered(rows, dim).astype(np.float32)
    return CoarseQuantizer.train(vectors, lists, 0), vectors


def test_lists_that_are_alike_have_consecutive_numbers():
    quantizer, _ = trained()
    assert 48 <= len(quantizer) <= 64
    assert np.linalg.norm(quantizer.lists, axis=1) == pytest.approx(1, abs=1e-5)
    cosines = quantizer.lists @ quantizer.lists.T
    far = np.abs(np.subtract.outer(*2 * (np.arange(len(quantizer)),))) > 16
    assert np.diagonal(cosines, 1).mean() > cosines[far].mean() + 0.1


def test_the_nearest_lists_are_found_wherever_they_are():
    quantizer, vectors = trained()
    routes = quantizer.assign(vectors, 5)
    exact = np.argsort(-(vectors @ quantizer.lists.T), axis=1)[:, :5]
    assert (routes == exact).mean() > 0.999  # but for rounding


def test_the_nearest_list_does_not_depend_on_how_many_are_asked_for():
    quantizer, vectors = trained(20_000, 1024)
    few, many = quantizer.assign(vectors, 1), quantizer.assign(vectors, 200)
    np.testing.assert_array_equal(few[:, 0], many[:, 0])
    assert all(len(set(row)) == 200 for row in many[:50].tolist())
    exact = (vectors @ quantizer.lists.T).argmax(axis=1)
    assert (few[:, 0] == exact).mean() > 0.9999  # but for rounding


def test_more_lists_than_there_are():
    quantizer, vectors = trained(10, 4)
    assert quantizer.assign(vectors, 50).shape == (10, len(quantizer))
    again = CoarseQuantizer.of(quantizer.arrays("x_"), "x_")
    np.testing.assert_array_equal(again.assign(vectors, 2), quantizer.assign(vectors, 2))
    one = CoarseQuantizer.train(vectors[:1], 8, 0)
    assert one.assign(vectors, 3).tolist() == [[0]] * 10


def test_routes_of_many_vectors_are_those_of_few():
    quantizer, vectors = trained(20_000, 1024)
    vectors = np.tile(vectors, (2, 1))  # more than are compared at a time
    whole = quantizer.assign(vectors, 8)
    parts = [quantizer.assign(part, 8) for part in np.split(vectors, 10)]
    assert (whole == np.concatenate(parts)).mean() > 0.9999
