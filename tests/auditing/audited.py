"""Score tables whose truth is known, and judges who know it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import norm

from tests.report.tables import write_scores


def write_table(path: Path, pairs: int = 4_000, rate: float = 0.2, near: float = 0.0) -> Path:
    """A table with calibrated noise probabilities; a share `near` of the noise looks matched."""
    rng = np.random.default_rng(0)
    count = round(rate * pairs)
    is_noisy = np.arange(pairs) < count
    cosine = rng.normal(np.where(is_noisy, 0.0, 2.5), 1.0)
    cosine[: round(near * count)] += 2.0
    known = (1 - near) * rate
    null, matched = norm.pdf(cosine), norm.pdf(cosine - 2.5)
    probability = known * null / (known * null + (1 - known) * matched)
    rows = [
        {
            "similarity": float(cosine[n]) / 10,
            "noise_probability": float(probability[n]),
            "osa_noisy": bool(cosine[n] < 0.5),
            "ncu_split": "forget" if n % 10 == 0 else "retain",
            "disncl_clean": bool(cosine[n] > 2.0),
            "is_noisy": bool(is_noisy[n]),
        }
        for n in rng.permutation(pairs)
    ]
    return write_scores(path, rows)


def truth_of(scores: str | Path) -> dict[str, bool]:
    """Whether each pair is mismatched, by uid."""
    table = pq.read_table(scores, columns=["uid", "is_noisy"])
    return dict(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def judge(sample: str | Path, truth: Mapping[str, bool], out: Path, most: int | None = None) -> str:
    """Answer the first pairs of a sample.parquet by the truth, as CSV or JSON."""
    uids = pq.read_table(sample, columns=["uid"]).column("uid").to_pylist()[:most]
    rows: list[dict[str, Any]] = [
        {"uid": uid, "answer": "mismatch" if truth[uid] else "match"} for uid in uids
    ]
    if out.suffix == ".csv":
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["uid", "answer"])
            writer.writeheader()
            writer.writerows(rows)
    else:
        out.write_text(json.dumps(rows), encoding="utf-8")
    return str(out)
