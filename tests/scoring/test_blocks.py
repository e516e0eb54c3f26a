import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclean.scoring.blocks import block_ids, partner_ranks


@given(st.integers(1, 9000), st.integers(1, 3000))
def test_number_and_sizes_of_blocks(pairs, block_size):
    sizes = np.bincount(block_ids(pairs, block_size, seed=0, shard="00000"))
    assert len(sizes) == max(1, min(pairs, round(pairs / block_size)))
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("pairs", "expected"), [(1, 1), (3071, 1), (3073, 2), (10_000, 5), (2048, 1)]
)
def test_blocks_of_the_default_size(pairs, expected):
    assert block_ids(pairs, 2048, 0, "s").max() + 1 == expected


def test_seeded_by_seed_and_shard():
    first = block_ids(5000, 1000, 0, "00000")
    assert np.array_equal(first, block_ids(5000, 1000, 0, "00000"))
    assert not np.array_equal(first, block_ids(5000, 1000, 1, "00000"))
    assert not np.array_equal(first, block_ids(5000, 1000, 0, "00001"))
    assert first.dtype == np.int32


def test_no_pairs_no_blocks():
    assert len(block_ids(0, 2048, 0, "s")) == 0


def test_ranks_by_hand_and_ties():
    similarity = torch.tensor([[0.5, 0.6, 0.5], [0.1, 0.9, 0.2], [0.7, 0.0, 0.3]])
    image_to_text, text_to_image = partner_ranks(similarity)
    assert image_to_text.tolist() == [1, 0, 1]
    assert text_to_image.tolist() == [1, 0, 1]
