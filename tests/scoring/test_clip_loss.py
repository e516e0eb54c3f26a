import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from ncclean.scoring.clip_loss import binned, mismatched_scores, neg_clip_loss
from ncclean.scoring.disncl import mutual_match
from ncclean.scoring.ncu import clean_confidence, forget_mask


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


def test_confidence_by_hand():
    confidence = clean_confidence(torch.tensor([[2.0, 2.0], [0.0, 1.0]]), 1.0)
    assert confidence.tolist() == pytest.approx([0.6904, 0.5000], abs=1e-4)


def test_scale_multiplies_the_cosines():
    cosines = torch.tensor([[1.0, 1.0], [0.0, 0.5]])
    assert clean_confidence(cosines, 2.0).tolist() == pytest.approx([0.6904, 0.5], abs=1e-4)


def test_finite_at_scale_100_and_extreme_cosines():
    cosines = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    confidence = clean_confidence(cosines, 100.0)
    assert torch.isfinite(confidence).all()
    assert (confidence >= 0).all()


def test_low_precision_input_is_computed_in_float32():
    cosines = torch.rand(8, 8)
    assert clean_confidence(cosines.half(), 10.0).dtype == torch.float32


def test_forget_set_is_exact_at_the_papers_batch():
    confidence = torch.rand(2048, generator=torch.Generator().manual_seed(0))
    mask = forget_mask(confidence, 10)
    assert mask.sum() == 204
    assert confidence[mask].max() <= confidence[~mask].min()


def test_ties_go_to_the_earlier_position():
    assert forget_mask(torch.full((5,), 0.3), 40).tolist() == [True, True, False, False, False]


@given(st.integers(0, 300), st.integers(0, 100))
def test_size_of_the_forget_set(n, percent):
    assert forget_mask(torch.zeros(n), percent).sum() == n * percent // 100


@pytest.mark.parametrize("percent", [-1, 100.5])
def test_percentage_out_of_range(percent, refused):
    refused(forget_mask, torch.zeros(3), percent)


def test_matches_by_hand():
    assert mutual_match(torch.tensor([[0.5, 0.6], [0.1, 0.9]])).tolist() == [False, True]


def test_column_counts_as_well():
    assert mutual_match(torch.tensor([[0.5, 0.1], [0.6, 0.9]])).tolist() == [False, True]


def test_ties_are_matches():
    assert mutual_match(torch.full((3, 3), 0.2)).all()


def test_matches_of_no_pairs():
    assert mutual_match(torch.zeros(0, 0)).tolist() == []
