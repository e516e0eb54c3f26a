"""The result of a scoring run as the command line and `--json` show it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ncclean.data.samples import SkipReason
from ncclean.storage.finalize import Calibration
from ncclean.storage.manifest import Manifest


@dataclass(frozen=True)
class ScoreSummary:
    """Counts over all shards, the corpus's noise rate with its 95 % interval, and the speed.

    `samples_per_second` counts the samples of this invocation, reading to commit; `seconds` is
    all of it, loading the model and finalizing included.
    """

    rows: int
    ok: int
    failures: dict[str, int]
    shards: int
    shards_failed: int
    failed_shards: dict[str, str]
    noise_rate: float | None
    noise_rate_low: float | None
    noise_rate_high: float | None
    shift: float
    samples_per_second: float | None
    seconds: float
    out: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def summarize(
    manifest: Manifest,
    calibration: Calibration,
    *,
    out: str,
    samples_per_second: float | None,
    seconds: float,
) -> ScoreSummary:
    """Sum up a run that took `seconds` in this invocation."""
    statuses: dict[str, int] = {}
    for stats in manifest.done.values():
        for status, count in stats.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    failed = {
        shard.name: manifest.done[shard.name].error or ""
        for shard in manifest.identity.shards
        if manifest.done[shard.name].error is not None
    }
    null = calibration.null
    ok = SkipReason.OK.value
    return ScoreSummary(
        rows=sum(statuses.values()),
        ok=statuses.get(ok, 0),
        failures={name: statuses[name] for name in sorted(statuses) if name != ok},
        shards=len(manifest.identity.shards),
        shards_failed=len(failed),
        failed_shards=failed,
        noise_rate=null.noise_rate if null else None,
        noise_rate_low=null.noise_rate_low if null else None,
        noise_rate_high=null.noise_rate_high if null else None,
        shift=calibration.shift,
        samples_per_second=round(samples_per_second, 1) if samples_per_second else None,
        seconds=round(seconds, 2),
        out=out,
    )
