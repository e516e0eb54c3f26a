"""The noise shift of the estimator that scores, as every engine estimates it."""

from __future__ import annotations

from ncclean.models.estimator import Estimator
from ncclean.models.shift_cache import cached_shift
from ncclean.scoring.osa import estimate_shift

# Raise it when `estimate_shift` gives other numbers for the same model: kept ones are then void.
_VERSION = 1
# A model of ViT-B-32's size may take this many noise images and captions each, a smaller one
# more at the same cost: its cosines often scatter more.
_SAMPLE, _PARAMETERS = 128, 151_000_000
_LARGEST_SAMPLE = 4096


def noise_shift(estimator: Estimator, seed: int, tolerance: float) -> float:
    """The estimator's mean cosine on noise, from the user's cache if it is there.

    See `ncclean.scoring.osa.estimate_shift`.
    """
    pairs = sample_size(sum(parameter.numel() for parameter in estimator.model.parameters()))
    settings = {"seed": seed, "tolerance": tolerance, "pairs": pairs, "version": _VERSION}
    return cached_shift(
        estimator,
        settings,
        lambda: estimate_shift(estimator, pairs, seed=seed, tolerance=tolerance),
    )


def sample_size(parameters: int) -> int:
    """Limits on the noise images and noise captions to average over, by the model's parameters."""
    affordable = _SAMPLE * _PARAMETERS // max(parameters, 1)
    return min(max(affordable, _SAMPLE), _LARGEST_SAMPLE)
