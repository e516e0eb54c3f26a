"""Draw evaluations: noise (detection, distributions, calibration), similarities and halves.

Similarities are drawn as in Fig. 5 of the NCU paper, halves as in Fig. 4 of the DisNCL paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.base.figure_files import STYLE
from ncclean.evaluation.disentanglement import Disentanglement
from ncclean.evaluation.noise_evaluation import NoiseEvaluation, ScoreFigure
from ncclean.evaluation.similarity import Similarities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours suit any colour vision; dashes help in print.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#8C564B", "#000000", "#6A3D9A"),
)
_DASHES = ("-", "--", "-.", ":")
_CLEAN = "#7F7F7F"
_HISTOGRAM_OF = "similarity"
_BINS = 60
# Okabe and Ito's colours suit any colour vision.
_SERIES = (
    ("negative", "mean of the negatives", "#7F7F7F", "-"),
    ("hardest", "hardest 5 % of the negatives", "#D55E00", "--"),
    ("positive", "own captions", "#0072B2", "-"),
)


def draw_noise(evaluation: NoiseEvaluation, scores: Sequence[ScoreFigure]) -> Figure:
    """Plot a noise evaluation in four panels: ROC, precision-recall, distributions, calibration."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 5.8), layout="constrained")
        axes = figure.subplots(2, 2)
        _draw_curves(axes[0, 0], axes[0, 1], evaluation, scores)
        _draw_distributions(axes[1, 0], evaluation, scores)
        _draw_calibration(axes[1, 1], evaluation)
        for letter, panel in zip("abcd", axes.flat, strict=True):
            panel.set_title(f"({letter}) {panel.get_title()}", loc="left", fontsize=8.5)
            panel.set_title("", loc="center")
    return figure


