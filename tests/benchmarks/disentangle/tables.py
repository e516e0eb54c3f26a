"""The tables of docs/disentanglement.md, from the records of the two disentanglement benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
# By what the page calls them.
COMPRESSION = {
    "beta1 = 0": "beta1 0",
    "beta1 = 0.1, the default": "information",
    "beta1 = 1": "beta1 1",
    "beta1 = 10": "beta1 10",
    "raw distance, beta1 = 0.1": "raw distance, beta1 0.1",
    "raw distance, beta1 = 1": "raw distance, beta1 1",
}
OBJECTIVES = {
    "`information`": "information",
    "its bounded adversary": "bounded adversary",
    "its stronger opponents": "stronger opponents",
    "its raw input": "raw",
    "`reconstruction`": "reconstruction",
    "`none`": "none",
}
_HALVES = ("image_invariant", "text_invariant", "image_exclusive", "text_exclusive")


def compression_table(record: Record) -> Iterator[str]:
    """What beta1 does to the invariant halves."""
    yield from _table(
        record,
        COMPRESSION,
        {
            "cosine, clean pairs": ("cosine/clean", _number),
            "length": ("length/invariant", _number),
            "own facts, image: probe": ("probe/own/image_invariant", _number),
            "variance": ("variance/own/image_invariant", _percent),
            "own facts, caption: probe": ("probe/own/text_invariant", _number),
            "variance ": ("variance/own/text_invariant", _percent),
            "recall at 1": ("recall/invariant", _percent),
        },
    )


def evidence_table(record: Record) -> Iterator[str]:
    """The paper's evidence, MINE and retrieval, with a map fitted between the exclusive halves."""
    yield from _table(
        record,
        OBJECTIVES,
        {
            "MINE, image": ("information/image", _number),
            "MINE, caption": ("information/text", _number),
            "recall at 1: invariant": ("recall/invariant", _percent),
            "exclusive": ("recall/exclusive", _percent),
            "exclusive, fitted map": ("recall/exclusive, fitted", _percent),
        },
    )


def contents_table(record: Record) -> Iterator[str]:
    """Probe and share of the variance of shared and of own facts in each half."""
    names = [name.replace("text", "caption").replace("_", " ") for name in _HALVES]
    yield "| | facts | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    yield from _contents(record)


def clip_facts_table(record: Record) -> Iterator[str]:
    """Probes of each fact, and the variance that shared facts explain, in features and halves."""
    shown = {
        "image": ("shape", "colour", "objects", "ground", *_IMAGE_ONLY),
        "text": ("shape", "colour", "objects", "ground", *_TEXT_ONLY),
    }
    facts = [*shown["image"], *_TEXT_ONLY]
    parts = [f"{side}{half}" for side in shown for half in ("", "_invariant", "_exclusive")]
    names = [name.replace("text", "caption").replace("_", " ") for name in parts]
    yield "| `information` | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for fact in facts:
        cells = [
            _spread(_values(record, "information", f"probe/{fact}/{part}"), _number)
            if fact in shown[part.split("_")[0]]
            else ""
            for part in parts
        ]
        yield f"| {fact} | " + " | ".join(cells) + " |"
    cells = [
        _spread(_values(record, "information", f"variance/shared/{part}"), _percent)
        for part in parts
    ]
    yield "| variance of shared facts | " + " | ".join(cells) + " |"


_IMAGE_ONLY = ("watermark", "grain", "blur", "brightness")
_TEXT_ONLY = ("remark", "date", "price")


def _contents(record: Record) -> Iterator[str]:
    for name, arm in OBJECTIVES.items():
        for kind in ("shared", "own"):
            cells = []
            for half in _HALVES:
                probe = _spread(_values(record, arm, f"probe/{kind}/{half}"), _number)
                share = _spread(_values(record, arm, f"variance/{kind}/{half}"), _percent)
                cells.append(f"{probe}; {share}")
            if cells[0] != "; ":
                yield f"| {name} | {kind} | " + " | ".join(cells) + " |"


def _table(
    record: Record, arms: Mapping[str, str], columns: Mapping[str, tuple[str, Any]]
) -> Iterator[str]:
    yield "| | seeds | " + " | ".join(columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for name, arm in arms.items():
        seeds = [row["seed"] for row in record["rows"] if row["arm"] == arm]
        if seeds:
            cells = [_spread(_values(record, arm, key), form) for key, form in columns.values()]
            yield f"| {name} | {len(seeds)} | " + " | ".join(cells) + " |"


def _values(record: Record, arm: str, key: str) -> list[float]:
    return [row["values"][key] for row in record["rows"] if row["arm"] == arm]


def _spread(values: Sequence[float], form: Any) -> str:
    """Mean, and standard deviation where there are several."""
    if not values:
        return ""
    mean = form(statistics.mean(values))
    if len(values) == 1:
        return mean
    return f"{mean.removesuffix(' %')} ± {form(statistics.stdev(values))}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
