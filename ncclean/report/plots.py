"""The two plots of the report: series, markers and limits, and their layout as SVG for the page.

`figures` draws the same `Drawing` with matplotlib. Colours belong to the renderers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ncclean.report import formats
from ncclean.report.curves import CosineDistribution, ScoreCurve
from ncclean.storage.run_facts import RunFacts

_HEADROOM = 1.04  # above the highest point
_MARKER_LABEL_PIXELS = 150
_CURVE_POINTS = 200
_MARGIN, _MARKER_LINES = 14, 44  # above a panel without and with markers
_X_AXIS, _STRIP, _GAP = 44, 74, 22
_COUNT_TICKS = 5
_SHARES = ((0.0, "0"), (0.5, "½"), (1.0, "1"))


@dataclass(frozen=True)
class Series:
    """A curve of a plot; `role` is its meaning, for which each renderer has a colour.

    A `line` goes through the points `x` (K,) and `y` (K,); an `area` fills the space below it;
    `steps` are a histogram of heights `y` (K,) with the edges `x` (K + 1,). `note` explains the
    label if there is room.
    """

    role: str
    form: Literal["line", "area", "steps"]
    label: str
    x: np.ndarray
    y: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Marker:
    """A vertical line through all panels of a plot."""

    role: str
    label: str
    value: float


@dataclass(frozen=True)
class Panel:
    """A panel of a plot: an axis from 0 to `top`, and its series in the order of painting.

    The axis has pairs, or a share from 0 to 1.
    """

    label: str
    top: float
    series: tuple[Series, ...]
    is_share: bool = False


@dataclass(frozen=True)
class Drawing:
    """The content of a plot: panels from top to bottom over one axis from `low` to `high`.

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
        """The entries of the legend: the series of the upper panel, in drawing order."""
        series = self.panels[0].series
        return series[::-1] if series[0].form == "area" else series


