"""Format numbers as the page's script does, and make untrusted text safe."""

from __future__ import annotations

import math
import re

from ncclean.base.visible_text import visible

NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_SPACES = re.compile(r"[ \t\n]+")


def count(value: float | None) -> str:
    """Return a number as the page writes it, such as 12,345."""
    return NONE if value is None else f"{round(value):,}"


def expected(value: float | None) -> str:
    """Return an expected number of pairs as text, with one decimal below a thousand."""
    if value is None:
        return NONE
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share as text, such as 20.7%, with as many decimals as a small one needs."""
    if value is None or not math.isfinite(value):
        return NONE
    percent = 100 * value
    if percent == 0 or percent >= 1:
        return f"{percent:.1f}%"
    if percent < 0.0005:
        return "<0.001%"
    return f"{percent:.{1 - math.floor(math.log10(percent))}f}%"


def decimal(value: float | None, digits: int = 3) -> str:
    """Return a number with three decimals and a true minus sign, such as −0.123."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}".replace("-", _MINUS)


def shown_text(text: str, most_bytes: int) -> tuple[str, int]:
    """Cut a caption to about `most_bytes` of UTF-8; also return how many characters are omitted.

    Control characters, such as those that reverse the direction of writing, become visible
    (`⟨U+202E⟩`). Runs of white space become one blank.
    """
    # Cut first: a caption may have a megabyte.
    head = text[: 2 * most_bytes]
    head = _SPACES.sub(" ", head).strip()
    pieces, size, taken = [], 0, 0
    for character in head:
        piece = visible(character)
        size += len(piece.encode("utf-8", "replace"))
        if size > most_bytes:
            break
        pieces.append(piece)
        taken += 1
    left_out = len(head) - taken + max(len(text) - 2 * most_bytes, 0)
    return "".join(pieces), left_out
