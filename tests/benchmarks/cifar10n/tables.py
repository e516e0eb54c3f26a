"""Records of people's label errors as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]
_LABELS = ("worse", "random1", "aggregate")
_SCORES = {
    "similarity": "`similarity`",
    "neg_clip_loss": "`neg_clip_loss`",
    "cleanlab": "cleanlab, same embeddings,",
}
_AUDITED = 300
# Arms that decide nothing: they are neither controls nor differ from `clip` on all.
_UNDECIDED = ("left alone", "clip, selected by itself", "clip, selected after 300 answers", "bayes")
# Weights of the record that gain less than those shown.
_ALIKE = (
    "1 - `noise_probability`",
    "drop `noise_probability` >= 0.5",
    "drop the lowest cosines, as many as estimated",
)


def scores_line(record: Record) -> Iterator[str]:
    """`study.py`: AUROC of each score by label set."""
    auroc = {(row["label"], row["score"]): row["auroc"] for row in record["detection"]}
    scores = (
        f"{name} {', '.join(f'{auroc[label, score]:.3f}' for label in _LABELS)}"
        for score, name in _SCORES.items()
    )
    yield f"On {', '.join(f'`{label}`' for label in _LABELS)}: {'; '.join(scores)}."


def rate_table(record: Record) -> Iterator[str]:
    """`study.py`: the noise rate that random mismatches let one see, and what an audit mends."""
    yield from heading(
        "labels", "AUROC, `similarity`", "wrong", "noise rate, interval", "errors found at .5",
        "calibration error", f"after {_AUDITED} answers", "audits that hold the truth",
    )  # fmt: skip
    for label in _LABELS:
        score, rate, found, audit = (
            next(row for row in record[name] if row["label"] == label and fits(row))
            for name, fits in {
                "detection": lambda row: row["score"] == "similarity",
                "rows": lambda row: row["calibrated_on"] == "similarity",
                "near_misses": lambda row: row["words"] == "of the captions",
                "audits": lambda row: row["answers"] == _AUDITED,
            }.items()
        )
        yield line(
            f"`{label}`",
            f"{score['auroc']:.3f}",
            percent(rate["true"]),
            f"{percent(rate['low'])} to {percent(rate['high'])}",
            percent(found["found_either"]),
            f"{audit['error_before']:.3f}",
            f"{audit['error_after']:.3f}",
            f"{audit['covered']['noise_rate']} of {audit['draws']}",
        )


def repair_line(record: Record) -> Iterator[str]:
    """`study.py`: zero-shot accuracy on photographs that no model has seen."""
    gains = (
        f"{row['arm']} {_gain(row)}"
        for row in record["repair"]
        if row["arm"] not in _UNDECIDED and _gain(row)
    )
    yield f"Points over `clip` on all: {'; '.join(gains)}."


def forgetting_list(record: Record) -> Iterator[str]:
    """`forgetting.py`: the gain of each arm over `clip` on all, run by run."""
    arms: dict[str, list[str]] = {}
    for row in record["rows"]:
        if gain := _gain(row):
            arms.setdefault(row["arm"], []).append(gain)
    yield from (f"- {arm}: {', '.join(gains)}" for arm, gains in arms.items())


def probe_line(record: Record) -> Iterator[str]:
    """`probe.py`: what the weights of its images do to a probe on people's worst labels."""
    gains = (
        f"{row['weights']} {'refused: all weights are 0' if 'refused' in row else _gain(row)}"
        for row in record["rows"]
        if row["labels"] == _LABELS[0] and row["weights"] not in _ALIKE
        if "refused" in row or _gain(row)
    )
    yield f"Points over equal weights: {'; '.join(gains)}."


def judges_table(record: Record) -> Iterator[str]:
    """`judges.py`: widths of the noise rate's intervals, in points; the mean over single people."""
    yield from heading(
        "labels", "150 answers", "and 5,000 of the judge", "150 drawn by the judge",
        "300 answers",
    )  # fmt: skip
    for label in _LABELS:
        rows = [row for row in record["rows"] if row["label"] == label]
        alone = {row["people"]: row for row in rows if row["way"] == "people"}
        beside, drawn = (
            [row for row in rows if row["way"] == way and row["judge"].startswith("random")]
            for way in ("people and judge", "people, drawn by the judge")
        )
        widths = (
            f"{100 * np.mean([row['width noise_rate'] for row in those]):.1f}"
            for those in ([alone[150]], beside, drawn, [alone[300]])
        )
        yield line(f"`{label}`", *widths)


def _gain(row: Mapping[str, Any]) -> str:
    """In points, with its interval; nothing for the baseline."""
    if row["gain_low"] == row["gain_high"]:
        return ""
    gain, low, high = (f"{100 * row[name]:+.1f}" for name in ("gain", "gain_low", "gain_high"))
    return f"{gain} ({low} to {high})"
