"""Metrics of weighted images, and bootstrap intervals of the difference between two models.

Two models are measured on the same images, and most images are easy or hard for both. Their
difference therefore varies much less than the accuracy of either, and the bootstrap resamples
images, not the results of each model. The captions of an image are drawn with it, because they
depend on each other.

Images that only one of the models gets right may be so rare that none was seen. Every draw
therefore also chooses among two more images, one that only a gets right and one that only b does
(Agresti and Min 2005). Without them, with few images or models that are nearly always right, the
interval misses the truth up to half of the time, and has no width where the models agree on every
image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.stats import bootstrap

# Drawn at a time: 64 MB of numbers.
_DRAWN_AT_A_TIME = 1 << 23
_DENSE_STRATA = 64


@dataclass(frozen=True)
class Metric:
    """`scale` times the mean over strata of the share of queries that hit.

    `hits` and `queries` (n images, S strata) count those of each image. A stratum without queries
    is left out of the mean. Accuracy has one stratum, the mean recall per class has the classes.
    """

    name: str
    hits: sparse.csr_array
    queries: sparse.csr_array
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        name: str,
        image: np.ndarray,
        hit: np.ndarray,
        stratum: np.ndarray | None = None,
        scale: float = 1.0,
    ) -> Metric:
        """Group (Q,) queries by image and stratum, with whether each hit, for resampling."""
        strata = np.zeros(len(image), dtype=np.int64) if stratum is None else stratum
        shape = (int(image.max()) + 1, int(strata.max()) + 1)

        def counted(values: np.ndarray) -> sparse.csr_array:
            return sparse.csr_array((values.astype(np.float64), (image, strata)), shape=shape)

        return cls(name, counted(hit), counted(np.ones(len(image))), scale)

    def value(self, weights: np.ndarray | None = None) -> np.ndarray:
        """The metric of (B,) resamples, given how often (B, n) each image counts."""
        if weights is None:
            weights = np.ones((1, self.hits.shape[0]))
        hits, queries = _product(weights, self.hits), _product(weights, self.queries)
        shares = np.divide(hits, queries, out=np.zeros_like(hits), where=queries > 0)
        strata = np.maximum((queries > 0).sum(axis=1), 1)  # of few images, none may be drawn
        values: np.ndarray = self.scale * shares.sum(axis=1) / strata
        return values


def _product(weights: np.ndarray, counts: sparse.csr_array) -> np.ndarray:
    """(B, S) from (B, n) and (n, S)."""
    # With few strata, BLAS on a dense matrix is several times as fast as a sparse product.
    dense = counts.shape[1] <= _DENSE_STRATA
    product: np.ndarray = weights @ counts.toarray() if dense else (counts.T @ weights.T).T
    return product


@dataclass(frozen=True)
class Difference:
    """A metric of two models on the same images; `low` and `high` bound b - a at 95 %."""

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_differences(
    a: Sequence[Metric], b: Sequence[Metric], draws: int = 2000, seed: int = 0
) -> list[Difference]:
    """Bootstrap intervals of the difference in each metric between two models on the same images.

    Image i must be the same in `a` and `b`. All metrics share the same `draws` resamples, of the
    images and of two more, which count as much as an image does in the mean. Raises `ValueError`
    for fewer than two images, or for metrics that do not match.
    """
    images = {metric.hits.shape[0] for metric in (*a, *b)}
    if [metric.name for metric in a] != [metric.name for metric in b] or len(images) != 1:
        raise ValueError("the metrics of the two models do not match")
    (count,) = images
    if count < 2:
        raise ValueError("a bootstrap needs at least two images")
    everything = count + 2

    def differences(drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        """(metrics, B) for (B, n) images drawn."""
        del axis  # the last one
        drawn = np.atleast_2d(drawn)
        # Each row gets image numbers of its own, so that one call counts all rows.
        numbers = (drawn + everything * np.arange(len(drawn))[:, None]).ravel()
        weights = np.bincount(numbers, minlength=everything * len(drawn)).astype(np.float64)
        weights = weights.reshape(len(drawn), everything)
        only_a, only_b = weights[:, count:].T
        weights = weights[:, :count]
        share = weights.sum(axis=1) / everything
        return np.stack(
            [
                share * (y.value(weights) - x.value(weights))
                + x.scale * (only_b - only_a) / everything
                for x, y in zip(a, b, strict=True)
            ]
        )

    interval = bootstrap(
        (np.arange(everything),),
        differences,
        n_resamples=draws,
        batch=max(1, _DRAWN_AT_A_TIME // everything),
        vectorized=True,
        axis=-1,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    lows, highs = np.ravel(interval.low), np.ravel(interval.high)
    results = []
    for x, y, low, high in zip(a, b, lows, highs, strict=True):
        before, after = float(x.value()[0]), float(y.value()[0])
        difference = after - before
        ends = min(float(low), difference), max(float(high), difference)
        results.append(Difference(x.name, before, after, difference, *ends))
    return results
