"""What a scoring run has done so far, and whether another run may go on with it.

`manifest.jsonl` starts with what the run is made of (input, model, options) and gains a record for
each finished shard. Records are appended after the shard's part is in place, so one that is there
is true; a last line cut short by a crash is ignored and its shard done again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from upath import UPath

from ncclean.data.shards import ShardRef
from ncclean.errors import ResumeError
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.log import Log, exists, open_log

NAME = "manifest.jsonl"


@dataclass(frozen=True)
class RunIdentity:
    """Everything that the parts of a run depend on."""

    model: dict[str, str]
    options: dict[str, Any]
    shards: list[ShardRef]
    version: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> RunIdentity:
        shards = [ShardRef(**shard) for shard in fields.pop("shards")]
        return cls(shards=shards, **fields)


@dataclass
class Manifest:
    """The state of a run; `done` maps the names of committed shards to their statistics.

    Open one with `create` or `load`, which take a lock on a local file: two runs on one output
    are refused. Object stores have no locks.
    """

    path: UPath
    identity: RunIdentity
    done: dict[str, ShardStats] = field(default_factory=dict)
    scored_versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    distributions: Distributions = field(
        default_factory=Distributions
    )  # of all committed shards together
    noise_shift: float | None = None  # of the estimator, once it has been estimated
    _broken_off: dict[str, Distributions] = field(default_factory=dict)  # of shards to do again
    _log: Log | None = None

    @classmethod
    def create(cls, path: UPath, identity: RunIdentity) -> Manifest:
        manifest = cls(path, identity)
        manifest._log, _ = open_log(path)
        manifest._log.clear()
        manifest._append({"kind": "run", **identity.to_json()})
        return manifest

    @classmethod
    def load(cls, path: UPath) -> Manifest | None:
        """The manifest at `path`, or None if there is none (or not even its first record)."""
        if not exists(path):
            return None
        log, records = open_log(path)
        first = next(records, {})
        if first.pop("kind", None) != "run":
            log.close()
            return None
        manifest = cls(path, RunIdentity.from_json(first), _log=log)
        for record in records:
            if record["kind"] == "part":
                manifest._take(
                    record["shard"],
                    (record["size"], record["version"]),
                    ShardStats.from_json(record),
                    Distributions.from_json(record),
                )
            elif record["kind"] == "noise_shift":
                manifest.noise_shift = record["value"]
        return manifest

    def commit(self, shard: ShardRef, stats: ShardStats, distributions: Distributions) -> None:
        """Record that the part of a shard, as it is now, is in place."""
        version = {"size": shard.size, "version": shard.version}
        self._append(
            {
                "kind": "part",
                "shard": shard.name,
                **version,
                **stats.to_json(),
                **distributions.to_json(),
            }
        )
        self._take(shard.name, (shard.size, shard.version), stats, distributions)

    def record_noise_shift(self, value: float) -> None:
        """Record the estimator's shift, which finalize may need without the estimator."""
        self._append({"kind": "noise_shift", "value": value})
        self.noise_shift = value

    def done_shards(self) -> list[ShardRef]:
        """Shards with a part, in input order."""
        return [shard for shard in self.identity.shards if shard.name in self.done]

    def pending(self) -> list[ShardRef]:
        """Shards without a part, or whose part ends where the shard broke off, in input order."""
        return [
            shard
            for shard in self.identity.shards
            if shard.name not in self.done or self.done[shard.name].error is not None
        ]

    def check_same_run(
        self, model: dict[str, str], options: dict[str, Any], shards: Sequence[ShardRef]
    ) -> None:
        """Raise `ResumeError`, spelling out every difference, unless the run is this one.

        Shards that are not done may have changed: replacing a broken shard and going on is what
        one wants.
        """
        differences = [
            *_differences("", self.identity.model, model),
            *_differences("--", self.identity.options, options),
            *self._input_differences(shards),
        ]
        if differences:
            raise ResumeError(
                f"{self.path.parent} was made by another run: {'; '.join(differences[:5])}"
                f"{'; ...' if len(differences) > 5 else ''}. Use --overwrite to start again, or "
                "another --out"
            )

    def replace_shards(self, shards: list[ShardRef]) -> None:
        """Take over what has changed about shards that are not done."""
        self.identity = dataclasses.replace(self.identity, shards=shards)

    def flush(self) -> None:
        """Make sure that what was recorded outlives a crash."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _take(
        self, name: str, version: tuple[int, str], stats: ShardStats, distributions: Distributions
    ) -> None:
        if name in self._broken_off:  # an earlier part of the shard, which this one replaces
            self.distributions -= self._broken_off.pop(name)
        self.distributions += distributions
        if stats.error is not None:
            self._broken_off[name] = distributions
        self.done[name] = stats
        self.scored_versions[name] = version

    def _input_differences(self, shards: Sequence[ShardRef]) -> list[str]:
        known = {shard.name: shard for shard in self.identity.shards}
        given = {shard.name for shard in shards}
        found = [f"shard {name} is missing now" for name in known if name not in given]
        pending = {shard.name for shard in self.pending()}
        for shard in shards:
            before = known.get(shard.name)
            if before is None:
                found.append(f"shard {shard.name} is new")
            elif shard.name not in pending and self.scored_versions[shard.name] != (
                shard.size,
                shard.version,
            ):
                found.append(f"shard {shard.name} has changed since it was scored")
        if not found and [s.name for s in shards] != list(known):
            found.append("the shards are in another order")
        return found

    def _append(self, record: dict[str, Any]) -> None:
        if self._log is None:
            raise RuntimeError("the manifest is closed")
        self._log.append(record)


def _differences(prefix: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{prefix}{name.replace('_', '-') if prefix else name} was {before.get(name)}, is {value}"
        for name, value in now.items()
        if before.get(name) != value
    ]
