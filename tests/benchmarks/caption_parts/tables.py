"""Tables of the records of this family."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]
_KINDS = {
    "foreign_sentence": "a sentence of another scene",
    "hard": "one fact, wherever it is named",
}
_SENTENCES = 5
_SCORES = ("part_noise_probability", "worst cosine", "whole cosine")


def detection_table(rendered: Record, photographs: Record) -> Iterator[str]:
    """Average precision of each score by kind of error, and what is flagged at one half."""
    yield from heading(
        "corpus, what is wrong", *map(_shown, _SCORES), "`worst_part` is right",
        "of the flagged, wrong",
    )  # fmt: skip
    corpora = {
        "rendered": rendered["rows"],
        "Flickr8k": (
            {"kind": "foreign_sentence", **row}
            for row in photographs["rows"]
            if row["what"] == "detection"
        ),
    }
    for corpus, of_corpus in corpora.items():
        for (kind, sentences), rows in _groups(of_corpus, "kind", "sentences"):
            if kind in _KINDS and sentences == _SENTENCES:
                yield line(f"{corpus}, {_KINDS[kind]}", *_cells(rows))


def mending_lines(record: Record) -> Iterator[str]:
    """Recall of each arm, and its gain over all captions in points, with the range of the seeds."""
    rows = record["rows"]
    first = rows[0]["arm"]
    base = {row["seed"]: _recall(row) for row in rows if row["arm"] == first}
    for (arm,), of_arm in _groups(rows, "arm"):
        gains = [100 * (_recall(row) - base[row["seed"]]) for row in of_arm]
        gain = f"{_mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
        recall = percent(_mean(_recall(row) for row in of_arm))
        pairs = f"{round(_mean(row['pairs'] for row in of_arm)):,}"
        yield f"- {arm}, {pairs} pairs: {recall if arm == first else gain}"


def speed_line(record: Record) -> Iterator[str]:
    """Pairs a second with and without parts."""
    rows = record["rows"]
    whole, parts = (
        ", ".join(f"{row['pairs'] / row['seconds'][name]:,.0f}" for row in rows)
        for name in ("whole", "parts")
    )
    counts = ", ".join(str(row["sentences"]) for row in rows)
    yield f"With {counts} sentences: {parts} pairs/s, and {whole} pairs/s without the option."


def _recall(row: Mapping[str, Any]) -> float:
    """Recall at 10, the mean of both directions."""
    return float(row["image_to_text_R@10"] + row["text_to_image_R@10"]) / 2


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in _SCORES:
        yield f"{_mean(row['precision'][name] for row in rows):.3f}"
    shares = [row["named_of_all"] for row in rows if row.get("named_of_all") is not None]
    yield percent(_mean(shares)) if shares else ""
    flagged, false = (sum(row[name] for row in rows) for name in ("flagged", "false"))
    yield percent((flagged - false) / flagged) if flagged else ""


def _groups(
    rows: Iterable[Mapping[str, Any]], *names: str
) -> Iterator[tuple[tuple[Any, ...], list[Mapping[str, Any]]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    yield from groups.items()


def _shown(name: str) -> str:
    return {"worst cosine": "least cosine", "whole cosine": "whole caption"}.get(name, f"`{name}`")


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
