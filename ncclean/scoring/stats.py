"""Statistics of one scored shard: all that finalize and the summary need to know about it."""

from __future__ import annotations

import base64
import sys
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ncclean.data.samples import SkipReason
from ncclean.scoring.null import BINS, Histogram


@dataclass(slots=True)
class ShardStats:
    """Counts by status, and what went wrong.

    `error` is set when the shard broke off: its readable samples have rows, the shard counts as
    failed.
    """

    rows: int
    statuses: dict[str, int]
    seconds: float
    error: str | None = None

    @property
    def ok(self) -> int:
        return self.statuses.get(SkipReason.OK.value, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "statuses": self.statuses,
            "seconds": round(self.seconds, 3),
            "error": self.error,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardStats:
        return cls(
            rows=fields["rows"],
            statuses={sys.intern(name): count for name, count in fields["statuses"].items()},
            seconds=fields["seconds"],
            error=fields["error"],
        )


@dataclass
class Cosines:
    """Histograms of the matched and the known mismatched cosines, of a shard or of a corpus.

    They add up; a corpus of 100,000 shards keeps one pair of them, not one for each shard.
    """

    matched: Histogram = field(default_factory=Histogram)
    mismatched: Histogram = field(default_factory=Histogram)

    def __iadd__(self, other: Cosines) -> Cosines:
        self.matched += other.matched
        self.mismatched += other.mismatched
        return self

    def __isub__(self, other: Cosines) -> Cosines:
        self.matched -= other.matched
        self.mismatched -= other.mismatched
        return self

    def to_json(self) -> dict[str, Any]:
        return {"matched": _pack(self.matched), "mismatched": _pack(self.mismatched)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Cosines:
        return cls(_unpack(fields["matched"]), _unpack(fields["mismatched"]))


def _pack(histogram: Histogram) -> dict[str, Any]:
    raw = zlib.compress(histogram.counts.astype("<i8").tobytes())
    return {"counts": base64.b64encode(raw).decode(), "total": histogram.total}


def _unpack(fields: dict[str, Any]) -> Histogram:
    counts = np.frombuffer(zlib.decompress(base64.b64decode(fields["counts"])), dtype="<i8")
    if counts.shape != (BINS,):
        raise ValueError(f"a histogram of {counts.shape} bins, expected {BINS}")
    return Histogram(counts.astype(np.int64), fields["total"])
