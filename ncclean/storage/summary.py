"""The result of a scoring run as the command line and `--json` show it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ncclean.data.samples import SkipReason
from ncclean.scoring.null import GroupRate
from ncclean.storage.finalize import Calibration
from ncclean.storage.manifest import Manifest


@dataclass(frozen=True)
class ScoreSummary:
    """Counts over all shards, the corpus's noise rate with its 95 % interval, and the speed.

    `samples_per_second` counts the samples of this invocation, reading to commit; `seconds` is
    all of it, loading the model and finalizing included. `groups` are those of
    `calibrate_by`.
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
    calibrate_by: str | None = None
    groups: list[GroupRate] = field(default_factory=list)

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
    noise_rate, noise_rate_low, noise_rate_high = calibration.noise
    ok = SkipReason.OK.value
    return ScoreSummary(
        rows=sum(statuses.values()),
        ok=statuses.get(ok, 0),
        failures={name: statuses[name] for name in sorted(statuses) if name != ok},
        shards=len(manifest.identity.shards),
        shards_failed=len(failed),
        failed_shards=failed,
        noise_rate=noise_rate,
        noise_rate_low=noise_rate_low,
        noise_rate_high=noise_rate_high,
        calibrate_by=manifest.identity.options.get("calibrate_by"),
        groups=list(calibration.group_rates),
        shift=calibration.shift,
        samples_per_second=round(samples_per_second, 1) if samples_per_second else None,
        seconds=round(seconds, 2),
        out=out,
    )
