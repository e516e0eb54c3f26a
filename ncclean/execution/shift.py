"""Estimate the noise shift of the scoring estimator, in the same way for every engine."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ncclean.models.estimator import Estimator
from ncclean.models.shift_cache import cached_shift
from ncclean.scoring.osa import AllPairsMean, estimate_shift

# Increase it when `estimate_shift` gives other numbers for the same model: cached ones are then
# void.
_VERSION = 1
# Noise images and captions, each, for a model of ViT-B-32's size; a smaller one may take more at
# the same cost, as its cosines often scatter more.
_SAMPLE, _PARAMETERS = 128, 151_000_000
_LARGEST_SAMPLE = 4096


class NoiseShift(NamedTuple):
    """The mean and standard deviation of the cosines of noise images with noise captions."""

    mean: float
    deviation: float


def noise_shift(estimator: Estimator, seed: int, tolerance: float) -> NoiseShift:
    """Return the mean and spread of the estimator's cosines on noise, if possible from a cache.

    See `ncclean.scoring.osa.estimate_shift`.
    """
    pairs = sample_size(sum(parameter.numel() for parameter in estimator.model.parameters()))
    settings = {"seed": seed, "tolerance": tolerance, "pairs": pairs, "version": _VERSION}

    @functools.cache
    def estimate() -> AllPairsMean:
        return estimate_shift(estimator, pairs, seed=seed, tolerance=tolerance)

    return NoiseShift(
        cached_shift(estimator, settings, lambda: estimate().mean),
        cached_shift(estimator, {**settings, "deviation": 1}, lambda: estimate().deviation),
    )


def sample_size(parameters: int) -> int:
    """Return limits on the number of noise images and captions, by the model's parameters."""
    affordable = _SAMPLE * _PARAMETERS // max(parameters, 1)
    return min(max(affordable, _SAMPLE), _LARGEST_SAMPLE)
