"""Numbers and tables as text for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclean.base.estimates import Estimate

_MOST_NAMES = 3


@dataclass(frozen=True)
class Table:
    """A table; the first `left` columns are aligned to the left, and the last one if it is prose.

    Without heads, plain facts.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    last_left: bool = False


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, without heads."""
    return Table("", (), tuple(rows), left=2)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 shard`, `1,200 shards`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def by_name(counts: Mapping[str, int]) -> str:
    """The sum of counts, and the largest ones by name: `12 (depth.png 10, seg.png 2)`."""
    largest = sorted(counts.items(), key=lambda one: -one[1])
    names = ", ".join(f"{name} {count:,}" for name, count in largest[:_MOST_NAMES])
    others = ", ..." if len(largest) > _MOST_NAMES else ""
    return f"{sum(counts.values()):,} ({names}{others})"


def file_size(size: float) -> str:
    """A size in bytes as text, such as `12.3 MB` or `9.6 kB`."""
    return f"{size / 1e6:,.1f} MB" if size == 0 or size >= 1e5 else f"{size / 1e3:,.1f} kB"


def share(value: float | None, digits: int = 1) -> str:
    """A share as text, `12.3%`; `-` for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}%}"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number as text, `0.123`; `-` for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def threshold_text(threshold: float) -> str:
    """Return four significant digits of a threshold, all from 1,000 on: 12345 is not 1.234e+04."""
    return f"{threshold:.{4 if abs(threshold) < 1000 else 15}g}"


def interval(rate: Estimate, called: str = "95 % interval ") -> str:
    """An estimate as text, `20.1% (95 % interval 18.9% to 21.3%)`.

    Returns the interval alone if the value is unknown, `-` if neither is known.
    """
    if not rate.has_interval:
        return share(rate.value)
    if not rate.is_known:
        return f"{share(rate.low)} to {share(rate.high)}"
    return f"{share(rate.value)} ({called}{share(rate.low)} to {share(rate.high)})"


def stated_rate(rate: Estimate) -> str:
    """Return an estimated share as text: its upper bound if it may be 0, else as `interval`."""
    if not may_be_clean(rate):
        return interval(rate)
    return f"{short_rate(rate)} ({share(rate.value)} fits best, 0 is possible)"


def short_rate(rate: Estimate) -> str:
    """An estimated share in few words."""
    return f"at most {share(rate.high)}" if may_be_clean(rate) else share(rate.value)


def may_be_clean(rate: Estimate) -> bool:
    """Whether an estimate above 0 has an interval that begins there."""
    return rate.low == 0 < rate.value


def percentage(metric: str, value: float | None, *, is_signed: bool = False) -> str:
    """A metric as text: shares as percentages; `rsum` is a sum of percentages already."""
    if value is None:
        return "-"
    sign = "+" if is_signed else ""
    if metric.endswith("rsum"):
        return f"{value:{sign}.1f}"
    return f"{100 * value:{sign}.1f}" if is_signed else f"{100 * value:.1f}%"


def model_label(model: str, pretrained: str) -> str:
    """A model with its pretrained tag, if it may have several."""
    return model if pretrained in ("bundled", "local", "hub") else f"{model} {pretrained}"


def skipped_counts(skipped: Mapping[str, int]) -> str:
    """Unusable samples as text, such as `3 image_corrupt, 1 caption_missing`."""
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())


def hours(count: float) -> str:
    """A duration as text: `2.50 hours`, `12.3 minutes` or `4.5 seconds`."""
    if count < 1 / 60:
        return f"{3600 * count:,.1f} seconds"
    return f"{60 * count:,.1f} minutes" if count < 1 else f"{count:,.2f} hours"


def on_workers(clock: float, workers: int, busy: int) -> str:
    """Return elapsed hours, with the number of busy workers if not all are."""
    rest = f", of which at most {busy:,} can be busy: a shard is one worker's"
    return f"{hours(clock)} on {counted(workers, 'worker')}" + (rest if busy < workers else "")


def clock_time(seconds: float) -> str:
    """Seconds as text: `0:42`, `12:05`, `3:20:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
