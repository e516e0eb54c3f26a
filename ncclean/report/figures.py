"""The report's figures for papers, as matplotlib objects without global state.

matplotlib is imported when a figure is drawn. Save one with `figure.savefig("name.pdf")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.errors import InputError
from ncclean.report.measurements import Measurements
from ncclean.report.plots import Drawing, Series, cosine_drawing, threshold_drawing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which suits any colour vision.
_MATCHED, _MISMATCHED, _OBSERVED = "#0072B2", "#D55E00", "#D3D2CB"
_INK, _SOFT = "#1C1C1A", "#5F5F59"
# By the role of a series. Areas overlap, so the tints of the two colours are opaque.
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
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # keep text as text
    "svg.fonttype": "none",
}


def cosine_distribution(numbers: Measurements, width: float = 5.5) -> Figure:
    """Draw a figure, `width` inches wide, of observed, mismatched and matched cosines.

    Raises `InputError` if no pair was scored.
    """
    if numbers.cosines is None:
        raise InputError("no pair could be scored: there is no distribution to draw")
    return _drawn(cosine_drawing(numbers.cosines, numbers.facts), width, 0.62)


def threshold_curve(
    numbers: Measurements, score: str = "noise_probability", width: float = 5.5
) -> Figure:
    """Draw a figure of the pairs that each threshold on a score keeps, matched and mismatched.

    Their numbers are expected ones. Raises `InputError` for a score that the table does not have.
    """
    curve = numbers.curve(score)
    if curve is None:
        raise InputError(f"the score table has no values of {score}")
    return _drawn(threshold_drawing(curve), width, 0.45)


def rule_overlap(numbers: Measurements, width: float = 4.2) -> Figure:
    """Draw a figure of the Jaccard index of every two rules; the diagonal counts flagged pairs.

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
    """Draw a figure of the noise rates of the shards in the report's table, and the corpus's.

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


def _drawn(drawing: Drawing, width: float, aspect: float) -> Figure:
    """Draw the panels; those after the first become strips below it."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure = _figure(width, aspect)
        heights = [1.0 if panel.is_share else 3.4 for panel in drawing.panels]
        axes = figure.subplots(
            len(heights), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        artists: dict[str, Artist] = {}
        for panel_axes, panel in zip(axes, drawing.panels, strict=True):
            artists |= {series.role: _paint(panel_axes, series) for series in panel.series}
            panel_axes.set(ylabel=panel.label, ylim=(0, panel.top))
            if panel.is_share:  # too short for its label in one line, and for more ticks
                panel_axes.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
                panel_axes.set_ylabel(panel.label.replace(" ", "\n"), fontsize=7.0)
            else:
                panel_axes.yaxis.set_major_formatter("{x:,.0f}")
            for marker in drawing.markers:
                artists[marker.role] = panel_axes.axvline(
                    marker.value, color=_INK, linewidth=0.9, linestyle=_DASHES[marker.role],
                    label=marker.label,
                )  # fmt: skip
        note = f"; {drawing.x_note}" if drawing.x_note else ""
        axes[-1].set(xlabel=drawing.x_label + note, xlim=(drawing.low, drawing.high))
        roles = [series.role for series in drawing.legend]
        roles += [marker.role for marker in drawing.markers]
        handles = [artists[role] for role in roles]
        figure.legend(handles=handles, loc="outside upper left", ncols=3)
        return figure


def _paint(axes: Axes, series: Series) -> Artist:
    style: dict[str, Any] = {"color": _COLOURS[series.role], "label": series.label}
    if series.form == "steps":
        return axes.stairs(series.y, series.x, fill=True, **style)
    if series.form == "area":
        return axes.fill_between(series.x, series.y, linewidth=0, **style)
    (line,) = axes.plot(series.x, series.y, linewidth=_LINE_WIDTHS.get(series.role, 1.5), **style)
    return line


def _figure(width: float, aspect: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, width * aspect), layout="constrained")


def _without_frame(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
