"""OSA: one-step cleanliness weights from the cosine of a frozen estimator.

"Debiased Orthogonal Boundary-driven Efficient Noise Mitigation": a matched pair lies above the
orthogonal boundary of the embedding space, and the cone effect shifts that boundary from zero to
the mean cosine of random pairs.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

from ncclean.errors import InputError

WEIGHT_FUNCTIONS = ("high_degree", "linear", "cosine")
_SHIFT_BATCH = 64


class ShiftEstimator(Protocol):
    """What `estimate_shift` needs of an estimator."""

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the input in pixels."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def context_length(self) -> int:
        """Tokens per text."""

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) uint8 -> (N, d) L2-normalised float32."""

    def encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """(N, L) int64 token ids -> (N, d) L2-normalised float32."""


def cleanliness_weight(
    similarity: torch.Tensor, shift: float, function: str = "high_degree"
) -> torch.Tensor:
    """OSA's weight of a pair, of the shape of `similarity` (cosines).

    With x = similarity - shift: 0 where x <= 0, else `high_degree` x^2 (1 - x) (Eq. 6), `linear`
    x, or `cosine` (cos(pi (x - 1)) + 1) / 2. x is clamped to 2/3 for `high_degree` and to 1 for
    the others, where the paper's functions would turn down again: the weight never falls as the
    cosine grows, and in the paper's range nothing changes.

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


def estimate_shift(
    estimator: ShiftEstimator,
    pairs: int = 4096,
    source: str = "noise",
    seed: int = 0,
    tolerance: float = 0.0,
) -> float:
    """Mean cosine of random pairs: where the orthogonal boundary lies for this estimator.

    `source="noise"`: uniform random pixels and uniform random token ids through the frozen
    encoders (about 0.215 for OpenAI's ViT-B/32, Table 1). With a `tolerance`, stops as soon as
    the standard error of the mean is below it, which a large model reaches after a few hundred
    pairs. `source="shuffled"` is a property of a corpus and comes from its mismatched cosines,
    see `ncclean.scoring.null.Histogram.mean`.

    Raises `InputError` for another source or fewer than two pairs.
    """
    if source != "noise":
        raise InputError(
            f"the estimator alone cannot give the shift {source!r}: only 'noise' can; "
            "'shuffled' is the mean of the corpus's mismatched cosines, computed when scoring"
        )
    if pairs < 2:
        raise InputError(f"pairs must be at least 2 to estimate a shift, got {pairs}")
    generator = torch.Generator().manual_seed(seed)
    cosines: list[torch.Tensor] = []
    for start in range(0, pairs, _SHIFT_BATCH):
        count = min(_SHIFT_BATCH, pairs - start)
        pixels = torch.randint(
            0, 256, (count, 3, *estimator.image_size), dtype=torch.uint8, generator=generator
        )
        tokens = torch.randint(
            0, estimator.vocab_size, (count, estimator.context_length), generator=generator
        )
        image, text = estimator.encode_image(pixels), estimator.encode_tokens(tokens)
        cosines.append((image * text).sum(dim=1).double().cpu())
        so_far = torch.cat(cosines)
        enough = tolerance > 0 and len(so_far) >= 2 * _SHIFT_BATCH
        if enough and float(so_far.std()) / math.sqrt(len(so_far)) < tolerance:
            break
    return float(torch.cat(cosines).mean())
