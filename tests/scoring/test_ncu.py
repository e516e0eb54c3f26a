import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclean.scoring.ncu import clean_confidence, forget_mask


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
