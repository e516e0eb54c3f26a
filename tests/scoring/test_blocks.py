import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclean.scoring.blocks import BlockStatistics, block_ids, known_mismatches
from ncclean.scoring.null import Histogram


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
    block = BlockStatistics.of(similarity, 1.0)
    assert block.i2t_rank.tolist() == [1, 0, 1]
    assert block.t2i_rank.tolist() == [1, 0, 1]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 200])
def test_statistics_of_a_block_against_plain_torch(size):
    """Sizes around those of a piece, and a scale at which a sum without its maximum overflows."""
    cosines = 2 * torch.rand(size, size, generator=torch.Generator().manual_seed(size)) - 1
    kept = cosines.clone()
    block = BlockStatistics.of(cosines, 100.0)
    assert torch.equal(cosines, kept)
    own = cosines.diagonal()
    assert torch.equal(block.i2t_rank, (cosines > own[:, None]).sum(dim=1).int())
    assert torch.equal(block.t2i_rank, (cosines > own).sum(dim=0).int())
    assert torch.allclose(block.i2t_partition, (100 * cosines).logsumexp(dim=1), atol=1e-4)
    assert torch.allclose(block.t2i_partition, (100 * cosines).logsumexp(dim=0), atol=1e-4)
    rivals = (100 * cosines).fill_diagonal_(-torch.inf)
    assert torch.allclose(block.i2t_rivals, rivals.logsumexp(dim=1), atol=1e-4)
    assert torch.allclose(block.t2i_rivals, rivals.logsumexp(dim=0), atol=1e-4)
    others = Histogram.of(cosines[~torch.eye(size, dtype=torch.bool)])
    assert (block.mismatches.mismatched.counts == others.counts).all()
    assert abs(block.mismatches.mismatched.units - others.units) <= 2 + size / 64


@pytest.mark.parametrize(
    "of", [known_mismatches, lambda c, i: BlockStatistics.of(c, 1.0, i).mismatches]
)
def test_an_image_of_several_captions_counts_once_among_the_means(of):
    """Images by row, captions by column; the two captions of image 0 are no mismatches of it."""
    cosines = torch.tensor(
        [[0.9, 0.8, 0.1, 0.3], [0.9, 0.8, 0.2, 0.4], [0.0, 0.4, 0.7, 0.2], [-0.3, 0.1, 0.5, 0.6]]
    )
    known = of(cosines, torch.tensor([0, 0, 1, 2]))
    image_means = torch.tensor([0.2, 0.2, 0.1])
    caption_means = torch.tensor([-0.15, 0.25, 0.8 / 3, 0.3])
    for found, means in ((known.image_means, image_means), (known.caption_means, caption_means)):
        assert found.size == len(means)
        assert found.mean == pytest.approx(means.mean().item(), abs=1e-4)


@pytest.mark.parametrize(
    "of", [known_mismatches, lambda c, i, t: BlockStatistics.of(c, 1.0, i, t).mismatches]
)
def test_equal_captions_of_two_images_are_no_mismatches_of_either(of):
    """Images by row, captions by column; the first two captions are equal, and count once."""
    cosines = torch.tensor(
        [[0.9, 0.8, 0.1, 0.3], [0.7, 0.9, 0.2, 0.4], [0.0, 0.4, 0.7, 0.2], [-0.3, 0.1, 0.5, 0.6]]
    )
    known = of(cosines, None, torch.tensor([0, 0, 1, 2]))
    assert known.mismatched.size == 10
    image_means = torch.tensor([0.2, 0.3, 0.2, 0.1])
    caption_means = torch.tensor([-0.15, 0.8 / 3, 0.3])
    for found, means in ((known.image_means, image_means), (known.caption_means, caption_means)):
        assert found.size == len(means)
        assert found.mean == pytest.approx(means.mean().item(), abs=1e-4)


def test_equal_captions_of_one_image_are_left_out_once():
    cosines = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).mul(0.2).clamp(-1, 1)
    numbers = torch.tensor([0, 0, 1, 2, 3])
    one_image = known_mismatches(cosines.clone(), numbers)
    both = known_mismatches(cosines.clone(), numbers, numbers)
    assert both.mismatched.size == one_image.mismatched.size == 18
    assert both.image_means.mean == one_image.image_means.mean
