"""Statistics of one scored shard: everything that finalize and the summary need."""

from __future__ import annotations

import base64
import dataclasses
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ncclean.data.fingerprints import Fingerprints, parsed
from ncclean.data.samples import FurtherMembers, SkipReason
from ncclean.scoring.null import BINS, Histogram


@dataclass(slots=True)
class ShardStats:
    """Numbers of a scored shard: its rows by status, failures, seconds and sizes.

    `error` is set if reading the shard ended early: the samples read before have rows, and the
    shard counts as failed. `trace` then names the process and gives the last lines of the
    traceback. `column_failures` counts pairs for which a function of `--columns` failed.
    `captions_cut` counts captions with more tokens than the model's `context_length`, which is None
    if no model read them. `further` counts images and captions that belong to no row. `times` are
    the seconds that scoring the shard waited for the `store`, the `decode`rs and the `device`, and
    took to `score` and `write`; phases of several shards overlap. `bytes` is the rows' size in
    memory, which decides where the table is split into files. `sources` are the fingerprints of the
    original shards, if this shard is a file of embeddings.
    """

    rows: int
    statuses: dict[str, int]
    seconds: float
    error: str | None = None
    column_failures: ColumnFailures = field(default_factory=lambda: ColumnFailures())
    captions_cut: int = 0
    context_length: int | None = None
    further: FurtherMembers = field(default_factory=FurtherMembers)
    times: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    trace: str = ""
    sources: Fingerprints = field(default_factory=dict)

    @property
    def ok(self) -> int:
        return self.statuses.get(SkipReason.OK.value, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "statuses": self.statuses,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "bytes": self.bytes,
            **({"trace": self.trace} if self.trace else {}),
            **({"sources": self.sources} if self.sources else {}),
            **({"columns": self.column_failures.to_json()} if self.column_failures.counts else {}),
            **(
                {"captions_cut": self.captions_cut, "context_length": self.context_length}
                if self.context_length is not None
                else {}
            ),
            **self.further.to_json(),
            **({"times": times} if (times := _rounded(self.times)) else {}),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardStats:
        return cls(
            rows=fields["rows"],
            statuses={sys.intern(name): count for name, count in fields["statuses"].items()},
            seconds=fields["seconds"],
            error=fields["error"],
            column_failures=ColumnFailures.from_json(fields.get("columns", {})),
            captions_cut=fields.get("captions_cut", 0),
            context_length=fields.get("context_length"),
            further=FurtherMembers.from_json(fields),
            times=fields.get("times", {}),
            trace=fields.get("trace", ""),
            sources=parsed(fields.get("sources", {})),
            bytes=fields.get("bytes", 256 * fields["rows"]),  # by 0.3
        )


def _rounded(times: dict[str, float]) -> dict[str, float]:
    return {phase: round(seconds, 3) for phase, seconds in times.items()}


@dataclass
class ColumnFailures:
    """Numbers of pairs for which a function of `--columns` failed, by its name; with a reason each.

    The reason is that of the first failure.
    """

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str, count: int = 1) -> None:
        self.counts[name] += count
        self.reasons.setdefault(name, reason)

    def __iadd__(self, other: ColumnFailures) -> ColumnFailures:
        for name, count in other.counts.items():
            self.add(name, other.reasons[name], count)
        return self

    def to_json(self) -> dict[str, Any]:
        return {name: [count, self.reasons[name]] for name, count in self.counts.items()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ColumnFailures:
        failures = cls()
        for name, (count, reason) in fields.items():
            failures.add(name, reason, count)
        return failures


@dataclass
class Distributions:
    """Histograms over a shard or corpus: cosines of pairs and of known mismatches, and losses.

    `matched` counts all pairs as given. `losses` has the bins of `scoring.mixture.loss_histogram`.
    `image_means` and `caption_means` count each image's and each caption's mean cosine with its
    known mismatches; older records have none. `groups` are those of `--calibrate-by`, with
    mismatches only among the group's pairs, and without losses; None is the group of the pairs
    without a label. `scores` has the histograms of other scores than the cosine, by name.
    Histograms of several shards can be added in any order.
    """

    matched: Histogram = field(default_factory=Histogram)
    mismatched: Histogram = field(default_factory=Histogram)
    losses: Histogram = field(default_factory=Histogram)
    image_means: Histogram = field(default_factory=Histogram)
    caption_means: Histogram = field(default_factory=Histogram)
    groups: dict[str | None, Distributions] = field(default_factory=dict)
    scores: dict[str, Distributions] = field(default_factory=dict)

    def __iadd__(self, other: Distributions) -> Distributions:
        for name in _NAMES:
            setattr(self, name, getattr(self, name).__iadd__(getattr(other, name)))
        for name in _NESTED:
            for key, theirs in getattr(other, name).items():
                mine = getattr(self, name).setdefault(key, Distributions())
                mine += theirs
        return self

    def group(self, name: str | None) -> Distributions:
        """Return the histograms of a group of pairs, adding empty ones for a new group."""
        return self.groups.setdefault(name, Distributions())

    def score(self, name: str) -> Distributions:
        """Return the histograms of a score, adding empty ones for a new score.

        For `similarity`, the cosine, these are the object's own.
        """
        if name == "similarity":
            return self
        return self.scores.setdefault(name, Distributions())

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: pack_histogram(getattr(self, name)) for name in _NAMES}
        for name in _NESTED:
            if nested := {key: inner.to_json() for key, inner in getattr(self, name).items()}:
                if None in nested:  # JSON has no such name, and a label may be any string
                    fields[_UNLABELLED] = nested.pop(None)
                fields[name] = nested
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Distributions:
        groups, scores = (
            {key: cls.from_json(inner) for key, inner in fields.get(name, {}).items()}
            for name in _NESTED
        )
        if _UNLABELLED in fields:
            groups[None] = cls.from_json(fields[_UNLABELLED])
        histograms = {name: unpack_histogram(fields[name]) for name in _NAMES if name in fields}
        return cls(**histograms, groups=groups, scores=scores)


