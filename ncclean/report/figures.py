"""The report's figures for papers, as matplotlib objects without global state.

matplotlib is imported when a figure is drawn. Save one with `figure.savefig("name.pdf")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.errors import InputError
from ncclean.report.drawing import Panel, cosine_drawing, threshold_drawing
from ncclean.report.measurements import Measurements

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which suits any colour vision.
_MATCHED, _MISMATCHED, _OBSERVED = "#0072B2", "#D55E00", "#D3D2CB"
_INK, _SOFT = "#1C1C1A", "#5F5F59"
# By the role of a series. Areas cover each other, so their tints of the two colours are opaque.
_COLOURS = {
    "observed": _OBSERVED,
    "matched": _MATCHED,
    "mismatched": _MISMATCHED,
    "probability": _INK,
    "right": "#A6CEE4",
    "kept": "#E08640",
}
_DASHES = {"shift": (0, (5, 3)), "median": (0, (1, 2))}
_LINE_WIDTHS = {"probability": 1.2}
_HEADROOM = 1.04
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


def cosine_distribution(numbers: Measurements, width: float = 5.5) -> Figure:
    """Observed, mismatched and matched cosines over the noise probability; `width` in inches.

    Raises `InputError` if no pair was scored.
    """
    if numbers.cosines is None:
        raise InputError("no pair could be scored: there is no distribution to draw")
    from matplotlib import rc_context

    drawing = cosine_drawing(numbers.cosines, numbers.facts)
    with rc_context(_STYLE):
        figure = _figure(width, 0.58)
        upper, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": (3.4, 1), "hspace": 0.09}
        )
        for axes, panel in zip((upper, lower), drawing.panels, strict=True):
            _paint(axes, panel)
            for marker in drawing.markers:
                axes.axvline(
                    marker.value, color=_INK, linewidth=0.9, linestyle=_DASHES[marker.role],
                    label=marker.label,
                )  # fmt: skip
        upper.legend(loc="best")
        # The lower panel is too short for its label in one line.
        lower.set_ylabel(drawing.panels[1].label.replace(" ", "\n"), fontsize=7.0)
        lower.set(
            xlabel=drawing.x_label, xlim=(drawing.low, drawing.high),
            ylim=(-0.03, 1.03), yticks=(0, 0.5, 1),
        )  # fmt: skip
        return figure


def threshold_curve(
    numbers: Measurements, score: str = "noise_probability", width: float = 5.5
) -> Figure:
    """Pairs that each threshold on a score keeps, split into expected matches and mismatches.

    Raises `InputError` for a score that the table does not have.
    """
    curve = numbers.curve(score)
    if curve is None:
        raise InputError(f"the score table has no values of {score}")
    from matplotlib import rc_context

    drawing = threshold_drawing(curve)
    with rc_context(_STYLE):
        figure = _figure(width, 0.45)
        axes = figure.subplots()
        artists = _paint(axes, drawing.panels[0])
        axes.set(xlabel=f"{drawing.x_label}; {drawing.x_note}", xlim=(drawing.low, drawing.high))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        handles = [artists[series.role] for series in drawing.legend]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
        return figure


def rule_overlap(numbers: Measurements, width: float = 4.2) -> Figure:
    """Jaccard index of every two rules as a heat map; the diagonal counts the pairs each flags.

    Raises `InputError` if the table has none of the rules' columns.
    """
    overlap = numbers.overlap
    if not overlap.rules:
        raise InputError("the score table has none of the rules' columns")
    from matplotlib import rc_context

    size = len(overlap.rules)
    names = [rule.name for rule in overlap.rules]
    values = np.array([[overlap.jaccard(i, j) or 0.0 for j in range(size)] for i in range(size)])
    np.fill_diagonal(values, 0.0)
    with rc_context(_STYLE):
        figure = _figure(width, 0.8)
        axes = figure.subplots()
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1.8)
        for i in range(size):
            for j in range(size):
                text = f"{overlap.both(i, i):,}" if i == j else f"{values[i, j]:.2f}"
                weight = "bold" if i == j else "normal"
                axes.text(j, i, text, ha="center", va="center", color=_INK, fontweight=weight)
        axes.set_xticks(range(size), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(size), names)
        _without_frame(axes)
        return figure


def shard_noise_rates(numbers: Measurements, width: float = 5.5) -> Figure:
    """Noise rate of the shards that the report's table shows, by name, with the corpus's rate.

    Raises `InputError` without noise probabilities.
    """
    rows = [row for row in numbers.shards.rows if row.noise_rate is not None]
    if not rows:
        raise InputError("the score table has no noise probabilities to show by shard")
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    rows.sort(key=lambda row: row.shard)
    rates = np.array([row.noise_rate for row in rows], dtype=float)
    pairs = np.array([row.ok for row in rows])
    errors = 1.96 * np.sqrt(np.maximum(rates * (1 - rates), 0.0) / pairs)
    with rc_context(_STYLE):
        figure = _figure(width, 0.42)
        axes = figure.subplots()
        axes.errorbar(
            np.arange(len(rows)), rates, errors, fmt="o", markersize=3, color=_MISMATCHED,
            ecolor=_OBSERVED, elinewidth=1.2,
        )  # fmt: skip
        rate = numbers.facts.noise_rate
        if rate.is_known:
            axes.axhline(rate.value, color=_INK, linewidth=0.9, linestyle=(0, (5, 3)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="shard, by name", ylabel="noise rate")
        return figure


FIGURES: dict[str, Callable[[Measurements], Figure]] = {
    "cosine_distribution": cosine_distribution,
    "threshold_curve": threshold_curve,
    "rule_overlap": rule_overlap,
    "shard_noise_rates": shard_noise_rates,
}


def _paint(axes: Axes, panel: Panel) -> dict[str, Artist]:
    """Draw the series of a panel and return the artists by role."""
    artists: dict[str, Artist] = {}
    for series in panel.series:
        colour = _COLOURS[series.role]
        if series.form == "steps":
            artist: Artist = axes.stairs(
                series.y, series.x, fill=True, color=colour, label=series.label
            )
        elif series.form == "area":
            artist = axes.fill_between(
                series.x, series.y, color=colour, linewidth=0, label=series.label
            )
        else:
            width = _LINE_WIDTHS.get(series.role, 1.5)
            (artist,) = axes.plot(
                series.x, series.y, color=colour, linewidth=width, label=series.label
            )
        artists[series.role] = artist
    axes.set_ylabel(panel.label)
    axes.set_ylim(0, panel.top * _HEADROOM)
    return artists


def _figure(width: float, aspect: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, width * aspect), layout="constrained")


def _without_frame(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
