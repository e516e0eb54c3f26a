"""Move a noise probability to people's judgements with a few parameters.

In logits, the map is a broken line that rises everywhere:

    logit p' = a + sum over k of s_k B_k(logit p)        s_k > 0

where B_k is how far logit p has come in segment k, so that all s_k = 1 and a = 0 is the identity.
The segments lie between five quantiles of the judged probabilities. A ridge holds each slope near 1
and near its neighbours: some hundred answers outweigh it, some twenty do not. p is kept off 0 and 1
as .001 + .998 p, where logarithms would extrapolate to pairs that nobody judged.

One slope, as in Platt's method, is too few: near misses raise what looks matched and leave what
looks mismatched unchanged. Two (beta calibration) are not enough where near misses are rarer among
the most similar pairs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit

from ncclean.base.estimates import Estimate, flattened, read_count

_MARGIN = 1e-3
_QUANTILES = np.arange(1, 6) / 6
_RIDGE, _SMOOTHNESS = 1.0, 4.0
_LEAST_SLOPE = 0.02
_LARGEST_INTERCEPT = 20.0
_TAIL = 0.025


@dataclass(frozen=True)
class Recalibration:
    """A strictly increasing map of noise probabilities, piecewise linear in their logits.

    `slopes` are those of the segments between the `knots`, which are logits.
    """

    intercept: float
    knots: tuple[float, ...]
    slopes: tuple[float, ...]

    def __call__(self, probability: np.ndarray) -> np.ndarray:
        """Map (N,) noise probabilities in [0, 1] to (N,) others, as float64."""
        moved: np.ndarray = expit(
            self.intercept + _segments(probability, self.knots) @ np.array(self.slopes)
        )
        return moved

    def inverse(self, probability: np.ndarray) -> np.ndarray:
        """Undo the recalibration of (N,) probabilities, to about 1e-6 of their logits."""
        logits = np.linspace(-30.0, 30.0, 200_001)
        before: np.ndarray = np.interp(probability, self(expit(logits)), expit(logits))
        return before


@dataclass(frozen=True)
class Audited:
    """The correction of a calibration by the answers of an audit.

    `noise_rate` is measured, from `answers` answers with the hash `digest`. `drawn_bounds` are the
    bounds of the strata in the noise probability at the time of sampling, `bounds` the same after
    the recalibration: so the same answers can be assigned to their strata in the changed table.
    """

    recalibration: Recalibration
    noise_rate: Estimate
    answers: int
    digest: str
    drawn_bounds: tuple[float, ...]
    bounds: tuple[float, ...]

    def to_json(self) -> str:
        """Write an audit's recalibration as JSON for the metadata of a score table."""
        return json.dumps(asdict(self, dict_factory=flattened))

    @classmethod
    def of_json(cls, text: str | None) -> Audited | None:
        """Read an audit's recalibration from metadata; None without one, or of another version."""
        try:
            fields = json.loads(text or "")
            moved = fields["recalibration"]
            knots, slopes = _numbers(moved["knots"]), _numbers(moved["slopes"])
            (intercept,) = _numbers([moved["intercept"]])
            bounds, drawn_bounds = _rising(fields["bounds"]), _rising(fields["drawn_bounds"])
            if len(slopes) != len(knots) + 1 or len(bounds) != len(drawn_bounds):
                return None
            return cls(
                Recalibration(intercept, knots, slopes),
                noise_rate=Estimate.of_fields(fields, "noise_rate"),
                answers=read_count(fields["answers"]),
                digest=str(fields["digest"]),
                drawn_bounds=drawn_bounds,
                bounds=bounds,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return None


def _numbers(values: Sequence[object]) -> tuple[float, ...]:
    """Return finite numbers. Raises `ValueError` for others."""
    numbers = np.array(values, float)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError("not finite numbers")
    return tuple(numbers.tolist())


def _rising(values: Sequence[object]) -> tuple[float, ...]:
    """Return rising bounds. Raises `ValueError` for others."""
    numbers = _numbers(values)
    if (np.diff(numbers) < 0).any():
        raise ValueError("bounds that fall")
    return numbers


def recalibrated(
    probability: np.ndarray, mismatched: np.ndarray, weights: np.ndarray
) -> Recalibration:
    """Fit a `Recalibration` to N answers of an audit.

    `probability` (N,) is the noise probability, `mismatched` (N,) is true where people found a pair
    mismatched, and `weights` (N,) are the inverse of the sampling rate. The fit is a weighted
    logistic regression with a ridge. The weights are scaled to add up to the effective number of
    answers, (sum w)^2 / sum w^2, so that the ridge has the same effect in every design. The
    weighted mean of the new probabilities over the answers is the weighted share that is
    mismatched.

    If all n answers agree, they only tell that the share of the others is below the end of its
    exact 95 % interval, 1 - .025^(1/n). Then all slopes are 1, and the intercept moves the mean
    probability to that end, or not at all if it is there already.
    """
    knots = tuple(map(float, np.unique(np.quantile(_logits(probability), _QUANTILES))))
    segments, truth = _segments(probability, knots), np.asarray(mismatched, dtype=np.float64)
    if truth.min() == truth.max():
        return _towards_agreement(segments, bool(truth[0]), weights, knots)
    features = np.column_stack([np.ones(len(segments)), segments])
    count = segments.shape[1]
    counted = weights * weights.sum() / np.square(weights).sum()
    steps = np.diff(np.eye(count), axis=0)
    smooth = _SMOOTHNESS * steps.T @ steps

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        line, slopes = features @ parameters, parameters[1:]
        value = (counted * (np.logaddexp(0.0, line) - truth * line)).sum()
        value += _RIDGE * np.square(slopes - 1).sum() / 2 + slopes @ smooth @ slopes / 2
        gradient = features.T @ (counted * (expit(line) - truth))
        gradient[1:] += _RIDGE * (slopes - 1) + smooth @ slopes
        return float(value), gradient

    bounds = [(-_LARGEST_INTERCEPT, _LARGEST_INTERCEPT), *[(_LEAST_SLOPE, None)] * count]
    start = np.array([0.0, *[1.0] * count])
    fit = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B")
    intercept, *slopes = map(float, fit.x)
    return Recalibration(intercept, knots, tuple(slopes))


def _towards_agreement(
    segments: np.ndarray, is_mismatched: bool, weights: np.ndarray, knots: tuple[float, ...]
) -> Recalibration:
    """Return the shift of all logits implied by unanimous answers."""
    lines, shares = segments.sum(axis=1), weights / weights.sum()
    most = 1 - _TAIL ** np.square(shares).sum()  # 1 / n, by the effective number of answers

    def too_far(intercept: float) -> float:
        share = float((shares * expit(intercept + lines)).sum())
        return (1 - share if is_mismatched else share) - float(most)

    intercept = 0.0
    if too_far(0.0) > 0:
        side = 1 if is_mismatched else -1
        intercept = float(brentq(too_far, 0.0, side * 2 * _LARGEST_INTERCEPT))
    return Recalibration(intercept, knots, (1.0,) * (len(knots) + 1))


def _logits(probability: np.ndarray) -> np.ndarray:
    """Return (N,) logits, finite for 0 and 1."""
    logits: np.ndarray = logit(_MARGIN + (1 - 2 * _MARGIN) * np.asarray(probability, np.float64))
    return logits


def _segments(probability: np.ndarray, knots: tuple[float, ...]) -> np.ndarray:
    """Return (N, K + 1) how far each logit has come in each segment, from 0; they sum to it."""
    logits, ends = _logits(probability), np.array([-np.inf, *knots, np.inf])
    low, high = ends[:-1], ends[1:]
    segments: np.ndarray = np.clip(logits[:, None], low, high) - np.clip(0.0, low, high)
    return segments
