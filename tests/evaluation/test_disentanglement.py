"""Mutual information between halves, and retrieval with them after a linear map."""

import pytest
import torch
import torch.nn.functional as F

from ncclean.evaluation.disentanglement import fitted_recall, mutual_information
from ncclean.evaluation.embedding import EmbeddedPairs


def gaussian(rows, dim, seed):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def test_information_of_gaussians_is_bounded_by_the_true_one():
    """-log(1 - r^2) / 2 for each of two independent dimensions of correlation r."""
    x, noise = gaussian(1600, 2, 0), gaussian(1600, 2, 1)
    true = -torch.log(torch.tensor(1 - 0.8**2)).item()
    measured = mutual_information(x, 0.8 * x + 0.6 * noise, seed=0)
    assert 0.6 * true < measured < 1.1 * true
    assert mutual_information(x[:400], noise[:400], seed=0) < 0.05


def test_a_few_rows_of_noise_have_no_information():
    """On the rows that it was trained on, a network finds some."""
    assert mutual_information(gaussian(160, 16, 0), gaussian(160, 16, 1), seed=0) < 0.02


def test_captions_of_an_image_are_judged_together():
    """Independent halves: an image in two parts would be recognised, as if they shared 1 nat."""
    owners = torch.arange(200).repeat_interleave(5)
    x, y = (gaussian(200, 16, seed)[owners] + 0.1 * gaussian(1000, 16, seed + 2) for seed in (0, 1))
    assert mutual_information(x, y, 0, owners) < 0.02


def test_a_half_that_has_collapsed_has_no_information():
    assert mutual_information(torch.ones(200, 4), gaussian(200, 4, 0), seed=0) < 0.01


def test_a_linear_map_finds_what_cosines_do_not():
    """Captions are images turned by a rotation: cosines are at chance, after the map all match."""
    image = F.normalize(gaussian(400, 16, 0), dim=1)
    turn = torch.linalg.qr(gaussian(16, 16, 1)).Q
    owners = torch.arange(400).repeat(2)  # of the first caption each
    text = torch.cat([image @ turn, F.normalize(gaussian(400, 16, 2), dim=1)])
    pairs = EmbeddedPairs(
        keys=[str(row) for row in range(400)], image=image, skipped={}, text=text,
        text_to_image=owners,
    )  # fmt: skip
    assert fitted_recall(pairs, seed=0) > 0.95
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(3))
    other = EmbeddedPairs(
        keys=pairs.keys, image=image[shuffled], skipped={}, text=text, text_to_image=owners
    )
    assert fitted_recall(other, seed=0) == pytest.approx(1 / 200, abs=0.02)
