"""Tables of the records of `study.py` and `judgements.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from record_tables import heading, line, percent

Record = Mapping[str, Any]
_KINDS = {"ncr": "single captions", "ncr_image": "all captions of an image"}
_JUDGED = {
    "expert": ("Flickr8k-Expert, tau c", "tau_c"),
    "crowdflower": ("Flickr8k-CF, tau b", "tau_b"),
}
_SCORES = ("similarity", "neg_clip_loss", "clean_posterior")


def detection_table(record: Record) -> Iterator[str]:
    """What a model sees of the noise that it has learnt, mean over the seeds."""
    yield from heading(
        "captions that move", "share", "AUROC, `similarity`", "noise rate, estimated",
        "intervals with the truth",
    )  # fmt: skip
    for (kind, _), rows in _by_noise(row for row in record["rows"] if row["arm"] == "left alone"):
        truth = [row["noisy"] / row["pairs"] for row in rows]
        covered = sum(
            row["low"] <= share <= row["high"] for row, share in zip(rows, truth, strict=True)
        )
        yield line(
            _KINDS[kind],
            percent(float(np.mean(truth))),
            _mean(row["auroc"]["similarity"] for row in rows),
            percent(float(np.mean([row["estimated"] for row in rows]))),
            f"{covered} of {len(rows)}",
        )


def gains_table(record: Record) -> Iterator[str]:
    """What each arm gains in recall at 10 over `clip` on all pairs, by kind of noise at 40 %."""
    yield from heading("arm", *_KINDS.values())
    gains = _gains(record)
    for arm in dict.fromkeys(row["arm"] for row in record["rows"]):
        if arm != "clip on all":
            yield line(arm, *(gains[kind, arm] for kind in _KINDS))


def judgements_table(record: Record) -> Iterator[str]:
    """Kendall's tau of each column with people, the mean and the range of the seeds."""
    yield from heading("judgements", "score", "tau")
    for name, (label, measure) in _JUDGED.items():
        rows = [row for row in record["rows"] if row["table"] == name]
        for score in _SCORES:
            found = [row["scores"][score][measure][0] for row in rows]
            shown = f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"
            yield line(label, f"`{score}`", shown)


def _gains(record: Record) -> dict[tuple[str, str], str]:
    """In points at 40 %, with a 95 % interval over the photographs, by noise and arm."""
    found = {}
    for row in (row for row in record["gains"] if row["rate"] == 0.4):
        gain, low, high = (100 * (row[name] or 0) for name in ("gain", "low", "high"))
        found[row["noise"], row["arm"]] = f"{gain:+.2f} ({low:+.2f} to {high:+.2f})"
    return found


def _by_noise(rows: Any) -> list[tuple[tuple[str, float], list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["noise"], row["rate"]].append(row)
    return sorted(groups.items())


def _mean(values: Any) -> str:
    return f"{np.mean(list(values)):.3f}"
