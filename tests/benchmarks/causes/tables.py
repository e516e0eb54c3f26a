"""Records of planted causes as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]


def causes_table(record: Record) -> Iterator[str]:
    """How often each planted cause is found, and what is reported beside them."""
    rows = record["rows"]
    pairs: dict[str, list[int]] = defaultdict(list)
    found: dict[str, list[float]] = defaultdict(list)
    reported = [one for row in rows for one in row["reported"]]
    planted = [row for row in rows if row["causes"]]
    for row in planted:
        for cause, count in row["planted"].items():
            pairs[cause].append(count)
            found[cause].append(row["covered"].get(cause, 0.0) if cause in row["found"] else 0.0)
    yield from heading("planted", "corpora", "pairs, mean", "found", "of its pairs, when found")
    for cause in sorted(pairs):
        covered = [share for share in found[cause] if share]
        yield line(
            cause,
            str(len(pairs[cause])),
            f"{np.mean(pairs[cause]):,.0f}",
            f"{len(covered)} of {len(pairs[cause])}",
            percent(float(np.mean(covered))) if covered else "",
        )
    counts = [len(several) for several in pairs.values()]
    hits = sum(bool(share) for several in found.values() for share in several)
    yield line("**all**", str(len(planted)), "", f"{hits} of {sum(counts)}", "")
    false = sum(one["false"] for one in reported)
    yield line("reported groups that are no cause", str(len(rows)), "",
               f"{false} of {len(reported)}", "")  # fmt: skip


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