def _draw_curves(
    roc: Any, recall: Any, evaluation: NoiseEvaluation, scores: Sequence[ScoreFigure]
) -> None:
    noisy = sum(evaluation.noisy.values())
    for number, (figure, score) in enumerate(zip(scores, evaluation.scores, strict=True)):
        report = score.kinds[0].report
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _DASHES[(number + number // len(_COLOURS)) % len(_DASHES)],
        }
        roc.plot(
            figure.false_alarm_rate,
            figure.recall,
            label=f"{score.column} ({report.auroc:.3f})",
            **style,
        )
        recall.plot(
            figure.recall,
            figure.precision,
            label=f"{score.column} ({report.average_precision:.3f})",
            **style,
        )
    roc.plot([0, 1], [0, 1], color=_CLEAN, linewidth=0.6, zorder=0)
    roc.set(title="ROC, all noise", xlabel="clean pairs flagged", ylabel="noisy pairs caught")
    roc.legend(loc="lower right", title="AUROC", title_fontsize=6.5)
    share = noisy / max(noisy + evaluation.clean, 1)
    recall.axhline(share, color=_CLEAN, linewidth=0.6, zorder=0)
    recall.set(title="Precision and recall", xlabel="noisy pairs caught", ylabel="precision")
    recall.legend(loc="lower left", title="average precision", title_fontsize=6.5)
    for panel in (roc, recall):
        panel.set(xlim=(-0.01, 1.01), ylim=(0, 1.02))


def _draw_distributions(
    panel: Any, evaluation: NoiseEvaluation, scores: Sequence[ScoreFigure]
) -> None:
    figure = next((score for score in scores if score.column == _HISTOGRAM_OF), scores[0])
    score = next(score for score in evaluation.scores if score.column == figure.column)
    widths = figure.edges[1:] - figure.edges[:-1]
    panel.set(title=f"Distribution of {figure.column}", xlabel=figure.column, ylabel="density")
    for number, name in enumerate(("clean", *evaluation.noisy)):
        counts = figure.counts[number]
        if not counts.sum():
            continue
        density = counts / (counts.sum() * widths)
        label = f"{name} ({counts.sum():,})"
        if number == 0:
            panel.stairs(density, figure.edges, fill=True, color=_CLEAN, alpha=0.35, label=label)
        else:
            colour = _COLOURS[(number - 1) % len(_COLOURS)]
            panel.stairs(density, figure.edges, color=colour, linewidth=1.1, label=label)
    threshold = score.kinds[0].report.threshold
    if math.isfinite(threshold):
        panel.axvline(threshold, color="black", linewidth=0.7, linestyle=":", label=score.flags)
    panel.set_ylim(0, 1.25 * panel.get_ylim()[1])  # room for the legend
    panel.legend(loc="best")


def _draw_calibration(panel: Any, evaluation: NoiseEvaluation) -> None:
    panel.set(title="Calibration of noise_probability")
    fit = evaluation.calibration
    if fit is None:
        panel.text(0.5, 0.5, "no noise_probability", ha="center", va="center", color=_CLEAN)
        panel.set_axis_off()
        return
    bins = [bin_ for bin_ in fit.bins if bin_.pairs]
    most = max(bin_.pairs for bin_ in bins)
    panel.plot([0, 1], [0, 1], color=_CLEAN, linewidth=0.6, zorder=0)
    # The area of a point is the number of pairs in its bin.
    panel.scatter(
        [bin_.predicted for bin_ in bins],
        [bin_.observed for bin_ in bins],
        s=[12 + 120 * bin_.pairs / most for bin_ in bins],
        color=_COLOURS[0],
        alpha=0.75,
        linewidth=0,
        label=f"pairs, by area (largest {most:,})",
    )
    panel.set(
        xlim=(-0.04, 1.04),
        ylim=(-0.04, 1.06),
        xlabel="mean noise_probability",
        ylabel="share that is noisy",
    )
    lines = [
        f"{name}: {side.expected:,.0f} expected, {side.noisy:,} noisy of {side.pairs:,}"
        for name, side in (("kept", fit.kept), ("dropped", fit.dropped))
    ]
    panel.text(0.98, 0.16, "\n".join(lines), ha="right", va="bottom", fontsize=6.5)
    panel.legend(loc="lower right", handletextpad=0.2)


def draw_similarities(models: Sequence[tuple[str, Similarities]]) -> Figure:
    """Plot the cosines of each model in a separate panel, on shared axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    cosines = [getattr(model, name) for _, model in models for name, *_ in _SERIES]
    low, high = (float(f(f(values) for values in cosines)) for f in (min, max))
    edges = np.linspace(low, max(high, low + 1e-3), _BINS + 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(models), 2.8), layout="constrained")
        axes: Any = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
        for panel, (name, model) in zip(axes, models, strict=True):
            for series, meaning, colour, dashes in _SERIES:
                values = getattr(model, series).numpy()
                panel.hist(values, edges, density=True, color=colour, alpha=0.25)
                mean = values.mean()
                label = f"{meaning}, mean {mean:.3f}"
                panel.axvline(mean, ymax=0.76, color=colour, linestyle=dashes, label=label)
            panel.set(title=name, xlabel="cosine of image and caption")
            panel.legend(loc="upper right")
        axes[0].set_ylabel("density of images")
        axes[0].set_ylim(0, 1.3 * axes[0].get_ylim()[1])  # room for the legend
    return figure


def draw_halves(models: Sequence[Disentanglement], seed: int, points: int = 400) -> Figure:
    """Plot the halves of the first images and captions of each model in a plane, by t-SNE."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from sklearn.manifold import TSNE

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(models), 3.2), layout="constrained")
        axes: Any = figure.subplots(1, len(models), squeeze=False)[0]
        for panel, model in zip(axes, models, strict=True):
            clouds = {
                f"{side}, {half}": getattr(pairs, name)[:points].cpu().numpy()
                for half, pairs in model.pairs.items()
                for side, name in (("images", "image"), ("captions", "text"))
            }
            rows = np.concatenate(list(clouds.values()))
            plane = TSNE(perplexity=min(30.0, len(rows) / 4), init="pca", random_state=seed)
            placed = np.split(
                plane.fit_transform(rows), np.cumsum([len(cloud) for cloud in clouds.values()])[:-1]
            )
            for label, colour, cloud in zip(clouds, _COLOURS, placed, strict=False):
                panel.scatter(*cloud.T, s=3, color=colour, label=label, linewidth=0)
            panel.set(xticks=[], yticks=[], title=model.model)
        axes[0].legend(loc="best", markerscale=2)
    return figure
