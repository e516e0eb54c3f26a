"""Records of audits as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]


def coverage_line(record: Record) -> Iterator[str]:
    """`audit_coverage.py`: how many intervals hold the truth, at the worst noise rate."""
    groups: dict[int, list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault(row["answers"], []).append(row)
    counts = (
        f"{min(row['covered'] for row in rows if row['figure'] == 'noise_rate')} and "
        f"{min(row['covered'] for row in rows)} with {answers} answers"
        for answers, rows in groups.items()
    )
    draws = record["rows"][0]["draws"]
    yield f"Of {draws} intervals of the noise rate, and of the worst figure: {', '.join(counts)}."


_SHOWN_RATES = (0.01, 0.2)
_SHOWN_JUDGES = ("right", "right in 90 %", "useless", "as the estimator")


def judges_line(record: Record) -> Iterator[str]:
    """`audits.judged`: widths of the noise rate's intervals over those by people alone."""
    shown = []
    for judge in _SHOWN_JUDGES:
        widths = [
            row["width_judged"] / row["width_alone"]
            for row in record["rows"]
            if row["judge"] == judge
            if row["figure"] == "noise_rate" and row["rate"] in _SHOWN_RATES
        ]
        low, high = f"{min(widths):.2f}", f"{max(widths):.2f}"
        shown.append(f"{judge}: {low}" + f" to {high}" * (low != high))
    rows = [row for row in record["rows"] if row["judge"] in _SHOWN_JUDGES]
    fewest = min(row[f"covered_{way}"] for row in rows for way in ("judged", "drawn"))
    covered = f"{fewest} of {rows[0]['draws']}"
    yield f"Judge {'; '.join(shown)}. At least {covered} intervals hold the truth."
