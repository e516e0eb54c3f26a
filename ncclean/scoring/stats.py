"""Statistics of one scored shard: all that finalize and the summary need to know about it."""

from __future__ import annotations

import base64
import dataclasses
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
class Distributions:
    """Histograms over a shard or a corpus: cosines of the pairs, of known mismatches, and losses.

    They add up, in any order; a corpus of 100,000 shards keeps one set of them, not one for each
    shard. `losses` has the bins of `scoring.mixture.loss_histogram`. `image_means` and
    `caption_means` hold each image's and each caption's mean cosine with what it is known not to
    belong to; the records of older runs have none. `groups` are those of `--calibrate-by`, with
    mismatches among the pairs of the group alone, and without losses.
    """

    matched: Histogram = field(default_factory=Histogram)
    mismatched: Histogram = field(default_factory=Histogram)
    losses: Histogram = field(default_factory=Histogram)
    image_means: Histogram = field(default_factory=Histogram)
    caption_means: Histogram = field(default_factory=Histogram)
    groups: dict[str, Distributions] = field(default_factory=dict)

    def __iadd__(self, other: Distributions) -> Distributions:
        for name in _NAMES:
            setattr(self, name, getattr(self, name).__iadd__(getattr(other, name)))
        for group, distributions in other.groups.items():
            self.group(group).__iadd__(distributions)
        return self

    def __isub__(self, other: Distributions) -> Distributions:
        for name in _NAMES:
            setattr(self, name, getattr(self, name).__isub__(getattr(other, name)))
        for group, distributions in other.groups.items():
            self.group(group).__isub__(distributions)
        return self

    def group(self, name: str) -> Distributions:
        """Those of a group, empty at first."""
        return self.groups.setdefault(name, Distributions())

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: pack_histogram(getattr(self, name)) for name in _NAMES}
        if self.groups:
            fields["groups"] = {name: group.to_json() for name, group in self.groups.items()}
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Distributions:
        groups = {name: cls.from_json(group) for name, group in fields.get("groups", {}).items()}
        histograms = {name: unpack_histogram(fields[name]) for name in _NAMES if name in fields}
        return cls(**histograms, groups=groups)


_NAMES = tuple(each.name for each in dataclasses.fields(Distributions) if each.name != "groups")


def pack_histogram(histogram: Histogram) -> dict[str, Any]:
    """JSON fields: `counts` as base64 of zlib of little-endian int64, `units` as `Histogram`."""
    raw = zlib.compress(histogram.counts.astype("<i8").tobytes())
    return {"counts": base64.b64encode(raw).decode(), "units": histogram.units}


def unpack_histogram(fields: dict[str, Any]) -> Histogram:
    """The histogram that `pack_histogram` packed. Raises `ValueError` for other bins."""
    counts = np.frombuffer(zlib.decompress(base64.b64decode(fields["counts"])), dtype="<i8")
    if counts.shape != (BINS,):
        raise ValueError(f"a histogram of {counts.shape} bins, expected {BINS}")
    return Histogram(counts.astype(np.int64), fields["units"])
