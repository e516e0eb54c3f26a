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


def sentences_line(record: Record) -> Iterator[str]:
    """Whether a host with wrong sentences is found, and what else is reported."""
    rows = record["rows"]
    planted = [row for row in rows if row["causes"]]
    found = sum(bool(row["found"]) for row in planted)
    false = sum(one["false"] for row in rows for one in row["reported"])
    yield (
        f"A host with one wrong sentence in each caption of three or five: found in {found} of "
        f"{len(planted)} corpora, by either estimator; {false} false groups in all {len(rows)}."
    )


def photographs_table(record: Record) -> Iterator[str]:
    """What is reported of Flickr8k as it is, and with planted causes."""
    yield from heading("Flickr8k", "pairs", "reported", "share wrong", "proposal")
    for row in record["rows"]:
        name = row["corpus"].replace("-", " ")
        for cause in row["reported"]:
            low, high = (percent(end) for end in cause["rate"][1:])
            group = f"{cause['kind']} `{cause['label']}`, {cause['pairs']:,} pairs"
            rate = f"{percent(cause['rate'][0])} ({low} to {high})"
            yield line(name, f"{row['pairs']:,}", group, rate, cause["proposal"] or "")
        if not row["reported"]:
            yield line(name, f"{row['pairs']:,}", "nothing", "", "")


def classes_line(record: Record) -> Iterator[str]:
    """How often exchanged class names are found."""
    exchanged = [row for row in record["rows"] if row["exchanged"]]
    without = [row for row in record["rows"] if not row["exchanged"]]
    found = sum(bool(row["reported"]) for row in exchanged)
    false = sum(len(row["reported"]) for row in without)
    yield (
        f"Two of twelve class folders exchanged their names: reported in {found} of "
        f"{len(exchanged)} corpora; {false} groups where none did."
    )


def classes_table(record: Record) -> Iterator[str]:
    """What is reported of class folders of which two were exchanged."""
    yield from heading("exchanged", "reported")
    for row in record["rows"]:
        groups = (f"{one['label']}, {one['pairs']:,} pairs" for one in row["reported"])
        yield line(" and ".join(row["exchanged"]) or "none", "; ".join(groups) or "nothing")


def scale_line(record: Record) -> Iterator[str]:
    """Time and memory by the number of pairs."""
    for row in record["rows"]:
        yield (
            f"- {row['rows']:,} pairs, {row['tested']:,} groups tested: {row['seconds']:,.0f} s, "
            f"{row['processor_seconds']:,.0f} s of processor, {row['peak_mib']:,} MiB."
        )
