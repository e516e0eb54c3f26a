"""Records of planted causes as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import percent

Record = Mapping[str, Any]


def causes_lines(record: Record) -> Iterator[str]:
    """How often each planted cause is found by each estimator, and what is reported beside them."""
    rows = record["rows"]
    planted = sorted({cause for row in rows for cause in row["planted"]})
    yield f"- Planted: {', '.join(planted)}."
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        total = sum(len(row["planted"]) for row in of_model)
        found: dict[str, list[float]] = defaultdict(list)
        for row in of_model:
            for cause in set(row["planted"]).intersection(row["found"]):
                found[cause].append(row["covered"][cause])
        missed = [cause for cause in planted if cause not in found]
        partly = [
            f"{percent(float(np.mean(shares)))} of the pairs of “{cause}”"
            for cause, shares in sorted(found.items())
            if np.mean(shares) < 1
        ]
        reported = [one for row in of_model for one in row["reported"]]
        false = sum(one["false"] for one in reported)
        covered = sum(one["low"] <= one["truth"] <= one["high"] for one in reported)
        but = ", ".join([*(f"never “{cause}”" for cause in missed), *partly])
        yield (
            f"- `{model}`: {sum(map(len, found.values()))} of {total} found"
            f"{f' ({but})' if but else ''}; {false} of {len(reported)} reported groups "
            f"are no cause; {covered} of {len(reported)} intervals hold the true share."
        )


def structured_lines(record: Record) -> Iterator[str]:
    """What is called a cause where the estimator is only worse, and which causes are found."""
    rows = record["rows"]
    names = list(dict.fromkeys(row["structure"] for row in rows))
    yield f"- Harder groups, by their AUROC or the noise of their vectors: {'; '.join(names)}."
    for has_embeddings, name in ((True, "With embeddings"), (False, "From the table alone")):
        here = [row for row in rows if row["embeddings"] == has_embeddings]
        without = [row for row in here if not row["causes"]]
        planted = [row for row in here if row["causes"]]
        false = [sum(one["false"] for one in row["reported"]) for row in here]
        unsure = sum(len(row["uncertain"]) for row in without)
        found = sum(len({one["is"] for one in row["reported"]} - {""}) for row in planted)
        reported = [one for row in planted for one in row["reported"]]
        covered = sum(one["low"] <= one["truth"] <= one["high"] for one in reported)
        yield (
            f"- {name}: {sum(false)} false causes in {len(here)} corpora, {unsure} groups listed "
            f"apart in the {len(without)} without causes; {found} of "
            f"{sum(len(row['planted']) for row in planted)} planted causes found; {covered} of "
            f"{len(reported)} intervals hold the true share."
        )


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
        proposals = [
            one["proposal"].partition(":")[0] for one in row["reported"] if one["proposal"]
        ]
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
