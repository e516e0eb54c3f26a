"""The summary of an injection of noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ncclean.data.noise import PERMUTING, noise_count
from ncclean.storage.injection import Injection


@dataclass(frozen=True)
class NoiseSummary:
    """Counts of a finished injection.

    Of `pairs` scorable pairs, `planned` were drawn per kind and `noisy` came out noisy: the rest
    were left in place by the permutation (`left_in_place`) or got a copy of what they had
    (`unchanged`). `shortage` is what could not be drawn of what the rates ask for.
    `already_noisy` pairs were noisy in the input and left alone.
    """

    shards: int
    shards_failed: int
    failed_shards: dict[str, str]
    samples: int
    pairs: int
    planned: dict[str, int]
    noisy: dict[str, int]
    left_in_place: dict[str, int]
    unchanged: dict[str, int]
    shortage: dict[str, int]
    already_noisy: int
    json_added: int
    json_replaced: int
    samples_per_second: float | None
    seconds: float
    out: str


def summarize(run: Injection, failed: dict[str, str], written: int, seconds: float) -> NoiseSummary:
    records = run.done.values()
    noisy, unchanged = _sums(r.noisy for r in records), _sums(r.unchanged for r in records)
    pairs = sum(record.pairs for record in records)
    planned = run.planned or {}
    broken = {name: record.error for name, record in run.done.items() if record.error}
    return NoiseSummary(
        shards=len(run.identity.shards),
        shards_failed=len(broken) + len(failed),
        failed_shards={**broken, **failed},
        samples=sum(record.samples for record in records),
        pairs=pairs,
        planned=planned,
        noisy={kind: noisy.get(kind, 0) for kind in planned},
        left_in_place={
            kind: count - noisy.get(kind, 0) - unchanged.get(kind, 0)
            for kind, count in planned.items()
            if kind in PERMUTING
        },
        unchanged={kind: unchanged.get(kind, 0) for kind in planned},
        shortage={
            kind: missing
            for kind, count in planned.items()
            if kind == "hard"
            and (missing := noise_count(run.identity.rates[kind], pairs) - count) > 0
        },
        already_noisy=sum(record.already_noisy for record in records),
        json_added=sum(record.json_added for record in records),
        json_replaced=sum(record.json_replaced for record in records),
        samples_per_second=round(written / seconds, 1) if written else None,
        seconds=round(seconds, 2),
        out=str(run.out),
    )


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter()))
