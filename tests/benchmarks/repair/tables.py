"""The rows of `repair.py` as Markdown: means and standard deviations over the corpora."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from record_tables import heading, line
from scipy.stats import t

METRICS = ("retrieval", "rsum", "shape", "colour", "texture", "count")
BASELINE = "clip on all"

Row = Mapping[str, Any]


def metrics_table(rows: Sequence[Row], metrics: Sequence[str] = METRICS) -> Iterator[str]:
    """An arm a line: each metric in percent, and what `rsum` has over `clip` on all."""
    several_noises = len({noise_name(row["noise"]) for row in rows}) > 1
    names = ["noise"] * several_noises + ["arm", *metrics, f"rsum over {BASELINE}"]
    yield from heading(*names)
    for noise in _in_order(noise_name(row["noise"]) for row in rows):
        here = [row for row in rows if noise_name(row["noise"]) == noise]
        for arm in _in_order(row["arm"] for row in here):
            found = [row for row in here if row["arm"] == arm]
            cells = [spread(percent(row, name) for row in found) for name in metrics]
            gain = spread(differences(here, arm, "rsum"), signed=True)
            yield line(*[noise] * several_noises, arm, *cells, gain)


def gains_table(
    rows: Sequence[Row], arms: Sequence[str], metrics: Sequence[str] = ()
) -> Iterator[str]:
    """An arm a line: what its `rsum` has over `clip` on all, and other metrics as they are."""
    yield from heading("arm", f"rsum over {BASELINE}", *(f"{metric}, %" for metric in metrics))
    for arm in arms if not metrics else (BASELINE, *arms):
        found = [row for row in rows if row["arm"] == arm]
        cells = (spread(percent(row, metric) for row in found) for metric in metrics)
        yield line(arm, spread(differences(rows, arm, "rsum"), signed=True), *cells)


def gains_lines(rows: Sequence[Row], arms: Sequence[str]) -> Iterator[str]:
    """The same as a list."""
    for arm in arms:
        yield f"- {arm}: {spread(differences(rows, arm, 'rsum'), signed=True)}"


def gains_line(rows: Sequence[Row], arms: Mapping[str, str]) -> Iterator[str]:
    """What the `rsum` of some arms has over `clip` on all, in a sentence; `arms` names them."""
    gains = (
        f"{spread(differences(rows, arm, 'rsum'), signed=True)} with {name}"
        for arm, name in arms.items()
    )
    yield f"Points of rsum over {BASELINE}: {', '.join(gains)}."


def noise_gains_table(
    rows: Sequence[Row], arms: Sequence[str], noises: Sequence[str]
) -> Iterator[str]:
    """An arm a line, a noise a column: what its `rsum` has over `clip` on all."""
    yield from heading(f"rsum over {BASELINE}", *noises)
    for arm in arms:
        gains = (
            differences([row for row in rows if noise_name(row["noise"]) == noise], arm, "rsum")
            for noise in noises
        )
        yield line(arm, *(spread(gain, signed=True) for gain in gains))


def noise_table(rows: Sequence[Row], metric: str, noises: Sequence[str] = ()) -> Iterator[str]:
    """An arm a line, a noise a column: one metric in percent, of all noises or these."""
    noises = noises or _in_order(noise_name(row["noise"]) for row in rows)
    yield from heading("arm", *noises)
    for arm in _in_order(row["arm"] for row in rows):
        cells = [
            spread(
                percent(row, metric)
                for row in rows
                if row["arm"] == arm and noise_name(row["noise"]) == noise
            )
            for noise in noises
        ]
        yield line(arm, *cells)


def released_lines(rows: Sequence[Row]) -> Iterator[str]:
    """What the released variant of a method adds to the published one.

    The interval is Student's, of the mean over the corpora. The record also has arms with a single
    difference each, `ncu: half of both divergences`.
    """
    for arm in _in_order(row["arm"] for row in rows if row["arm"].endswith(", released")):
        method = arm.removesuffix(", released")
        gains = differences(rows, arm, "rsum", f"{method}, published")
        mean, deviation = statistics.mean(gains), statistics.stdev(gains)
        half = float(t.ppf(0.975, len(gains) - 1)) * deviation / len(gains) ** 0.5
        over = spread(differences(rows, f"{method}, published", "rsum"), signed=True)
        yield (
            f"- `{method}`: released over published {mean:+.1f} points of rsum (95 % interval "
            f"{mean - half:+.1f} to {mean + half:+.1f}); published over `clip` on all pairs {over}."
        )


def differences(
    rows: Sequence[Row], arm: str, metric: str, baseline: str = BASELINE
) -> list[float]:
    """What an arm has over the baseline, corpus by corpus, in percent; none for that arm."""
    if arm == baseline:
        return []
    before = {row["corpus"]: percent(row, metric) for row in rows if row["arm"] == baseline}
    return [
        percent(row, metric) - before[row["corpus"]]
        for row in rows
        if row["arm"] == arm and row["corpus"] in before
    ]


def percent(row: Row, metric: str) -> float:
    """`rsum` is in percent already."""
    value = float(row[metric])
    return value if metric == "rsum" else 100 * value


def spread(values: Iterator[float] | Sequence[float], *, signed: bool = False) -> str:
    """Mean and standard deviation; empty without values."""
    numbers = list(values)
    if not numbers:
        return ""
    mean = f"{statistics.mean(numbers):{'+' if signed else ''}.1f}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.1f}"


def noise_name(noise: Mapping[str, float]) -> str:
    """`ncr 40 %, hard 10 %`; `none` without noise."""
    return ", ".join(f"{kind} {100 * share:g} %" for kind, share in noise.items()) or "none"


def _in_order(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
