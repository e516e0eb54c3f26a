"""OSA: one-step cleanliness weights from the cosine of a frozen estimator.

"Debiased Orthogonal Boundary-driven Efficient Noise Mitigation": a matched pair lies above the
orthogonal boundary of the embedding space, and the cone effect shifts that boundary from zero to
the mean cosine of random pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, get_args

import torch

from ncclean.base.config import WeightFunction
from ncclean.errors import InputError
from ncclean.scoring.double import doubled

if TYPE_CHECKING:
    from ncclean.models.estimator import Estimator

WEIGHT_FUNCTIONS = get_args(WeightFunction)
# The initial number of noise images and captions, and how many are drawn and encoded at a time
# after.
_FIRST = 32
_STEP = 64


def cleanliness_weight(
    similarity: torch.Tensor, shift: float, function: str = "high_degree"
) -> torch.Tensor:
    """Return OSA's weight of a pair, in the shape of `similarity` (cosines).

    With x = similarity - shift: 0 where x <= 0, else `high_degree` x^2 (1 - x) (Eq. 5), `linear` x,
    or `cosine` (cos(pi (x - 1)) + 1) / 2. x is clamped to 2/3 for `high_degree` and to 1 for the
    others, beyond which the paper's functions would decrease: the weight never falls as the cosine
    grows, and is unchanged in the paper's range.

    Raises `InputError` for an unknown `function`.
    """
    if function not in WEIGHT_FUNCTIONS:
        raise InputError(f"unknown weight function {function!r}; use one of {WEIGHT_FUNCTIONS}")
    x = (similarity - shift).clamp(0, 2 / 3 if function == "high_degree" else 1)
    if function == "high_degree":
        return x * x * (1 - x)
    if function == "linear":
        return x
    # At x = 0 this is (cos(-pi) + 1) / 2 = 0 up to rounding; the boundary is exactly 0.
    return torch.where(x > 0, (torch.cos(math.pi * (x - 1)) + 1) / 2, torch.zeros_like(x))


@dataclass(frozen=True)
class AllPairsMean:
    """Mean and standard deviation of the cosines of all images with all texts.

    `image_variance` and `text_variance` are what the samples of images and of texts add to the
    variance of the mean.
    """

    mean: float
    deviation: float
    image_variance: float
    text_variance: float

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.image_variance + self.text_variance)


def mean_of_all_pairs(image: torch.Tensor, text: torch.Tensor) -> AllPairsMean:
    """Return the mean cosine of all pairs of (m, d) and (n, d) unit embeddings, with its spread.

    The mean over all pairs is the product of the two mean embeddings, v_bar . t_bar, so m + n
    encodings suffice for m n pairs; that of their squares is <V'V / m, T'T / n>. The mean is a
    two-sample U-statistic: its variance is var_i(v_i . t_bar) / m + var_j(v_bar . t_j) / n.
    """
    image, text = doubled(image), doubled(text)
    mean_image, mean_text = image.mean(dim=0), text.mean(dim=0)
    squares = float(((image.T @ image) * (text.T @ text)).sum()) / len(image) / len(text)
    return AllPairsMean(
        mean=float(mean_image @ mean_text),
        deviation=math.sqrt(max(squares - float(mean_image @ mean_text) ** 2, 0.0)),
        image_variance=float((image @ mean_text).var()) / len(image),
        text_variance=float((text @ mean_image).var()) / len(text),
    )


def estimate_shift(
    estimator: Estimator,
    pairs: int = 4096,
    source: str = "noise",
    seed: int = 0,
    tolerance: float = 0.0,
) -> AllPairsMean:
    """Estimate OSA's boundary, the mean cosine of noise images with noise texts, and its spread.

    `source="noise"`: uniform random pixels and uniform random token ids through the frozen encoders
    (about 0.215 for OpenAI's ViT-B/32, Table 1). The mean is taken over all pairs of `pairs` noise
    images with `pairs` noise captions, see `mean_of_all_pairs`. With a `tolerance`, both samples
    start small. The sample that contributes more to the standard error grows until the error is
    below the tolerance or that sample has `pairs` rows. Another source, `shuffled`, is a property
    of a corpus: it is `ncclean.scoring.null.Histogram.mean` of its mismatched cosines.

    Raises `InputError` for a source other than `noise`, or fewer than two pairs.
    """
    if source != "noise":
        raise InputError(
            f"the estimator alone cannot give the shift {source!r}: only 'noise' can; "
            "'shuffled' is the mean of the corpus's mismatched cosines, computed when scoring"
        )
    if pairs < 2:
        raise InputError(f"pairs must be at least 2 to estimate a shift, got {pairs}")
    first = min(_FIRST, pairs) if tolerance > 0 else pairs
    image_seed, text_seed = torch.randint(
        1 << 62, (2,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    images = _NoiseSample(partial(_encode_noise_images, estimator), image_seed)
    texts = _NoiseSample(partial(_encode_noise_captions, estimator), text_seed)
    images.grow_to(first)
    texts.grow_to(first)
    while True:
        estimate = mean_of_all_pairs(images.embeddings, texts.embeddings)
        larger = images if estimate.image_variance > estimate.text_variance else texts
        rows = len(larger.embeddings)
        if rows == pairs or estimate.standard_error < tolerance:
            return estimate
        larger.grow_to(min(rows + _STEP, pairs))


class _NoiseSample:
    """(m, d) embeddings of the noise of one modality; the first rows stay as the sample grows."""

    def __init__(self, encode: Callable[[int, torch.Generator], torch.Tensor], seed: int) -> None:
        self._encode = encode
        self._generator = torch.Generator().manual_seed(seed)
        self.embeddings = torch.empty(0)

    def grow_to(self, rows: int) -> None:
        """Encode more noise, `_STEP` rows at a time."""
        batches = [self.embeddings] if len(self.embeddings) else []
        for start in range(len(self.embeddings), rows, _STEP):
            batches.append(self._encode(min(_STEP, rows - start), self._generator))
        self.embeddings = torch.cat(batches)


def _encode_noise_images(
    estimator: Estimator, count: int, generator: torch.Generator
) -> torch.Tensor:
    size = (count, 3, *estimator.image_size)
    pixels = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    return estimator.encode_image(pixels).cpu()


def _encode_noise_captions(
    estimator: Estimator, count: int, generator: torch.Generator
) -> torch.Tensor:
    size = (count, estimator.context_length)
    tokens = torch.randint(0, estimator.vocab_size, size, generator=generator)
    return estimator.encode_tokens(tokens).cpu()
