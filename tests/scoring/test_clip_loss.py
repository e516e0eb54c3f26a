import math

import pytest
import torch
import torch.nn.functional as F

from ncclean.scoring.clip_loss import binned, mismatched_scores, neg_clip_loss


def test_by_hand():
    # Row and column of pair 0: logsumexp(1, 0) = 1.3133; s = 1 -> 1 - 1.3133 = -0.3133
    scores = neg_clip_loss(torch.eye(2), 1.0)
    assert scores.tolist() == pytest.approx([1 - math.log(math.e + 1)] * 2)


def test_is_minus_the_clip_loss_over_the_scale():
    cosines = torch.rand(16, 16, dtype=torch.float64) * 2 - 1
    target = torch.arange(16)
    loss = F.cross_entropy(30 * cosines, target, reduction="none")
    loss = (loss + F.cross_entropy(30 * cosines.T, target, reduction="none")) / 2
    assert torch.allclose(neg_clip_loss(cosines, 30.0), -loss / 30)


def test_finite_at_scale_100():
    assert torch.isfinite(neg_clip_loss(torch.tensor([[-1.0, 1.0], [1.0, 1.0]]), 100.0)).all()


def test_binned_scores_lie_in_the_range_of_a_cosine():
    scores = torch.tensor([-3.0, -1.0, -0.4, 0.0, math.inf])
    assert binned(scores).tolist() == pytest.approx([-1, 0, 0.6, 1, 1])


def test_who_is_not_among_the_rivals_is_added_to_them():
    """Image 0 and caption 1 are in the pool; a pair of others adds itself to both sums."""
    cosines = torch.tensor([[0.1, 0.5], [-0.2, 0.3]])
    i2t, t2i = torch.tensor([0.4, 0.7]), torch.tensor([0.2, -0.1])
    among = torch.tensor([True, False]), torch.tensor([False, True])
    found = mismatched_scores(cosines, i2t, t2i, 2.0, among)
    expected = torch.empty(2, 2)
    for image in range(2):
        for caption in range(2):
            cosine = cosines[image, caption].item()
            captions, images = i2t[image].item(), t2i[caption].item()
            if not among[1][caption]:
                captions = math.log(math.exp(captions) + math.exp(2 * cosine))
            if not among[0][image]:
                images = math.log(math.exp(images) + math.exp(2 * cosine))
            expected[image, caption] = cosine - (captions + images) / 4
    assert torch.allclose(found, expected)
