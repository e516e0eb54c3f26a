"""The posterior of being clean, from a Gaussian mixture of the per-pair losses.

Networks learn clean pairs first, so the losses of a noisy corpus have two modes (Arazo et al. 2019;
DivideMix, Li et al. 2020). OSA selects in this way the strictly clean pairs on which it adapts the
estimator: posterior above .95 for classification, .8 for image retrieval, .9 for image-text
matching.

The mixture of a corpus is fitted to the histogram of its losses, not to the pairs, so it does not
depend on their order, and a billion cost as much as a thousand.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.scoring.double import doubled
from ncclean.scoring.null import BINS, Histogram

# Losses spread over orders of magnitude, near 0 for a confident model: the bins are equal in their
# logarithm (0.4 % wide). Values outside fall into the outer bins.
_LOWEST, _HIGHEST = 1e-4, 1e3
# The fit uses this many quantiles of the histogram: scikit-learn takes no weights.
_FIT_POINTS = 50_000
_REGULARIZATION = 5e-4  # added to the variances


def pair_losses(neg_clip_loss: torch.Tensor, scale: float) -> torch.Tensor:
    """Convert (N,) negCLIPLoss scores to (N,) contrastive losses, (i2t + t2i) / 2 cross-entropies.

    They differ only in units: the loss is minus `scale` times the score.
    """
    return (-scale * neg_clip_loss.float()).clamp_min(0.0)


def loss_histogram(losses: torch.Tensor) -> Histogram:
    """Count (N,) losses in 4,096 bins of equal width in the logarithm, from 1e-4 to 1e3."""
    span = math.log(_HIGHEST / _LOWEST)
    place = (doubled(losses.detach()).clamp(_LOWEST, _HIGHEST) / _LOWEST).log() / span
    return Histogram.of(2 * place - 1)


@dataclass(frozen=True)
class LossMixture:
    """A mixture of two Gaussians: (2,) means, variances and shares, the low-loss (clean) first."""

    means: np.ndarray
    variances: np.ndarray
    shares: np.ndarray

    @classmethod
    def fit(cls, losses: torch.Tensor) -> LossMixture:
        """Fit a mixture of two Gaussians to (N,) losses by expectation maximisation.

        Equal losses say nothing: both are then the same, with half of the pairs each. Raises
        `ValueError` for fewer than two losses or one that is not finite.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        values = losses.detach().cpu().double().numpy().reshape(-1, 1)
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError("a mixture needs at least two losses, all finite")
        if not np.ptp(values):  # the empty component would have mean 0, and count as the clean one
            return cls(np.full(2, values[0, 0]), np.full(2, _REGULARIZATION), np.full(2, 0.5))
        fitted = GaussianMixture(
            2, max_iter=100, tol=1e-2, reg_covar=_REGULARIZATION, random_state=0
        )
        with warnings.catch_warnings():
            # A handful of pairs: one component, and no reason to warn.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(values)
        order = np.argsort(fitted.means_[:, 0], kind="stable")
        return cls(
            means=fitted.means_[order, 0],
            variances=fitted.covariances_[order, 0, 0],
            shares=fitted.weights_[order],
        )

    @classmethod
    def fit_histogram(cls, histogram: Histogram) -> LossMixture:
        """Fit the mixture to a histogram of losses, for a corpus of any size."""
        edges = np.geomspace(_LOWEST, _HIGHEST, BINS + 1)
        centres = np.sqrt(edges[:-1] * edges[1:])
        if histogram.size <= _FIT_POINTS:
            return cls.fit(torch.from_numpy(np.repeat(centres, histogram.counts)))
        ranks = (np.arange(_FIT_POINTS) + 0.5) / _FIT_POINTS * histogram.size
        at = np.searchsorted(np.cumsum(histogram.counts), ranks, side="right")
        return cls.fit(torch.from_numpy(centres[at]))

    def clean_posterior(self, losses: torch.Tensor) -> torch.Tensor:
        """Return (N,) float32 posteriors of the low-loss (clean) component for (N,) losses."""
        values = doubled(losses.detach())[:, None]
        means, variances, shares = (
            torch.from_numpy(field).to(values)
            for field in (self.means, self.variances, self.shares)
        )
        log_joint = shares.log() - (variances.log() + (values - means) ** 2 / variances) / 2
        # A softmax over two, in a tenth of its time.
        return (log_joint[:, 0] - log_joint[:, 1]).sigmoid().float()
