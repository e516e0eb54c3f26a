"""Records of audits as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]


def coverage_lines(record: Record) -> Iterator[str]:
    """`audit_coverage.py`: how many intervals hold the truth, at the worst noise rate."""
    groups: dict[int, list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault(row["answers"], []).append(row)
    for answers, rows in groups.items():
        noise_rate = min(row["covered"] for row in rows if row["figure"] == "noise_rate")
        fewest, draws = min(row["covered"] for row in rows), rows[0]["draws"]
        yield (
            f"- {answers} answers: {noise_rate} of {draws} intervals of the noise rate; "
            f"{fewest} of the worst of all figures."
        )


_SHOWN_RATES = (0.01, 0.2)
_SHOWN_JUDGES = ("right", "right in 90 %", "useless", "as the estimator")


def judges_table(record: Record) -> Iterator[str]:
    """`audits.judged`: widths of the noise rate's intervals over those by people alone."""
    rows = record["rows"]
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    yield from heading(
        "judge", *(f"{name}, {percent(rate)}" for name in corpora for rate in _SHOWN_RATES),
        "fewest that hold the truth",
    )  # fmt: skip
    for judge in _SHOWN_JUDGES:
        mine = [row for row in rows if row["judge"] == judge]
        noise = {(r["corpus"], r["rate"]): r for r in mine if r["figure"] == "noise_rate"}
        shown = (noise[corpus, rate] for corpus in corpora for rate in _SHOWN_RATES)
        ratios = (
            f"{row['width_judged'] / row['width_alone']:.2f}, "
            f"{row['width_drawn'] / row['width_alone']:.2f}"
            for row in shown
        )
        fewest = min(row[f"covered_{way}"] for row in mine for way in ("judged", "drawn"))
        yield line(judge, *ratios, f"{fewest} of {mine[0]['draws']}")
