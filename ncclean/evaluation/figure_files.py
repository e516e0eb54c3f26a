"""How figures look, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclean.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "legend.fontsize": 6.5,
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def write_figure(figure: Figure, path: Path) -> None:
    """Write to a file; its ending is the format. Raises `InputError` if it cannot be written."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot takes a file ending in {', '.join(FORMATS)}, got {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
