import numpy as np
import pytest

from ncclean.errors import InputError
from ncclean.scoring.neighbours.index import (
    IndexKind,
    VectorIndex,
    exact_cosines,
    recall_by_value,
)
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix
from tests.scoring.neighbours.simulated import clustered

KINDS = list(IndexKind)


def filled(kind, vectors, seed=0):
    matrix, rows = EmbeddingMatrix([vectors]), np.arange(len(vectors))
    index = VectorIndex(kind, matrix, rows, seed)
    index.add(matrix.take(rows), rows)
    return index, matrix, rows


def test_choice_by_size():
    assert IndexKind.choose("auto", 99_999) is IndexKind.FLAT
    assert IndexKind.choose("auto", 100_000) is IndexKind.IVF
    assert IndexKind.choose("hnsw", 10) is IndexKind.HNSW
    with pytest.raises(InputError, match="--index takes auto, flat, ivf or hnsw, got 'lsh'"):
        IndexKind.choose("lsh", 10)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_callers(kind):
    vectors = np.eye(8, dtype=np.float32)
    index = VectorIndex(kind, EmbeddingMatrix([vectors]), np.arange(8), 0)
    index.add(vectors[[5, 2]], np.array([5, 2]))
    found = index.search(vectors[[2, 5]], 3, 8)
    assert found.ids[:, 0].tolist() == [2, 5]
    assert found.ids[:, 2].tolist() == [-1, -1]
    assert found.cosines[:, 0] == pytest.approx(1)


def test_exact_cosines_are_those_of_the_full_matrix():
    matrix, rows = EmbeddingMatrix([clustered(500, 16)]), np.arange(0, 500, 2)
    queries = matrix.take(np.arange(20))
    expected = -np.sort(-(queries @ matrix.take(rows).T), axis=1)[:, :7]
    np.testing.assert_allclose(exact_cosines(matrix, rows, queries, 7), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_tuned_to_the_recall_asked_for_and_measured_rightly(kind):
    index, matrix, rows = filled(kind, clustered(5000, 32))
    queries = matrix.take(rows[:300])
    exact = exact_cosines(matrix, rows, queries, 10)
    tuned = index.tune(queries, exact, 0.99)
    assert tuned.recall >= 0.99
    found = index.search(queries, 10, tuned.effort)
    truth = np.argsort(-(queries @ matrix.take(rows).T), axis=1)[:, :10]
    overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids, truth, strict=True)])
    assert overlap == pytest.approx(tuned.recall, abs=0.01)


def test_recall_counts_ties_as_found():
    exact = np.array([[0.9, 0.8, 0.8]], np.float32)
    assert recall_by_value(np.array([[0.9, 0.8, 0.7]], np.float32), exact) == pytest.approx(2 / 3)
    assert recall_by_value(exact, exact) == 1


@pytest.mark.parametrize("kind", [IndexKind.FLAT, IndexKind.IVF])
def test_result_does_not_depend_on_threads(kind):
    import faiss

    before = faiss.omp_get_max_threads()
    results = []
    try:
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            index, matrix, rows = filled(kind, clustered(3000, 32))
            results.append(index.search_all(matrix, rows, 5, 8))
    finally:
        faiss.omp_set_num_threads(before)
    np.testing.assert_array_equal(results[0].ids, results[1].ids)
    np.testing.assert_allclose(results[0].cosines, results[1].cosines, atol=1e-6)
