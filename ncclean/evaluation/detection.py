"""Detect mismatched pairs by a score, given the truth, from one sort.

ROC, precision-recall, AUROC, average precision and ranks all follow from the numbers of noisy and
clean pairs at or above each distinct value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclean.base.rules import DetectionCounts


@dataclass(frozen=True)
class SortedScores:
    """N noise scores (higher is noisier) in descending order, with the truth of each pair.

    `code` (N,) int8 is 0 for clean pairs, else the number of the kind of noise.
    """

    values: np.ndarray
    code: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, code: np.ndarray) -> SortedScores:
        """Sort noise scores with their truth; needs 8 bytes a pair besides input and output."""
        order = np.argsort(values)[::-1]
        return cls(values[order], code[order])

    def curve(self, kind: int | None = None) -> DetectionCurve:
        """Return the detection curve of one kind of noise, or of all, against the clean pairs."""
        if kind is None:
            return DetectionCurve.of_sorted(self.values, self.code != 0)
        of_kind = (self.code == 0) | (self.code == kind)
        return DetectionCurve.of_sorted(self.values[of_kind], self.code[of_kind] != 0)


@dataclass(frozen=True)
class DetectionCurve:
    """The numbers of noisy and clean pairs at or above each distinct noise score, descending.

    `thresholds` (U,) are the scores; `caught` (U,) noisy pairs and `alarms` (U,) clean pairs,
    int64, have a score of at least the threshold.
    """

    thresholds: np.ndarray
    caught: np.ndarray
    alarms: np.ndarray

    @classmethod
    def of_sorted(cls, values: np.ndarray, is_noisy: np.ndarray) -> DetectionCurve:
        """Build a detection curve from (N,) descending noise scores and (N,) truth."""
        if not len(values):
            empty = np.empty(0, dtype=np.int64)
            return cls(np.asarray(values, dtype=np.float64), empty, empty)
        last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
        caught = np.cumsum(is_noisy, dtype=np.int64)[last]
        return cls(values[last], caught, last + 1 - caught)

    @property
    def noisy(self) -> int:
        return int(self.caught[-1]) if len(self.caught) else 0

    @property
    def clean(self) -> int:
        return int(self.alarms[-1]) if len(self.alarms) else 0

    def at(self, threshold: float) -> tuple[int, int]:
        """Return the numbers of noisy and of clean pairs with a score of at least `threshold`."""
        # Thresholds descend: count those that are not below.
        reached = int(np.searchsorted(-self.thresholds.astype(np.float64), -threshold, "right"))
        if reached == 0:
            return 0, 0
        return int(self.caught[reached - 1]), int(self.alarms[reached - 1])

    @property
    def auroc(self) -> float:
        """The chance that a noisy pair scores above a clean one, ties counting half, or NaN."""
        if not self.noisy or not self.clean:
            return float("nan")
        caught = np.diff(self.caught, prepend=0).astype(np.float64)
        # Clean pairs strictly below, and half of those with the same value.
        below = self.clean - (self.alarms + np.append(0, self.alarms[:-1])) / 2
        return float(caught @ below / (float(self.noisy) * self.clean))

    @property
    def average_precision(self) -> float:
        """The average precision, sum_n (R_n - R_(n-1)) P_n; NaN without noisy pairs."""
        if not self.noisy:
            return float("nan")
        caught = np.diff(self.caught, prepend=0).astype(np.float64)
        precision = self.caught / (self.caught + self.alarms)
        return float(caught @ precision / self.noisy)

    @property
    def mean_noise_rank(self) -> float:
        """The mean rank, from 1, of the noisy pairs by descending cleanliness; ties averaged."""
        if not self.noisy:
            return float("nan")
        caught = np.diff(self.caught, prepend=0).astype(np.float64)
        above = self.caught + self.alarms
        size = np.diff(above, prepend=0)
        cleaner = self.noisy + self.clean - above  # pairs with a strictly lower noise score
        return float(caught @ (cleaner + (size + 1) / 2) / self.noisy)

    def best_f1(self) -> tuple[float, float]:
        """Return the threshold with the highest F1, and that F1; choosing it needs the truth."""
        if not self.noisy:
            return float("nan"), float("nan")
        f1 = 2 * self.caught / (self.caught + self.alarms + self.noisy)
        best = int(np.argmax(f1))
        return float(self.thresholds[best]), float(f1[best])

    def points(self, count: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return false alarm rate, recall and precision at about `count` points, for a plot.

        They are evenly spaced over both rates, so that steep parts are kept. The first one flags
        nothing and has the precision of the first threshold.
        """
        if not self.noisy or not self.clean:
            return (np.empty(0),) * 3
        where = [np.array([0, len(self.caught) - 1])]
        for counts in (self.caught, self.alarms):
            steps = np.linspace(0, counts[-1], count // 2)
            where.append(np.searchsorted(counts, steps).clip(max=len(counts) - 1))
        chosen = np.unique(np.concatenate(where))
        caught, alarms = self.caught[chosen], self.alarms[chosen]
        precision = caught / (caught + alarms)
        return (
            np.append(0.0, alarms / self.clean),
            np.append(0.0, caught / self.noisy),
            np.append(precision[:1], precision),
        )


@dataclass(frozen=True)
class DetectionReport:
    """Metrics of the detection of noisy pairs (the positive class) at a threshold.

    All but `threshold` lie in [0, 1]. `clean_kept` and `noise_caught` are the OSA paper's two
    accuracies: the share of clean pairs that are not flagged, and of noisy pairs that are. Ratios
    without a denominator are NaN.
    """

    threshold: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    auroc: float
    average_precision: float
    clean_kept: float
    noise_caught: float


def report_on(curve: DetectionCurve, threshold: float) -> DetectionReport:
    """Compute detection metrics of a noise score that flags the pairs at or above a threshold."""
    counts = DetectionCounts(*curve.at(threshold), noisy=curve.noisy, clean=curve.clean)
    return DetectionReport(
        threshold=threshold,
        accuracy=counts.accuracy,
        precision=counts.precision,
        recall=counts.recall,
        f1=counts.f1,
        auroc=curve.auroc,
        average_precision=curve.average_precision,
        clean_kept=counts.clean_kept,
        noise_caught=counts.recall,
    )


def optimal_noise_rank(pairs: int, noisy: int) -> float:
    """Return the highest possible mean rank of `noisy` among `pairs` pairs: N - (n - 1) / 2."""
    return pairs - (noisy - 1) / 2 if noisy else float("nan")
