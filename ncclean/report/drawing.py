"""The two plots of the report, stated once: series, markers, labels and limits.

`plots` lays any drawing out as SVG for the page, `figures` as a matplotlib figure. Colours, ticks
and margins belong to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ncclean.report.distribution import CosineDistribution
from ncclean.report.thresholds import ScoreCurve
from ncclean.storage.run_facts import RunFacts

_HEADROOM = 1.04  # above the highest point


@dataclass(frozen=True)
class Series:
    """One curve; `role` is what it stands for, and each renderer has a colour for it.

    A `line` goes through the points `x` (K,) and `y` (K,); an `area` fills the space below it;
    `steps` are a histogram of heights `y` (K,) with the edges `x` (K + 1,). `note` explains the
    label where there is room.
    """

    role: str
    form: Literal["line", "area", "steps"]
    label: str
    x: np.ndarray
    y: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Marker:
    """A vertical line through all panels."""

    role: str
    label: str
    value: float


@dataclass(frozen=True)
class Panel:
    """A vertical axis from 0 to `top`, and its series in the order in which they are painted.

    The axis has pairs, or a share from 0 to 1.
    """

    label: str
    top: float
    series: tuple[Series, ...]
    is_share: bool = False


@dataclass(frozen=True)
class Drawing:
    """Panels from top to bottom over one horizontal axis from `low` to `high`.

    The first panel is the largest.
    """

    x_label: str
    low: float
    high: float
    panels: tuple[Panel, ...]
    markers: tuple[Marker, ...] = ()
    x_note: str = ""

    @property
    def legend(self) -> tuple[Series, ...]:
        """Entries of the legend: the series of the upper panel, in drawing order."""
        series = self.panels[0].series
        return series[::-1] if series[0].form == "area" else series


def cosine_drawing(cosines: CosineDistribution, facts: RunFacts) -> Drawing:
    """Plot of the cosines of observed, mismatched and matched pairs over the noise probability."""
    observed = Series("observed", "steps", "observed", cosines.edges, cosines.observed)
    upper, highest = [observed], float(cosines.observed.max())
    if cosines.matched is not None and cosines.mismatched is not None:
        is_null = cosines.has_null and facts.noise_rate.is_known and facts.audited is None
        source = "noise rate × null" if is_null else "sum of noise probabilities"
        highest = max(highest, float(cosines.mismatched.max()))
        upper += [
            Series("mismatched", "line", "mismatched", cosines.centres, cosines.mismatched, source),
            Series(
                "matched",
                "line",
                "matched",
                cosines.centres,
                cosines.matched,
                "observed \N{MINUS SIGN} mismatched",
            ),
        ]
    has_value = np.isfinite(cosines.probability)
    probability = Series(
        "probability",
        "line",
        "noise probability",
        cosines.centres[has_value],
        cosines.probability[has_value],
    )
    low, high = float(cosines.edges[0]), float(cosines.edges[-1])
    marked = (("shift", "OSA shift", facts.shift), ("median", "null median", cosines.null_median))
    return Drawing(
        x_label="cosine of image and caption",
        low=low,
        high=high,
        panels=(
            Panel(f"pairs per {cosines.width:.3f}", _HEADROOM * highest, tuple(upper)),
            Panel(probability.label, 1.0, (probability,), is_share=True),
        ),
        markers=tuple(
            Marker(role, label, value)
            for role, label, value in marked
            if value is not None and low <= value <= high
        ),
    )


def threshold_drawing(curve: ScoreCurve) -> Drawing:
    """Plot of the pairs that each threshold keeps, expected matches and mismatches stacked."""
    thresholds = curve.grid.thresholds
    kept = curve.kept(curve.pairs)
    if curve.wrong is None:
        series: tuple[Series, ...] = (Series("right", "area", "kept", thresholds, kept),)
    else:
        right = kept - curve.kept(curve.wrong)
        series = (
            Series("kept", "area", "kept, expected to be mismatched", thresholds, kept),
            Series("right", "area", "kept, expected to match", thresholds, right),
        )
    side = "below" if curve.keeps_below else "at or above"
    return Drawing(
        x_label=f"threshold on {curve.column}",
        low=float(thresholds[0]),
        high=float(thresholds[-1]),
        panels=(Panel("pairs kept", max(curve.total, 1), series),),
        x_note=f"pairs {side} it are kept",
    )
