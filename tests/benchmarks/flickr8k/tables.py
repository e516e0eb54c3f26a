"""Tables of the records of `study.py` and `judgements.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from record_tables import percent

Record = Mapping[str, Any]
_KINDS = {"ncr": "single captions", "ncr_image": "all captions of an image"}
_JUDGED = {
    "expert": ("tau c", "tau_c", "Flickr8k-Expert"),
    "crowdflower": ("tau b", "tau_b", "-CF"),
}
_RATE = 0.4


def detection_lines(record: Record) -> Iterator[str]:
    """What a model sees of the noise that it has learnt, mean over the seeds."""
    rows = [row for row in record["rows"] if row["arm"] == "left alone"]
    rates = sorted({row["rate"] for row in rows})
    for kind, name in _KINDS.items():
        moved = [row for row in rows if row["noise"] == kind]
        cells = []
        for rate in rates:
            found = [row for row in moved if row["rate"] == rate]
            auroc, estimated = (
                float(np.mean(values))
                for values in (
                    [row["auroc"]["similarity"] for row in found],
                    [row["estimated"] for row in found],
                )
            )
            cells.append(f"{auroc:.3f} and {percent(estimated)}")
        covered = sum(row["low"] <= row["noisy"] / row["pairs"] <= row["high"] for row in moved)
        yield f"- {name}: {', '.join(cells)}; {covered} of {len(moved)} intervals hold the truth"


def gains_lines(record: Record) -> Iterator[str]:
    """What arms gain in recall at 10 over `clip` on all pairs, by kind of noise at 40 %.

    Arms whose intervals include 0 with both kinds share a sentence.
    """
    gains: dict[str, dict[str, Sequence[float]]] = {}
    for row in record["gains"]:
        if row["rate"] != _RATE or row["arm"] == "clip on all":
            continue
        interval = [100 * (row[name] or 0) for name in ("gain", "low", "high")]
        gains.setdefault(row["arm"], {})[row["noise"]] = interval
    alike = [
        arm
        for arm, by_kind in gains.items()
        if all(low <= 0 <= high for _, low, high in by_kind.values())
    ]
    for arm, by_kind in gains.items():
        if arm not in alike:
            shown = (by_kind[kind] for kind in _KINDS)
            cells = (f"{gain:+.2f} ({low:+.2f} to {high:+.2f})" for gain, low, high in shown)
            yield f"- {arm}: {', '.join(cells)}"
    means = [gain for arm in alike for gain, _, _ in gains[arm].values()]
    yield ""
    yield (
        f"The others gain {min(means):+.2f} to {max(means):+.2f}, with intervals that include 0: "
        f"{'; '.join(alike)}."
    )


def judgements_line(record: Record) -> Iterator[str]:
    """Kendall's tau of the cosine with people, the mean and the range of the seeds."""
    agreement = []
    for name, (tau, measure, of_which) in _JUDGED.items():
        rows = (row for row in record["rows"] if row["table"] == name)
        found = [row["scores"]["similarity"][measure][0] for row in rows]
        span = f"{min(found):.3f} to {max(found):.3f}"
        agreement.append(f"{tau} {np.mean(found):.3f} ({span}) on {of_which}")
    told = ", ".join(agreement)
    yield f"A small model trained on Flickr8k: {told}, mean and range of three seeds."
