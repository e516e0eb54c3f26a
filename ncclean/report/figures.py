"""The report's figures as matplotlib objects, for papers: no notebook, no global state.

matplotlib is imported when a figure is made. Save one with `figure.savefig("name.pdf")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.errors import InputError
from ncclean.report.numbers import ReportNumbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any colour vision.
_MATCHED, _MISMATCHED, _OBSERVED = "#0072B2", "#D55E00", "#D3D2CB"
_INK, _SOFT = "#1C1C1A", "#5F5F59"
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


def cosine_distribution(numbers: ReportNumbers, width: float = 5.5) -> Figure:
    """Observed, mismatched and matched cosines over the noise probability; `width` in inches.

    Raises `InputError` if no pair was scored.
    """
    cosines = numbers.cosines
    if cosines is None:
        raise InputError("no pair could be scored: there is no distribution to draw")
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure = _figure(width, 0.58)
        upper, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": (3.4, 1), "hspace": 0.09}
        )
        upper.stairs(cosines.observed, cosines.edges, fill=True, color=_OBSERVED, label="observed")
        if cosines.matched is not None and cosines.mismatched is not None:
            upper.plot(cosines.centres, cosines.mismatched, color=_MISMATCHED, label="mismatched")
            upper.plot(cosines.centres, cosines.matched, color=_MATCHED, label="matched")
        known = np.isfinite(cosines.probability)
        lower.plot(cosines.centres[known], cosines.probability[known], color=_INK, linewidth=1.2)
        for value, name, dashes in (
            (numbers.facts.shift, "OSA shift", (0, (5, 3))),
            (cosines.null_median, "null median", (0, (1, 2))),
        ):
            if value is not None and cosines.edges[0] <= value <= cosines.edges[-1]:
                upper.axvline(value, color=_INK, linestyle=dashes, linewidth=0.9, label=name)
                lower.axvline(value, color=_INK, linestyle=dashes, linewidth=0.9)
        upper.set_ylabel(f"pairs per {cosines.width:.3f}")
        upper.set_ylim(bottom=0)
        upper.legend(loc="best")
        lower.set(
            xlabel="cosine of image and caption", ylabel="noise prob.", ylim=(-0.03, 1.03),
            xlim=(cosines.edges[0], cosines.edges[-1]), yticks=(0, 0.5, 1),
        )  # fmt: skip
        return figure


def threshold_curve(
    numbers: ReportNumbers, score: str = "noise_probability", width: float = 5.5
) -> Figure:
    """Pairs that each threshold on a score keeps, split into expected matches and mismatches.

    Raises `InputError` for a score that the table does not have.
    """
    curve = numbers.curve(score)
    if curve is None:
        raise InputError(f"the score table has no values of {score}")
    from matplotlib import rc_context

    kept = curve.kept(curve.pairs)
    right = kept if curve.wrong is None else kept - curve.kept(curve.wrong)
    with rc_context(_STYLE):
        figure = _figure(width, 0.45)
        axes = figure.subplots()
        thresholds = curve.grid.thresholds
        label = "kept" if curve.wrong is None else "kept, expected to match"
        axes.fill_between(thresholds, right, color=_MATCHED, alpha=0.35, linewidth=0, label=label)
        if curve.wrong is not None:
            axes.fill_between(
                thresholds, right, kept, color=_MISMATCHED, alpha=0.75, linewidth=0,
                label="kept, expected to be mismatched",
            )  # fmt: skip
        sign = "below" if curve.keeps_below else "at or above"
        axes.set(
            xlabel=f"pairs with {score} {sign} the threshold are kept", ylabel="pairs kept",
            xlim=(thresholds[0], thresholds[-1]), ylim=(0, max(curve.total, 1) * 1.03),
        )  # fmt: skip
        axes.yaxis.set_major_formatter("{x:,.0f}")
        figure.legend(loc="outside upper left", ncols=2)
        return figure


def rule_overlap(numbers: ReportNumbers, width: float = 4.2) -> Figure:
    """Jaccard index of every two rules as a heat map, with what each flags on the diagonal.

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


def shard_noise_rates(numbers: ReportNumbers, width: float = 5.5) -> Figure:
    """Noise rate of the shards that the report's table shows, by name, with the corpus's rate.

    Raises `InputError` without noise probabilities.
    """
    rows = [row for row in numbers.shards.shown if row.noise_rate is not None]
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
        if numbers.facts.noise_rate is not None:
            axes.axhline(numbers.facts.noise_rate, color=_INK, linewidth=0.9, linestyle=(0, (5, 3)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="shard, by name", ylabel="noise rate")
        return figure


FIGURES: dict[str, Callable[[ReportNumbers], Figure]] = {
    "cosine_distribution": cosine_distribution,
    "threshold_curve": threshold_curve,
    "rule_overlap": rule_overlap,
    "shard_noise_rates": shard_noise_rates,
}


def _figure(width: float, aspect: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, width * aspect), layout="constrained")


def _without_frame(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
