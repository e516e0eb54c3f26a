"""DisNCL's Fig. 4: the halves of held-out pairs in two dimensions, and the facts each predicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from disentangle.report import PARTS, DisentanglementReport
from ncclean.base.figure_files import write_figure

_NAMES = {
    "image_invariant": "image, invariant",
    "text_invariant": "caption, invariant",
    "image_exclusive": "image, exclusive",
    "text_exclusive": "caption, exclusive",
}
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73")


def projected(
    parts: Mapping[str, torch.Tensor], points: int = 400, seed: int = 0
) -> dict[str, np.ndarray]:
    """The first `points` pairs' halves, L2-normalised, side by side in a plane by t-SNE."""
    from sklearn.manifold import TSNE

    values = [F.normalize(parts[name][:points].float(), dim=1).cpu().numpy() for name in _NAMES]
    rows = np.concatenate(values)
    perplexity = min(30.0, (len(rows) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(rows)
    return dict(zip(_NAMES, np.split(plane, len(_NAMES)), strict=True))


def save_figure(report: DisentanglementReport, plane: Mapping[str, np.ndarray], path: str) -> None:
    """Draw to a file; its ending is the format. Raises `InputError` if it cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 8.0, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (name, points), colour in zip(plane.items(), _COLOURS, strict=True):
            left.scatter(*points.T, s=3, color=colour, label=_NAMES[name], linewidth=0)
        left.set(xticks=[], yticks=[], title="t-SNE of the halves")
        left.legend(fontsize=6.5, markerscale=2)
        table = np.array([[probe.read_from[part] for part in PARTS] for probe in report.facts])
        if table.size:
            image = right.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            right.set_xticks(range(len(PARTS)), [p.replace("_", "\n") for p in PARTS], fontsize=6)
            right.set_yticks(
                range(len(report.facts)), [f"{p.fact} ({p.shown_by})" for p in report.facts]
            )
            right.set_title("read by a linear probe")
            figure.colorbar(image, ax=right)
        else:
            right.set_axis_off()
    write_figure(figure, path, "disentangle.run")
