"""The style of figures, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.file_names import FIGURE_ENDINGS
from ncclean.base.output_mark import mark
from ncclean.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def marked(kind: str, command: str) -> dict[str, str | None]:
    """Metadata for a figure file that names the command that drew it.

    It has no time of writing: the same numbers give the same bytes.
    """
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    return {"Software" if kind == "png" else "Creator": mark(command), **no_date}


def write_figure(figure: Figure, path: str, command: str) -> None:
    """Write a matplotlib figure to a file or object; the name's ending is the format.

    Raises `InputError` if it cannot be written.
    """
    place = stores.location(path)
    kind = place.suffix.lower()
    if kind not in FIGURE_ENDINGS:
        raise InputError(f"--plot takes a file ending in {', '.join(FIGURE_ENDINGS)}, got {path}")
    with published(place) as aside:
        metadata = marked(kind[1:], command)
        figure.savefig(aside, format=kind[1:], dpi=200, metadata=metadata)
