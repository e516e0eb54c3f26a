import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ncclean.scoring.osa import (
    WEIGHT_FUNCTIONS,
    cleanliness_weight,
    estimate_shift,
    mean_of_all_pairs,
)


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


def test_unknown_function_and_source_are_refused(refused):
    refused(cleanliness_weight, torch.zeros(1), 0.0, "cubic")
    refused(estimate_shift, ConstantEstimator(), source="shuffled")
    refused(estimate_shift, ConstantEstimator(), pairs=1)


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


class ScatteredEstimator(ConstantEstimator):
    """Embeddings around a cone, wider for the captions: reproducible functions of the input."""

    def __init__(self, image_width=0.1, text_width=0.3):
        super().__init__()
        self.widths = image_width, text_width
        self.tokens = []

    def encode_image(self, pixels):
        super().encode_image(pixels)
        return scattered(pixels.flatten(1).float() / 255 - 0.5, self.widths[0])

    def encode_tokens(self, tokens):
        self.tokens.append(tokens)
        return scattered(tokens.float() / self.vocab_size - 0.5, self.widths[1])


def scattered(values, width):
    noise = values[:, :3] * width
    return torch.nn.functional.normalize(noise + torch.tensor([1.0, 0.2, 0.1]), dim=1)


def embeddings(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, dim, dtype=torch.float64, generator=generator) + 0.3
    return torch.nn.functional.normalize(values, dim=1)


@given(rows=st.integers(2, 40), columns=st.integers(2, 40), seed=st.integers(0, 1000))
def test_mean_of_all_pairs_is_that_of_the_whole_matrix(rows, columns, seed):
    image, text = embeddings(rows, 5, seed), embeddings(columns, 5, seed + 1)
    matrix = image @ text.T
    estimate = mean_of_all_pairs(image, text)
    assert estimate.mean == pytest.approx(matrix.mean().item(), abs=1e-12)
    assert estimate.deviation == pytest.approx(matrix.std(correction=0).item(), abs=1e-7)
    # The row means of the matrix scatter as its images do, the column means as its texts do.
    assert estimate.image_variance == pytest.approx(matrix.mean(1).var().item() / rows)
    assert estimate.text_variance == pytest.approx(matrix.mean(0).var().item() / columns)


def test_standard_error_is_how_much_the_mean_varies_from_sample_to_sample():
    estimates = [
        mean_of_all_pairs(embeddings(30, 4, 2 * draw), embeddings(60, 4, 2 * draw + 1))
        for draw in range(1500)
    ]
    actual = torch.tensor([estimate.mean for estimate in estimates]).std().item()
    stated = torch.tensor([estimate.standard_error for estimate in estimates]).mean().item()
    assert stated == pytest.approx(actual, rel=0.06)


def test_shift_is_the_mean_cosine_of_as_many_images_and_captions_as_asked_for():
    estimator = ScatteredEstimator()
    shift = estimate_shift(estimator, pairs=100).mean
    pixels, tokens = torch.cat(estimator.pixels), torch.cat(estimator.tokens)
    assert len(pixels) == len(tokens) == 100
    assert pixels.float().mean() == pytest.approx(127.5, abs=5)
    assert tokens.float().mean() == pytest.approx(50, abs=5)
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert (tokens.min(), tokens.max()) == (0, 99)
    image, text = estimator.encode_image(pixels), estimator.encode_tokens(tokens)
    assert shift == pytest.approx((image @ text.T).mean().item(), abs=1e-6)


def test_shift_of_a_constant_estimator_takes_one_small_batch():
    estimator = ConstantEstimator()
    assert estimate_shift(estimator, pairs=4096, tolerance=1e-3).mean == pytest.approx(0.6)
    assert len(torch.cat(estimator.pixels)) == 32


def test_only_the_sample_that_scatters_grows_until_the_error_is_small_enough():
    estimator = ScatteredEstimator(image_width=0.01, text_width=1.0)
    shift = estimate_shift(estimator, tolerance=3e-3).mean
    assert len(torch.cat(estimator.pixels)) == 32
    assert 64 < len(torch.cat(estimator.tokens)) < 4096
    assert shift == pytest.approx(estimate_shift(estimator, seed=1).mean, abs=4 * 3e-3)


def test_shift_stops_at_the_largest_sample():
    estimator = ScatteredEstimator(image_width=0.01, text_width=1.0)
    estimate_shift(estimator, pairs=80, tolerance=1e-9)
    assert len(torch.cat(estimator.tokens)) == 80


def test_shift_depends_on_the_seed_only(demo_estimator):
    first = estimate_shift(demo_estimator, pairs=64, seed=1)
    assert estimate_shift(demo_estimator, pairs=64, seed=1) == first
    assert estimate_shift(demo_estimator, pairs=64, seed=2) != first
