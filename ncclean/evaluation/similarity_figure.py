"""The similarity distributions of one model or of two, as Fig. 5 of the NCU paper draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclean.base.figure_files import STYLE, write_figure
from ncclean.evaluation.similarity import Similarities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 60
# Okabe and Ito's colours suit any colour vision.
_SERIES = (
    ("negative", "mean of the negatives", "#7F7F7F", "-"),
    ("hardest", "hardest 5 % of the negatives", "#D55E00", "--"),
    ("positive", "own captions", "#0072B2", "-"),
)


def save_similarity_figure(models: Sequence[tuple[str, Similarities]], path: str) -> None:
    """Plot the cosines of models to a file; its ending is the format. Raises `InputError`."""
    write_figure(draw_similarities(models), path, "evaluate similarity")


def draw_similarities(models: Sequence[tuple[str, Similarities]]) -> Figure:
    """Plot the cosines of each model in a panel of its own, on shared axes."""
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
