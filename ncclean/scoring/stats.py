"""Statistics of one scored shard: all that finalize and the summary need to know about it."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclean.data.samples import SkipReason
from ncclean.scoring.null import BINS, Histogram


@dataclass
class ShardStats:
    """Counts by status, histograms of matched and mismatched cosines, and what went wrong.

    `error` is set when the shard broke off: its readable samples have rows, the shard counts as
    failed.
    """

    rows: int
    statuses: dict[str, int]
    matched: Histogram
    mismatched: Histogram
    seconds: float
    error: str | None = None

    @property
    def ok(self) -> int:
        return self.statuses.get(SkipReason.OK.value, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "statuses": self.statuses,
            "matched": _pack(self.matched),
            "mismatched": _pack(self.mismatched),
            "seconds": round(self.seconds, 3),
            "error": self.error,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardStats:
        return cls(
            rows=fields["rows"],
            statuses=fields["statuses"],
            matched=_unpack(fields["matched"]),
            mismatched=_unpack(fields["mismatched"]),
            seconds=fields["seconds"],
            error=fields["error"],
        )


def _pack(histogram: Histogram) -> dict[str, Any]:
    raw = zlib.compress(histogram.counts.astype("<i8").tobytes())
    return {"counts": base64.b64encode(raw).decode(), "total": histogram.total}


def _unpack(fields: dict[str, Any]) -> Histogram:
    counts = np.frombuffer(zlib.decompress(base64.b64decode(fields["counts"])), dtype="<i8")
    if counts.shape != (BINS,):
        raise ValueError(f"a histogram of {counts.shape} bins, expected {BINS}")
    return Histogram(counts.astype(np.int64), fields["total"])
