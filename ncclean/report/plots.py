"""Where everything lies in the SVG plots: scales, ticks and paths, without any styling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclean.report.distribution import CosineDistribution
from ncclean.report.thresholds import ScoreCurve

_MARKER_LABEL_PIXELS = 150
_CURVE_POINTS = 200


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)


@dataclass(frozen=True)
class Tick:
    at: float  # pixels
    label: str


@dataclass(frozen=True)
class Marker:
    """A vertical line with its label `row` lines above the panel."""

    at: float
    label: str
    kind: str
    anchor: str
    row: int


@dataclass(frozen=True)
class Size:
    """Of a plot: one for a desk, one for a phone, both in pixels at scale 1."""

    name: str
    width: int
    height: int
    left: int
    right: int
    ticks: int


WIDE = Size("wide", 860, 430, 62, 16, 9)
NARROW = Size("narrow", 344, 380, 42, 10, 5)


@dataclass(frozen=True)
class CosinePlot:
    """The distributions above, the noise probability below, over one cosine axis."""

    size: Size
    top: int
    bottom: int  # of the upper panel
    lower_top: int
    lower_bottom: int
    x: Scale
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    observed: str
    matched: str | None
    mismatched: str | None
    probability: str
    markers: list[Marker] = field(default_factory=list)


@dataclass(frozen=True)
class ThresholdPlot:
    """What stays at each threshold: expected matches, and mismatches on top of them."""

    size: Size
    column: str
    top: int
    bottom: int
    x: Scale
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    kept: str  # all that stays
    right: str  # the expected matches among it


def cosine_plot(cosines: CosineDistribution, shift: float | None, size: Size) -> CosinePlot:
    lower = 74
    top, lower_bottom = 44, size.height - 44
    lower_top = lower_bottom - lower
    bottom = lower_top - 22
    edges = cosines.edges
    x = Scale(float(edges[0]), float(edges[-1]), size.left, size.width - size.right)
    parts = [cosines.observed, cosines.mismatched]
    highest = max(float(part.max()) for part in parts if part is not None)
    y = Scale(0.0, highest * 1.04, bottom, top)
    p = Scale(0.0, 1.0, lower_bottom, lower_top)
    centres = cosines.centres
    return CosinePlot(
        size=size,
        top=top,
        bottom=bottom,
        lower_top=lower_top,
        lower_bottom=lower_bottom,
        x=x,
        x_ticks=[Tick(x(v), _plain(v)) for v in nice_ticks(x.low, x.high, size.ticks)],
        y_ticks=_count_ticks(y, 5),
        observed=steps(edges, cosines.observed, x, y),
        matched=None if cosines.matched is None else line(centres, cosines.matched, x, y),
        mismatched=None if cosines.mismatched is None else line(centres, cosines.mismatched, x, y),
        probability=line(centres, cosines.probability, x, p),
        markers=_markers(cosines, shift, x),
    )


def threshold_plot(curve: ScoreCurve, size: Size) -> ThresholdPlot:
    top, bottom = 14, 216
    grid = curve.grid
    thresholds = grid.thresholds
    x = Scale(thresholds[0], thresholds[-1], size.left, size.width - size.right)
    y = Scale(0.0, max(curve.total, 1), bottom, top)
    every = max(1, grid.steps // _CURVE_POINTS)
    points = np.unique(np.append(np.arange(0, grid.steps + 1, every), grid.steps))
    kept = curve.kept(curve.pairs)
    right = kept - curve.kept(curve.wrong) if curve.wrong is not None else kept
    return ThresholdPlot(
        size=Size(size.name, size.width, bottom + 44, size.left, size.right, size.ticks),
        column=curve.column,
        top=top,
        bottom=bottom,
        x=x,
        x_ticks=[Tick(x(v), _plain(v)) for v in nice_ticks(x.low, x.high, size.ticks)],
        y_ticks=_count_ticks(y, 4),
        kept=area(thresholds[points], kept[points], x, y),
        right=area(thresholds[points], right[points], x, y),
    )


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """At most about `count` multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Rounded to the step's own decimals: 3 * 0.1 is not 0.3.
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(number * step, decimals) for number in range(first, last + 1)]


def _count_ticks(scale: Scale, count: int) -> list[Tick]:
    """There is no half a pair."""
    ticks = nice_ticks(0, scale.high, count)
    return [Tick(scale(v), compact(v)) for v in ticks if v == int(v)]


def compact(value: float) -> str:
    """A count on an axis: 950, 1.5k, 20M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def line(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> str:
    """SVG path through points; those that are nan are left out."""
    points = [
        f"{x(float(horizontal)):g},{y(float(vertical)):g}"
        for horizontal, vertical in zip(xs, ys, strict=True)
        if math.isfinite(vertical)
    ]
    return "M" + "L".join(points) if points else ""


def area(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> str:
    """SVG path of the area between points and the axis."""
    left, right, floor = x(float(xs[0])), x(float(xs[-1])), y(0.0)
    return f"{line(xs, ys, x, y)}L{right:g},{floor:g}L{left:g},{floor:g}Z"


def steps(edges: np.ndarray, heights: np.ndarray, x: Scale, y: Scale) -> str:
    """SVG path of a histogram's outline, closed along the axis."""
    corners = np.repeat(edges, 2)[1:-1]
    return area(corners, np.repeat(heights, 2), x, y)


def _markers(cosines: CosineDistribution, shift: float | None, x: Scale) -> list[Marker]:
    named: list[tuple[float, str, str]] = []
    if shift is not None and x.low <= shift <= x.high:
        named.append((shift, f"OSA shift {_signed(shift)}", "shift"))
    if cosines.null_median is not None:
        named.append((cosines.null_median, f"null median {_signed(cosines.null_median)}", "median"))
    markers: list[Marker] = []
    for value, label, kind in sorted(named):
        at = x(value)
        near: Sequence[Marker] = [m for m in markers if at - m.at < _MARKER_LABEL_PIXELS]
        anchor = "end" if at > x.end - _MARKER_LABEL_PIXELS else "start"
        markers.append(Marker(at, label, kind, anchor, len(near)))
    return markers


def _plain(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")
