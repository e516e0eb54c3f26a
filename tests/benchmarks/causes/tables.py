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
    pairs: dict[str, list[int]] = defaultdict(list)
    covered: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        for cause, count in row["planted"].items():
            if row["model"] == models[0]:
                pairs[cause].append(count)
            if cause in row["found"]:
                covered[cause, row["model"]].append(row["covered"][cause])
    heads = (head for model in models for head in (f"found with `{model}`", "of its pairs"))
    yield from heading("planted", "corpora", "pairs, mean", *heads)
    for cause in sorted(pairs):
        cells = []
        for model in models:
            shares = covered[cause, model]
            cells.append(f"{len(shares)} of {len(pairs[cause])}")
            cells.append(percent(float(np.mean(shares))) if shares else "")
        yield line(cause, str(len(pairs[cause])), f"{np.mean(pairs[cause]):,.0f}", *cells)
    total = sum(map(len, pairs.values()))
    found = {model: sum(len(covered[cause, model]) for cause in pairs) for model in models}
    planted = len({row["seed"] for row in rows if row["causes"]})
    cells = [cell for model in models for cell in (f"{found[model]} of {total}", "")]
    yield line("**all**", str(planted), "", *cells)
    corpora = str(len({row["seed"] for row in rows}))
    for name, is_so in (
        ("reported groups that are no cause", lambda one: one["false"]),
        (
            "whose interval has the true share",
            lambda one: one["low"] <= one["truth"] <= one["high"],
        ),
    ):
        cells = []
        for model in models:
            reported = [one for row in rows if row["model"] == model for one in row["reported"]]
            cells += [f"{sum(map(is_so, reported))} of {len(reported)}", ""]
        yield line(name, corpora, "", *cells)


def sentences_table(record: Record) -> Iterator[str]:
    """Whether a host with wrong sentences is found, and what else is reported."""
    yield from heading(
        "estimator", "sentences", "corpora", "with the cause", "found", "reported, not a cause"
    )
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for row in record["rows"]:
        groups[row["model"], row["sentences"]].append(row)
    for (model, sentences), rows in groups.items():
        false = sum(one["false"] for row in rows for one in row["reported"])
        planted = sum(row["causes"] for row in rows)
        found = sum(bool(row["found"]) for row in rows)
        yield line(
            f"`{model}`", str(sentences), str(len(rows)), str(planted), str(found), str(false)
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


def classes_table(record: Record) -> Iterator[str]:
    """What is reported of class folders of which two were exchanged."""
    yield from heading("exchanged", "reported")
    for row in record["rows"]:
        groups = (
            f"{cause['kind']} `{cause['label']}`, {cause['pairs']:,} pairs, "
            f"{percent(cause['rate'][0])}"
            for cause in row["reported"]
        )
        yield line(" and ".join(row["exchanged"]) or "none", "; ".join(groups) or "nothing")


def scale_table(record: Record) -> Iterator[str]:
    """Time and memory by the number of pairs."""
    yield from heading(
        "pairs", "groups tested", "seconds", "of processor", "peak memory, MiB", "causes found"
    )
    for row in record["rows"]:
        hits = len(set(row["planted"]) & set(row["reported"]))
        yield line(
            f"{row['rows']:,}",
            f"{row['tested']:,}",
            f"{row['seconds']:,.0f}",
            f"{row['processor_seconds']:,.0f}",
            f"{row['peak_mib']:,}",
            f"{hits} of {len(row['planted'])}",
        )
