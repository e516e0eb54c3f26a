import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.scoring.neighbours.distinct import Distinct
from ncclean.scoring.neighbours.groups import (
    group_by_components,
    group_by_representative,
    join_single_rows,
    joint_labels,
    pair_labels,
)
from ncclean.scoring.neighbours.index import IndexKind, Nearest, VectorIndex
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix
from tests.scoring.neighbours.simulated import clustered

ARC = np.radians([0, 10, 20, 90])  # a is near b, b is near c, a is not near c
CHAIN = np.stack([np.cos(ARC), np.sin(ARC)], axis=1).astype(np.float32)
NEAR = float(np.cos(np.radians(12)))


def grouped(vectors, threshold, kind=IndexKind.FLAT, **options):
    matrix, rows = EmbeddingMatrix([vectors]), np.arange(len(vectors))
    index = VectorIndex(kind, matrix, rows, 0)
    groups = group_by_representative(matrix, rows, index, threshold, **options)
    assert len(index) == len(vectors)
    return groups


def test_a_chain_is_not_one_group():
    # c is 20 degrees from a and b belongs to a already, so c stands for itself.
    assert grouped(CHAIN, NEAR).tolist() == [0, 0, 2, 3]


def test_components_chain():
    cosines = CHAIN @ CHAIN.T
    ids = np.argsort(-cosines, axis=1)[:, 1:3].astype(np.int32)
    found = Nearest(np.take_along_axis(cosines, ids, axis=1), ids)
    assert group_by_components(found, NEAR).tolist() == [0, 0, 0, 3]


def test_a_row_joins_the_most_similar_representative():
    angles = np.radians([0, 20, 11])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert grouped(vectors, NEAR).tolist() == [0, 1, 1]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.5, 0.95), st.integers(1, 40))
def test_members_are_near_and_representatives_are_not(seed, threshold, block):
    vectors = clustered(80, 8, seed, clusters=10)
    cosines = vectors.astype(np.float32) @ vectors.astype(np.float32).T
    groups = grouped(vectors, threshold, block_rows=block)
    assert (cosines[np.arange(80), groups] >= threshold - 2e-6).all()
    kept = np.flatnonzero(groups == np.arange(80))
    between = cosines[np.ix_(kept, kept)] - 2 * np.eye(len(kept))
    assert (between < threshold + 2e-6).all()
    assert (groups <= np.arange(80)).all()
    np.testing.assert_array_equal(groups, grouped(vectors, threshold, block_rows=80))


@pytest.mark.parametrize("kind", [IndexKind.IVF, IndexKind.HNSW])
def test_approximate_groups_are_the_exact_ones(kind):
    rng = np.random.default_rng(0)
    vectors = clustered(3000, 32)
    noise = 0.03 * rng.standard_normal((300, 32)) / 32**0.5
    copies = vectors[rng.integers(0, 2700, 300)] + noise
    vectors[2700:] = copies / np.linalg.norm(copies, axis=1, keepdims=True)
    agreement = (grouped(vectors, 0.98, kind) == grouped(vectors, 0.98)).mean()
    assert agreement >= 0.99


def test_single_rows_join_an_earlier_representative_of_another_space():
    near = Nearest(
        np.array([[0.99], [0.99], [0.99], [0.5], [0.99]], np.float32),
        np.array([[4], [0], [1], [0], [3]], np.int32),
    )
    # Row 1 joins 0; row 2's neighbour 1 stands for nobody then; 3 is too far; 4 joins 3.
    assert join_single_rows(np.arange(5), near, 0.98).tolist() == [0, 0, 2, 3, 3]
    # Members of groups stay where they are.
    assert join_single_rows(np.array([0, 1, 1, 3, 3]), near, 0.98).tolist() == [0, 1, 1, 3, 3]


def test_labels_are_the_first_pair():
    classes = Distinct.of(np.array([0, 1, 0, 2]))
    image = pair_labels(classes, np.array([0, 1, 1]))
    assert image.tolist() == [0, 1, 0, 1]
    assert joint_labels(image, np.array([0, 1, 0, 0])).tolist() == [0, 1, 0, 3]
