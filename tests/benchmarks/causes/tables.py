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
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for cause in row["planted"] if row["causes"] else ():
            found[cause].append(row["covered"].get(cause, 0.0) if cause in row["found"] else 0.0)
    yield from heading("planted", "found", "of its pairs")
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cause, shares in sorted(found.items()):
        covered = [share for share in shares if share]
        of_its_pairs = percent(float(np.mean(covered))) if covered else ""
        alike[f"{len(covered)} of {len(shares)}", of_its_pairs].append(cause)
    for (count, of_its_pairs), causes in alike.items():
        each = " each" if len(causes) > 1 else ""
        yield line("; ".join(causes), count + each, of_its_pairs)
    reported = [group for row in rows for group in row["reported"]]
    false = sum(group["false"] for group in reported)
    yield line("reported groups that are no cause", f"{false} of {len(reported)}", "")


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


def scale_line(record: Record) -> Iterator[str]:
    """Time and memory of the largest table."""
    row = record["rows"][-1]
    yield (
        f"{row['rows']:,} pairs, {row['tested']:,} groups tested: {row['seconds']:,.0f} s, "
        f"{row['processor_seconds']:,.0f} s of processor, {row['peak_mib']:,} MiB."
    )
