"""Records of audits as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]
_RULES = ("p >= 0.5", "worst tenth")
_FIGURES = ("precision", "recall", "kept")


def coverage_table(record: Record) -> Iterator[str]:
    """`audit_coverage.py`: how many intervals hold the truth, a corpus a line."""
    names = [f"{rule}: {figure}" for rule in _RULES for figure in _FIGURES]
    yield from heading(
        "answers", "calibration", "mismatched", "strata without", "noise rate",
        *(f"`{n}`" for n in names),
    )  # fmt: skip
    corpora: dict[tuple[int, float, float], dict[str, Any]] = {}
    for row in record["rows"]:
        corpus = (
            row.get("answers", record["settings"].get("answers")),
            row["near_misses"],
            row["rate"],
        )
        corpora.setdefault(corpus, {})[row["figure"]] = row
    for (answers, near_misses, rate), of_corpus in corpora.items():
        first = of_corpus["noise_rate"]
        without = f"{first['strata_without_mismatch']:.1f} of {first['strata']}"
        covered = [
            str(of_corpus[name]["covered"]) if name in of_corpus else ""
            for name in ("noise_rate", *names)
        ]
        kind = "blind to near misses" if near_misses else "right"
        yield line(str(answers), kind, percent(rate), without, *covered)


_WAYS = {"judged": "within strata", "drawn": "by the judge"}


def judges_table(record: Record) -> Iterator[str]:
    """`audits.judged`: widths of the noise rate's intervals over those by people alone."""
    rates = [rate for rate in dict.fromkeys(row["rate"] for row in record["rows"]) if rate]
    yield from heading(
        "estimator", "judge", "people's pairs", *(percent(rate) for rate in rates),
        "bound", "fewest that hold the truth",
    )  # fmt: skip
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault((row["corpus"], row["judge"]), []).append(row)
    for (corpus, judge), rows in groups.items():
        noise = {row["rate"]: row for row in rows if row["figure"] == "noise_rate"}
        for way, name in _WAYS.items():
            ratios = (
                f"{noise[rate][f'width_{way}'] / noise[rate]['width_alone']:.2f}" for rate in rates
            )
            bounds = [noise[rate]["bound"] for rate in rates]
            bound = f"{min(bounds):.2f} to {max(bounds):.2f}" if way == "judged" else ""
            fewest = min(row[f"covered_{way}"] for row in rows)
            yield line(corpus, judge, name, *ratios, bound, f"{fewest} of {rows[0]['draws']}")