_MOST_COUNTED = 1 << 48  # in one bin; counts of all bins are summed
_NESTED = ("groups", "scores")
_UNLABELLED = "unlabelled"
_NAMES = tuple(
    field.name for field in dataclasses.fields(Distributions) if field.name not in _NESTED
)


def pack_histogram(histogram: Histogram) -> dict[str, Any]:
    """Pack a histogram into JSON fields, with its counts as base64 of compressed int64.

    The first bytes of all counts come first, as most counts have one or two: a third smaller than
    count by count.
    """
    planes = histogram.counts.astype("<i8").view(np.uint8).reshape(BINS, 8).T
    raw = zlib.compress(planes.tobytes(), 9)
    return {"planes": base64.b64encode(raw).decode(), "units": histogram.units}


def unpack_histogram(fields: dict[str, Any]) -> Histogram:
    """Unpack the fields of `pack_histogram`. Raises `ValueError` for another number of bins."""
    # Until 0.3 they were stored count by count.
    are_planes, size = "planes" in fields, 8 * BINS
    packed = base64.b64decode(fields["planes" if are_planes else "counts"])
    raw = zlib.decompressobj().decompress(packed, size + 1)  # do not unpack a bomb
    units = fields["units"]
    if len(raw) != size or not isinstance(units, int) or abs(units) >= 1 << 63:
        raise ValueError(f"not a histogram of {BINS} bins")
    by_byte = np.frombuffer(raw, np.uint8).reshape((8, BINS) if are_planes else (BINS, 8))
    counts = np.ascontiguousarray(by_byte.T if are_planes else by_byte).view("<i8").ravel()
    if counts.min() < 0 or counts.max() > _MOST_COUNTED:
        raise ValueError("a histogram with counts that no corpus has")
    return Histogram(counts, units)
