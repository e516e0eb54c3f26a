"""Drawings as the SVG of the page: scales, ticks and paths, without any styling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.report import formats
from ncclean.report.drawing import Drawing, Marker, Panel

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
class PlacedMarker:
    """A vertical line with its label in line `row` above the panel; `style` is its class."""

    at: float
    label: str
    style: str
    anchor: str
    row: int


@dataclass(frozen=True)
class Size:
    """Size of a plot in pixels at scale 1: one for a desktop, one for a phone."""

    name: str
    width: int
    height: int
    left: int
    right: int
    ticks: int


WIDE = Size("wide", 860, 430, 62, 16, 9)
NARROW = Size("narrow", 344, 380, 42, 10, 5)


@dataclass(frozen=True)
class Path:
    """A series as an SVG path; `style` are its classes in the style sheet."""

    style: str
    d: str


@dataclass(frozen=True)
class CosinePlot:
    """The distributions above, the noise probability below, over one cosine axis."""

    size: Size
    title: str  # of the horizontal axis
    top: int
    bottom: int  # of the upper panel
    lower_top: int
    lower_bottom: int
    lower_name: str
    x: Scale
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    upper: list[Path]
    lower: list[Path]
    markers: list[PlacedMarker]


@dataclass(frozen=True)
class ThresholdPlot:
    """The pairs kept at each threshold: expected matches, and mismatches on top of them."""

    size: Size
    title: str  # of the horizontal axis
    column: str
    top: int
    bottom: int
    x: Scale
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    paths: list[Path]


def cosine_plot(drawing: Drawing, size: Size) -> CosinePlot:
    upper, lower = drawing.panels
    top, lower_bottom = 44, size.height - 44
    lower_top = lower_bottom - 74
    bottom = lower_top - 22
    x = Scale(drawing.low, drawing.high, size.left, size.width - size.right)
    y = Scale(0.0, upper.top * 1.04, bottom, top)
    return CosinePlot(
        size=size,
        title=drawing.x_label,
        top=top,
        bottom=bottom,
        lower_top=lower_top,
        lower_bottom=lower_bottom,
        lower_name=lower.label,
        x=x,
        x_ticks=_ticks(x, size.ticks),
        y_ticks=_count_ticks(y, 5),
        upper=_paths(upper, x, y),
        lower=_paths(lower, x, Scale(0.0, lower.top, lower_bottom, lower_top)),
        markers=_place_markers(drawing.markers, x),
    )


def threshold_plot(column: str, drawing: Drawing, size: Size) -> ThresholdPlot:
    (panel,) = drawing.panels
    top, bottom = 14, 216
    x = Scale(drawing.low, drawing.high, size.left, size.width - size.right)
    y = Scale(0.0, panel.top, bottom, top)
    return ThresholdPlot(
        size=Size(size.name, size.width, bottom + 44, size.left, size.right, size.ticks),
        title=drawing.x_label,
        column=column,
        top=top,
        bottom=bottom,
        x=x,
        x_ticks=_ticks(x, size.ticks),
        y_ticks=_count_ticks(y, 4),
        paths=_paths(panel, x, y),
    )


def _paths(panel: Panel, x: Scale, y: Scale) -> list[Path]:
    paths = []
    for series in panel.series:
        if series.form == "steps":
            paths.append(Path(series.role, steps(series.x, series.y, x, y)))
        elif series.form == "area":
            points = _thinned(len(series.x))
            paths.append(Path(series.role, area(series.x[points], series.y[points], x, y)))
        else:
            paths.append(Path(f"curve {series.role}", line(series.x, series.y, x, y)))
    return paths


def _thinned(count: int) -> np.ndarray:
    """The indices of about `_CURVE_POINTS` of `count` points, with the first and the last."""
    every = max(1, (count - 1) // _CURVE_POINTS)
    return np.unique(np.append(np.arange(0, count, every), count - 1))


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
    """Ticks at whole numbers of pairs."""
    ticks = nice_ticks(0, scale.high, count)
    return [Tick(scale(v), compact(v)) for v in ticks if v == int(v)]


def compact(value: float) -> str:
    """A count on an axis: 950, 1.5k, 20M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def line(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> str:
    """SVG path through points, without those that are nan."""
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


def _place_markers(markers: Sequence[Marker], x: Scale) -> list[PlacedMarker]:
    """A label that would cover the one to its left goes a line further down."""
    placed: list[PlacedMarker] = []
    for marker in sorted(markers, key=lambda marker: marker.value):
        at = x(marker.value)
        near = [other for other in placed if at - other.at < _MARKER_LABEL_PIXELS]
        anchor = "end" if at > x.end - _MARKER_LABEL_PIXELS else "start"
        label = f"{marker.label} {formats.decimal(marker.value)}"
        placed.append(PlacedMarker(at, label, marker.role, anchor, len(near)))
    return placed


def _ticks(scale: Scale, count: int) -> list[Tick]:
    return [Tick(scale(value), _plain(value)) for value in nice_ticks(scale.low, scale.high, count)]


def _plain(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")
