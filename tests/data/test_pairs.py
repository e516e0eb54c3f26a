"""Numbers of images in a table of embeddings, and vectors of length 1."""

import numpy as np
import pyarrow as pa
import pytest

from ncclean.data.embeddings.pairs import images_of, unit_vectors
from ncclean.data.samples import SkipReason


def test_images_are_numbered_by_their_first_pair_in_the_order_of_the_rows():
    """Keys occur in three shards and far apart."""
    count = 20_000
    rng = np.random.default_rng(0)
    shard, key = rng.integers(0, 3, count), rng.integers(0, 3_000, count)
    facts = pa.table({
        "shard": [f"s{n}" for n in shard], "key": [f"k{n}" for n in key],
        "caption_number": pa.array(rng.integers(0, 3, count), pa.int16()),
    })  # fmt: skip
    first: dict[tuple[int, int], int] = {}
    expected = [
        first.setdefault(place, row) for row, place in enumerate(zip(shard, key, strict=True))
    ]
    assert images_of(facts).tolist() == expected


def test_images_of_one_caption_each_have_no_numbers():
    facts = pa.table({
        "shard": ["s"] * 3, "key": list("abc"), "caption_number": pa.array([0] * 3, pa.int16()),
    })  # fmt: skip
    assert images_of(facts) is None


def test_vectors_are_scaled_and_those_that_cannot_be_are_named():
    matrix = np.array([[3, 4], [0, 0], [np.nan, 1], [0, 2], [np.nan, np.nan]], np.float32)
    problems: dict[int, tuple[SkipReason, str]] = {}
    lengths = np.array([2, 2, 2, 2, -1])
    found = unit_vectors(matrix, "image", lengths, problems)
    assert found[[0, 3]] == pytest.approx(np.array([[0.6, 0.8], [0, 1]]))
    assert problems == {
        1: (SkipReason.EMBEDDING_CORRUPT, "image: all values are 0"),
        2: (SkipReason.EMBEDDING_CORRUPT, "image: NaN or infinite values"),
        4: (SkipReason.EMBEDDING_MISSING, "no image embedding"),
    }
