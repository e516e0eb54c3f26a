import numpy as np
import pytest

from ncclean.neighbour_search import near_duplicates
from ncclean.neighbour_search.near_duplicates import (
    SAME_IMAGE_COSINE,
    THRESHOLDS,
    join_single_rows,
    leaders,
)
from tests.neighbour_search.simulated import clustered


def test_thresholds_are_those_of_the_docs():
    """By modality, whitened or not: docs/neighbours.md has what they find and take wrongly."""
    assert THRESHOLDS == {"image": {True: 0.80, False: 0.96}, "text": {True: 0.90, False: 0.98}}
    assert SAME_IMAGE_COSINE == 0.98


def one_row_at_a_time(vectors, threshold):
    cosines = vectors @ vectors.T
    representative = np.arange(len(vectors))
    for row in range(len(vectors)):
        before = np.flatnonzero(representative[:row] == np.arange(row))
        before = before[cosines[row, before] >= threshold]
        if len(before):
            representative[row] = before[cosines[row, before].argmax()]
    return representative, cosines[np.arange(len(vectors)), representative]


@pytest.mark.parametrize("chunk", [1, 7, 2048])
def test_leaders_are_those_of_one_row_at_a_time(chunk, monkeypatch):
    monkeypatch.setattr(near_duplicates, "_CHUNK", chunk)
    vectors = clustered(300, 16, clusters=12).astype(np.float32)
    for threshold in (0.7, 0.85, 0.95):
        places, cosines = leaders(vectors.__getitem__, len(vectors), threshold)
        expected, expected_cosines = one_row_at_a_time(vectors, threshold)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_allclose(cosines, expected_cosines, atol=1e-3)  # float16 units
    assert len(np.unique(places)) > 200


def test_a_row_that_is_near_two_joins_the_most_similar_one_even_if_they_are_not_near():
    angles = np.radians([0, 40, 25])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    places, cosines = leaders(vectors.__getitem__, 3, np.cos(np.radians(30)))
    assert places.tolist() == [0, 1, 1]
    np.testing.assert_allclose(cosines, [1, 1, np.cos(np.radians(15))], atol=1e-6)


def test_single_rows_join_representatives_of_the_other_space():
    representative = np.array([0, 0, 2, 3, 4, 5, 6, 6])
    sizes = np.array([2, 2, 1, 1, 1, 1, 2, 2])
    later, earlier = np.array([1, 2, 2, 3, 4, 5, 6]), np.array([0, 1, 0, 2, 3, 4, 3])
    joined = join_single_rows(representative, sizes, later, earlier)
    # 2 is near 1, no representative, then 0; 3 is near 2, which is none any more; 5 near 4 that
    # has joined 3; 6 is near 3, but 7 is in its group.
    assert representative.tolist() == [0, 0, 0, 3, 3, 5, 6, 6]
    assert joined.tolist() == [2, 4]
