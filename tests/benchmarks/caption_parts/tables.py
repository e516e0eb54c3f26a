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
    "added_detail": "a sentence more, of another scene",
    "hard": "one fact changed wherever it is named",
    "ncr": "another scene's caption",
}
_SCORES = ("part_noise_probability", "worst cosine", "mean cosine", "whole cosine")


def detection_table(record: Record) -> Iterator[str]:
    """Average precision of each score by kind of error, and AUROC of the first one."""
    yield from heading(
        "what is wrong", "sentences", "AUROC", *(f"precision, {_shown(name)}" for name in _SCORES),
        "oracle", "named by `worst_part`", "by cosine",
    )  # fmt: skip
    for (kind, sentences), rows in _groups(record["rows"], "kind", "sentences"):
        if sentences == 1:
            continue
        yield line(_KINDS[kind], str(sentences), *_cells(rows))


def photographs_table(record: Record) -> Iterator[str]:
    """The same for Flickr8k, an estimator a row."""
    yield from heading(
        "seed", "AUROC", *(f"precision, {_shown(name)}" for name in _SCORES), "oracle",
        "named by `worst_part`", "by cosine", "flagged", "right", "calibration error",
    )  # fmt: skip
    rows = [row for row in record["rows"] if row["what"] == "detection"]
    for row in rows:
        flagged = row["flagged"]
        right = (flagged - row["false"]) / flagged
        yield line(
            str(row["seed"]), *_cells([row]), f"{flagged:,}", percent(right),
            f"{row['calibration_error']:.3f}",
        )  # fmt: skip


def calibration_table(record: Record) -> Iterator[str]:
    """Mean probability beside the truth, and what is flagged at one half."""
    yield from heading(
        "what is wrong", "sentences", "wrong captions", "mean probability", "calibration error",
        "flagged of the wrong", "of the right",
    )  # fmt: skip
    for (kind, sentences), rows in _groups(record["rows"], "kind", "sentences"):
        found = [(row["flagged"] - row["false"]) / row["noisy"] for row in rows]
        false = [row["false"] / (row["pairs"] - row["noisy"]) for row in rows]
        yield line(
            _KINDS[kind], str(sentences),
            percent(_mean(row["noisy"] / row["pairs"] for row in rows)),
            percent(_mean(row["mean_probability"] for row in rows)),
            f"{_mean(row['calibration_error'] for row in rows):.3f}",
            percent(_mean(found)), percent(_mean(false)),
        )  # fmt: skip


def half_truth_table(record: Record) -> Iterator[str]:
    """How often the longer, wrong caption is preferred, by score: mean and range over the seeds."""
    rows = [row for row in record["rows"] if row["what"] == "half truth"]
    names = list(rows[0]["wins"])
    yield from heading("corpus", "sentences of the right one", *map(_shown, names))
    for (corpus, sentences), of_corpus in _groups(rows, "corpus", "sentences"):
        cells = []
        for name in names:
            wins = [row["wins"][name] for row in of_corpus]
            cells.append(f"{percent(_mean(wins))} ({percent(min(wins))} to {percent(max(wins))})")
        yield line(corpus, str(sentences), *cells)


def mending_table(record: Record) -> Iterator[str]:
    """Recall of each arm, and its gain over all captions, in points."""
    rows = record["rows"]
    first = rows[0]["arm"]
    yield from heading("arm", "pairs", "R@1", "R@10", "gain at 10", "each seed")
    base = {row["seed"]: _recall(row, 10) for row in rows if row["arm"] == first}
    for (arm,), of_arm in _groups(rows, "arm"):
        gains = [100 * (_recall(row, 10) - base[row["seed"]]) for row in of_arm]
        yield line(
            arm, f"{round(_mean(row['pairs'] for row in of_arm)):,}",
            percent(_mean(_recall(row, 1) for row in of_arm)),
            percent(_mean(_recall(row, 10) for row in of_arm)),
            "" if arm == first else f"{_mean(gains):+.1f}",
            "" if arm == first else ", ".join(f"{gain:+.1f}" for gain in gains),
        )  # fmt: skip


def speed_table(record: Record) -> Iterator[str]:
    """Pairs a second with and without parts, and what is added to encoding them."""
    yield from heading(
        "sentences", "distinct sentences", "pairs/s, whole", "pairs/s, with sentences",
        "added seconds", "encoding the sentences alone", "ratio",
    )  # fmt: skip
    for row in record["rows"]:
        seconds = row["seconds"]
        added = seconds["parts"] - seconds["whole"]
        ratio = f"{added / seconds['encoding']:.2f}" if row["distinct_parts"] else ""
        yield line(
            str(row["sentences"]), f"{row['distinct_parts']:,}",
            *(f"{row['pairs'] / seconds[name]:,.0f}" for name in ("whole", "parts")),
            f"{added:.1f}", f"{seconds['encoding']:.1f}", ratio,
        )  # fmt: skip


def alternatives_table(record: Record) -> Iterator[str]:
    """AUROC of phrases and of edits beside sentences, mean over the seeds."""
    rows = record["rows"]
    names = list(rows[0]["auroc"])
    yield from heading("corpus", "what is wrong", "sentences", *names)
    for (corpus, kind, sentences), found in _groups(rows, "corpus", "kind", "sentences"):
        means = (f"{_mean(row['auroc'][name] for row in found):.3f}" for name in names)
        yield line(corpus, _KINDS[kind], str(sentences), *means)


def _recall(row: Mapping[str, Any], depth: int) -> float:
    """The mean of both directions."""
    return float(row[f"image_to_text_R@{depth}"] + row[f"text_to_image_R@{depth}"]) / 2


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{_mean(row['auroc'][_SCORES[0]] for row in rows):.4f}"
    for name in _SCORES:
        yield f"{_mean(row['precision'][name] for row in rows):.3f}"
    oracles = [row["oracle"]["precision"] for row in rows if "oracle" in row]
    yield f"{_mean(oracles):.3f}" if oracles else ""
    for name in ("named_of_all", "named_by_cosine"):
        shares = [row[name] for row in rows if row.get(name) is not None]
        yield percent(_mean(shares)) if shares else ""


def _groups(
    rows: Iterable[Mapping[str, Any]], *names: str
) -> Iterator[tuple[tuple[Any, ...], list[Mapping[str, Any]]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    yield from groups.items()


def _shown(name: str) -> str:
    return f"`{name}`" if name == _SCORES[0] else name


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
