import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.neighbours.embedding_rows import EmbeddingMatrix, pair_cosines


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 4))
def test_rows_of_several_arrays_are_those_of_one(sizes, chunk):
    rows = np.arange(3 * sum(sizes), dtype=np.float16).reshape(-1, 3)
    matrix = EmbeddingMatrix(np.split(rows, np.cumsum(sizes)[:-1]))
    assert len(matrix) == len(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(matrix.take(order), rows[order])
    joined = [values for _, values in matrix.chunks(chunk)]
    if joined:
        np.testing.assert_array_equal(np.concatenate(joined), rows)


def test_pair_cosines():
    image = EmbeddingMatrix([np.array([[1, 0], [0, 1]], np.float16)])
    text = EmbeddingMatrix([np.array([[0.6, 0.8], [0, -1]], np.float16)])
    assert pair_cosines(image, text) == pytest.approx([0.6, -1], abs=1e-3)
