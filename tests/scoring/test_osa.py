import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclean.errors import InputError
from ncclean.scoring.osa import WEIGHT_FUNCTIONS, cleanliness_weight, estimate_shift


def test_numbers_of_the_paper():
    assert cleanliness_weight(torch.tensor([0.415]), 0.215).item() == pytest.approx(0.032)


def test_clamped_past_the_maximum_and_zero_at_the_boundary():
    weight = cleanliness_weight(torch.tensor([2 / 3, 0.9, 1.0, 0.0, -0.5]), 0.0)
    assert weight.tolist() == pytest.approx([4 / 27, 4 / 27, 4 / 27, 0, 0], abs=1e-6)
    assert weight[3].item() == 0
    assert weight[4].item() == 0


@pytest.mark.parametrize(
    ("function", "expected"), [("linear", 0.25), ("cosine", 0.1464466), ("high_degree", 0.046875)]
)
def test_the_three_functions(function, expected):
    assert cleanliness_weight(torch.tensor([0.25]), 0.0, function).item() == pytest.approx(expected)


@pytest.mark.parametrize("function", WEIGHT_FUNCTIONS)
@given(shift=st.floats(-1, 1))
def test_monotone_and_exactly_zero_up_to_the_shift(function, shift):
    similarity = torch.linspace(-1, 1, 401, dtype=torch.float64)
    weight = cleanliness_weight(similarity, shift, function)
    assert (weight.diff() >= 0).all()
    assert (weight[similarity <= shift] == 0).all()
    assert (weight >= 0).all()


def test_unknown_function_and_source_are_refused():
    with pytest.raises(InputError, match="unknown weight function 'cubic'"):
        cleanliness_weight(torch.zeros(1), 0.0, "cubic")
    with pytest.raises(InputError, match="shuffled"):
        estimate_shift(ConstantEstimator(), source="shuffled")
    with pytest.raises(InputError, match="at least 2"):
        estimate_shift(ConstantEstimator(), pairs=1)


class ConstantEstimator:
    """Every image embeds to (1, 0), every text to (0.6, 0.8): all cosines are 0.6."""

    image_size = (4, 4)
    vocab_size = 100
    context_length = 7

    def __init__(self):
        self.pixels = []

    def encode_image(self, pixels):
        assert pixels.dtype == torch.uint8
        self.pixels.append(pixels)
        return torch.tensor([[1.0, 0.0]]).repeat(len(pixels), 1)

    def encode_tokens(self, tokens):
        assert tokens.shape[1] == self.context_length
        return torch.tensor([[0.6, 0.8]]).repeat(len(tokens), 1)


def test_shift_is_the_mean_cosine_of_as_many_noise_pairs_as_asked_for():
    estimator = ConstantEstimator()
    assert estimate_shift(estimator, pairs=100) == pytest.approx(0.6)
    pixels = torch.cat(estimator.pixels)
    assert len(pixels) == 100
    assert pixels.float().mean() == pytest.approx(127.5, abs=5)


def test_shift_stops_early_once_it_is_certain():
    estimator = ConstantEstimator()
    assert estimate_shift(estimator, pairs=4096, tolerance=1e-3) == pytest.approx(0.6)
    assert len(torch.cat(estimator.pixels)) == 128


def test_shift_depends_on_the_seed_only(demo_estimator):
    first = estimate_shift(demo_estimator, pairs=64, seed=1)
    assert estimate_shift(demo_estimator, pairs=64, seed=1) == first
    assert estimate_shift(demo_estimator, pairs=64, seed=2) != first
