"""Compare two models on the same data sets, with bootstrap intervals of the differences.

Two models are measured on the same images, and most images are easy or hard for both. So their
difference varies much less than either accuracy, and the bootstrap resamples images, not each
model's results. The captions of an image are drawn with it, because they depend on each other.

Images that only one of the models gets right may be so rare that none was seen. Every draw
therefore also chooses among two more images, one that only a gets right and one that only b does
(Agresti and Min 2005). Without them, with few images or models that are nearly always right, the
interval misses the truth up to half of the time, and has no width if the models agree on every
image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from ncclean.errors import InputError
from ncclean.evaluation.results import Evaluation, Metric, aligned, metrics_of

# Drawn at a time: 64 MB of numbers.
_DRAWN_AT_A_TIME = 1 << 23
DRAWS = 2000


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models on the same images, with its interval.

    `low` and `high` bound b - a at 95 % confidence.
    """

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
    """Return bootstrap intervals of the difference in each metric between two models.

    Image i must be the same in `a` and `b`. All metrics share the same `draws` resamples, of the
    images and of two more, which count like images in the mean. Raises `ValueError` for fewer than
    two images, or for metrics that do not match.
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
        # Each row has separate image numbers, so that one call counts all rows.
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


@dataclass(frozen=True)
class Comparison:
    """The differences of models `a` and `b` on one data set, metric by metric."""

    dataset: str
    task: str
    images: int
    a: str
    b: str
    metrics: list[Difference]

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "task": self.task,
            "images": self.images,
            "a": self.a,
            "b": self.b,
            "metrics": {
                metric.name: {
                    "a": metric.a,
                    "b": metric.b,
                    "difference": metric.difference,
                    "low": metric.low,
                    "high": metric.high,
                    "excludes_zero": metric.excludes_zero,
                }
                for metric in self.metrics
            },
        }


def compare_results(
    a: Sequence[Evaluation], b: Sequence[Evaluation], draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare two models' results on every data set and task that both have, b minus a.

    Raises `InputError` if no results do, if one side has several models for a data set, or if the
    two were not computed on the same samples.
    """
    if draws < 1:
        raise InputError(f"--draws must be at least 1, got {draws}")
    first, second = _by_task(a, "A"), _by_task(b, "B")
    common = [key for key in first if key in second]
    if not common:
        raise InputError("A and B have no data set and task in common")
    return [_compare(first[key], second[key], draws, seed) for key in common]


def _compare(a: Evaluation, b: Evaluation, draws: int, seed: int) -> Comparison:
    before, after = aligned(a.outcomes, b.outcomes)
    if a.classes != b.classes:
        raise InputError(
            f"{a.dataset} has {a.classes} classes in one result, {b.classes} in the other"
        )
    if a.images < 2:
        raise InputError(f"{a.dataset} has one image; a comparison needs at least two")
    return Comparison(
        dataset=a.dataset,
        task=a.task,
        images=a.images,
        a=a.label,
        b=b.label,
        metrics=paired_differences(
            metrics_of(a.task, before, a.classes), metrics_of(b.task, after, b.classes), draws, seed
        ),
    )


def _by_task(results: Sequence[Evaluation], side: str) -> dict[tuple[str, str], Evaluation]:
    by_task: dict[tuple[str, str], Evaluation] = {}
    for result in results:
        key = (result.dataset, result.task)
        if key in by_task:
            raise InputError(
                f"{side} has {result.task} of {result.dataset} twice ({by_task[key].label} and "
                f"{result.label}): name the files of one model"
            )
        by_task[key] = result
    return by_task
