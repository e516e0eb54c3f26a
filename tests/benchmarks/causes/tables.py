"""Records of planted causes as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]


def causes_table(record: Record) -> Iterator[str]:
    """How often each planted cause is found by each estimator, and what is reported beside them."""
    rows = record["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    planted: dict[str, int] = defaultdict(int)
    covered: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        for cause in row["planted"]:
            planted[cause] += row["model"] == models[0]
            if cause in row["found"]:
                covered[cause, row["model"]].append(row["covered"][cause])
    yield from heading("planted", *(f"`{model}`: found, of its pairs" for model in models))
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cause, count in sorted(planted.items()):
        cells = []
        for model in models:
            shares = covered[cause, model]
            share = f", {percent(float(np.mean(shares)))}" if shares else ""
            cells.append(f"{len(shares)} of {count}{share}")
        alike[tuple(cells)].append(cause)
    for cells, causes in alike.items():
        yield line("; ".join(causes) + " (each)" * (len(causes) > 1), *cells)
    found = {model: sum(len(covered[cause, model]) for cause in planted) for model in models}
    total = sum(planted.values())
    yield line("**all**", *(f"{found[model]} of {total}" for model in models))
    for name, is_so in (
        ("reported groups that are no cause", lambda one: one["false"]),
        (
            "reported groups whose interval holds the true share",
            lambda one: one["low"] <= one["truth"] <= one["high"],
        ),
    ):
        cells = []
        for model in models:
            reported = [one for row in rows if row["model"] == model for one in row["reported"]]
            cells.append(f"{sum(map(is_so, reported))} of {len(reported)}")
        yield line(name, *cells)


def further_lines(
    sentences: Record, classes: Record, class_photographs: Record, photographs: Record
) -> Iterator[str]:
    """What is found of wrong sentences, of exchanged classes and of shifted captions."""
    rows = sentences["rows"]
    planted = [row for row in rows if row["causes"]]
    found = sum(bool(row["found"]) for row in planted)
    false = sum(one["false"] for row in rows for one in row["reported"])
    yield (
        f"- A host with one wrong sentence in each caption of three or five: found in {found} of "
        f"{len(planted)} corpora; {false} false groups in all {len(rows)}."
    )
    exchanged = [row for row in classes["rows"] if row["exchanged"]]
    without = [row for row in classes["rows"] if not row["exchanged"]]
    found = sum(bool(row["reported"]) for row in exchanged)
    false = sum(len(row["reported"]) for row in without)
    yield (
        f"- Two of twelve rendered class folders exchanged: found in {found} of {len(exchanged)} "
        f"corpora; {false} false groups where none were."
    )
    names: dict[bool, list[str]] = {True: [], False: []}
    for row in class_photographs["rows"]:
        labels = " ".join(one["label"] for one in row["reported"])
        is_found = bool(row["exchanged"]) and all(name in labels for name in row["exchanged"])
        assert is_found or not row["reported"]
        names[is_found].append(" and ".join(row["exchanged"]) or "no exchange")
    yield (
        f"- Two of ten classes of CIFAR-10's photographs exchanged: named for "
        f"{', '.join(names[True])}; nothing reported for {', '.join(names[False])}."
    )
    for row in photographs["rows"]:
        proposals = [one["proposal"] for one in row["reported"] if one["proposal"]]
        changed = "with 250 captions shifted, and “boy” for “dog”"
        name = "as it is" if row["corpus"] == "as-it-is" else changed
        groups = ", ".join(f"{one['kind']} `{one['label']}`" for one in row["reported"])
        yield f"- Flickr8k {name}: {'; '.join([groups or 'nothing reported', *proposals])}."


def scale_line(*records: Record) -> Iterator[str]:
    """Time and memory of the largest corpus of each record."""
    for row in (record["rows"][-1] for record in records):
        yield (
            f"- {row['rows']:,} pairs, {row['tested']:,} groups: {row['processor_seconds']:,.0f} s "
            f"of processor, {row['peak_mib']:,} MiB."
        )