def cosine_drawing(cosines: CosineDistribution, facts: RunFacts) -> Drawing:
    """Return a plot of the cosines of observed, mismatched and matched pairs.

    The noise probability is in a panel below.
    """
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
    """Return a plot of the pairs that each threshold keeps, expected matches and mismatches.

    These are stacked.
    """
    thresholds = curve.grid.thresholds
    remaining = curve.kept(curve.pairs)
    if curve.wrong is None:
        series: tuple[Series, ...] = (Series("right", "area", "kept", thresholds, remaining),)
    else:
        right = remaining - curve.kept(curve.wrong)
        series = (
            Series("kept", "area", "kept, expected to be mismatched", thresholds, remaining),
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


@dataclass(frozen=True)
class Scale:
    """A linear map of values from `low` to `high` onto pixels from `start` to `end`."""

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
    """A vertical line of a plot with its label in line `row` above the panel.

    `style` is its class.
    """

    at: float
    label: str
    style: str
    anchor: str
    row: int


@dataclass(frozen=True)
class Size:
    """The size of a plot in pixels at scale 1: one for a desktop, one for a phone.

    A plot of one panel has its own height.
    """

    name: str
    width: int
    height: int
    height_of_one: int
    left: int
    right: int
    ticks: int


WIDE = Size("wide", 860, 430, 260, 62, 16, 9)
NARROW = Size("narrow", 344, 380, 260, 42, 10, 5)


@dataclass(frozen=True)
class Path:
    """A series of a plot as an SVG path; `style` are its classes in the style sheet."""

    style: str
    d: str


@dataclass(frozen=True)
class PlacedPanel:
    """A panel of a plot from pixel `top` to `bottom`; `areas` lie below the grid, `paths` above.

    `name` is its label where there are several.
    """

    top: float
    bottom: float
    name: str
    y_ticks: list[Tick]
    areas: list[Path]
    paths: list[Path]


@dataclass(frozen=True)
class Plot:
    """A plot whose panels, paths and labels have been placed.

    `title` is that of the horizontal axis.
    """

    width: int
    height: int
    size: str
    title: str
    x: Scale
    x_ticks: list[Tick]
    panels: list[PlacedPanel]
    markers: list[PlacedMarker]

    @property
    def top(self) -> float:
        return self.panels[0].top

    @property
    def bottom(self) -> float:
        return self.panels[-1].bottom


def lay_out(drawing: Drawing, size: Size) -> Plot:
    """Place the panels of a plot: the first one, and strips below it."""
    strips = len(drawing.panels) - 1
    top, height = (_MARKER_LINES, size.height) if strips else (_MARGIN, size.height_of_one)
    x = Scale(drawing.low, drawing.high, size.left, size.width - size.right)
    bottom = height - _X_AXIS - strips * (_STRIP + _GAP)
    panels = [_place(drawing.panels[0], "", x, top, bottom)]
    for panel in drawing.panels[1:]:
        top, bottom = bottom + _GAP, bottom + _GAP + _STRIP
        panels.append(_place(panel, panel.label, x, top, bottom))
    return Plot(
        width=size.width,
        height=height,
        size=size.name,
        title=drawing.x_label,
        x=x,
        x_ticks=_ticks(x, size.ticks),
        panels=panels,
        markers=_place_markers(drawing.markers, x),
    )


def _place(panel: Panel, name: str, x: Scale, top: float, bottom: float) -> PlacedPanel:
    y = Scale(0.0, panel.top, bottom, top)
    ticks = [Tick(y(value), label) for value, label in _SHARES] if panel.is_share else _counts(y)
    paths = [(series.form, _path(series, x, y)) for series in panel.series]
    return PlacedPanel(
        top,
        bottom,
        name,
        ticks,
        areas=[path for form, path in paths if form == "area"],
        paths=[path for form, path in paths if form != "area"],
    )


def _path(series: Series, x: Scale, y: Scale) -> Path:
    if series.form == "steps":
        return Path(series.role, steps(series.x, series.y, x, y))
    if series.form == "area":
        points = _thinned(len(series.x))
        return Path(series.role, area(series.x[points], series.y[points], x, y))
    return Path(f"curve {series.role}", line(series.x, series.y, x, y))


def _thinned(count: int) -> np.ndarray:
    """The indices of about `_CURVE_POINTS` of `count` points, with the first and the last."""
    step = max(1, (count - 1) // _CURVE_POINTS)
    return np.unique(np.append(np.arange(0, count, step), count - 1))


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round axis ticks within [low, high]: 1, 2 or 5 times a power of ten."""
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


def _counts(scale: Scale) -> list[Tick]:
    """Ticks at whole numbers of pairs."""
    ticks = nice_ticks(0, scale.high, _COUNT_TICKS)
    return [Tick(scale(v), compact(v)) for v in ticks if v == int(v)]


def compact(value: float) -> str:
    """Return a count as an axis label: 950, 1.5k, 20M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def line(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> str:
    """Return the SVG path through points; NaN interrupts it."""
    points = [
        f"{x(float(horizontal)):g},{y(float(vertical)):g}"
        for horizontal, vertical in zip(xs, ys, strict=True)
        if math.isfinite(vertical)
    ]
    return "M" + "L".join(points) if points else ""


def area(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> str:
    """Return the SVG path of the area between points and the axis."""
    left, right, floor = x(float(xs[0])), x(float(xs[-1])), y(0.0)
    return f"{line(xs, ys, x, y)}L{right:g},{floor:g}L{left:g},{floor:g}Z"


def steps(edges: np.ndarray, heights: np.ndarray, x: Scale, y: Scale) -> str:
    """Return the SVG path that outlines a histogram and closes along the axis."""
    corners = np.repeat(edges, 2)[1:-1]
    return area(corners, np.repeat(heights, 2), x, y)


def _place_markers(markers: Sequence[Marker], x: Scale) -> list[PlacedMarker]:
    """Place markers; a label that would cover the one to its left moves a line down."""
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
