"""Formats for the numbers of the page; the script of the page has the same ones."""

from __future__ import annotations

import math

NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"


def count(value: float | None) -> str:
    """A number for the page, such as 12,345."""
    return NONE if value is None else f"{round(value):,}"


def expected(value: float | None) -> str:
    """An expected number of pairs as text, with one decimal below a thousand."""
    if value is None:
        return NONE
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share as text, such as 20.7%, with as many decimals as a small one needs."""
    if value is None or not math.isfinite(value):
        return NONE
    percent = 100 * value
    if percent == 0 or percent >= 1:
        return f"{percent:.1f}%"
    if percent < 0.0005:
        return "<0.001%"
    return f"{percent:.{1 - math.floor(math.log10(percent))}f}%"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with three decimals and a true minus sign, such as −0.123."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}".replace("-", _MINUS)
