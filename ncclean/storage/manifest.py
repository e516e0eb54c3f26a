"""What a scoring run has done so far: its run record, with an entry for each finished shard.

A shard's entry is appended after its part is in place, so every entry is true; a last one that a
crash cut short is ignored and its shard done again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upath import UPath

from ncclean.data.shards import ShardRef
from ncclean.errors import ResumeError
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.differences import differences
from ncclean.storage.layout import COMMAND, ScoreLayout
from ncclean.storage.run_record import RunRecord

_LABELS = {
    "model.weights_fingerprint": "the fingerprint of the weights",
    "model.scale": "the scale of the model",
}


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
    def from_json(cls, fields: Mapping[str, Any]) -> RunIdentity:
        shards = [ShardRef(**shard) for shard in fields["shards"]]
        return cls(fields["model"], fields["options"], shards, fields["version"])


@dataclass
class Manifest:
    """The state of a run; `done` maps the names of committed shards to their statistics.

    `open` begins a run or resumes one, `load` takes it as it is. Both lock a local manifest: two
    runs on one output are refused. Object stores have no locks.
    """

    identity: RunIdentity
    done: dict[str, ShardStats] = field(default_factory=dict)
    scored_versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    # Of all committed shards together.
    distributions: Distributions = field(default_factory=Distributions)
    noise_shift: float | None = None  # of the estimator, once it has been estimated
    # Of shards that are cut short: they are scored again.
    _incomplete: dict[str, Distributions] = field(default_factory=dict)
    _record: RunRecord | None = None

    @classmethod
    def open(
        cls, layout: ScoreLayout, identity: RunIdentity, *, overwrite: bool = False
    ) -> Manifest:
        """Begin a run, or resume the one whose output `layout` is.

        A run that scored no pair, over a wrong path for instance, gives way to another one.
        Shards that are not done may have changed: a user may replace a broken shard and
        resume. Raises `ResumeError`, spelling out the differences, for another run, and
        `InputError` if something is in the way.
        """
        manifest = cls(identity)
        try:
            manifest._record = RunRecord.open(
                layout.manifest,
                COMMAND,
                identity.to_json(),
                overwrite=overwrite,
                base=layout.out,
                files=layout.files,
                taken=layout.taken,
                compare=lambda before, now: manifest._differences(before, now, identity.shards),
                on_entry=manifest._read,
            )
        except ResumeError:
            if any(stats.rows for stats in manifest.done.values()):
                raise
            return cls.open(layout, identity, overwrite=True)
        return manifest if manifest._record.resumed else cls(identity, _record=manifest._record)

    @classmethod
    def create(cls, path: UPath, identity: RunIdentity) -> Manifest:
        """Begin a run with its manifest at `path`, whatever run was recorded there."""
        return cls(
            identity, _record=RunRecord.open(path, COMMAND, identity.to_json(), overwrite=True)
        )

    @classmethod
    def load(cls, path: UPath) -> Manifest | None:
        """The manifest at `path`, or None if there is none (or not even its first record)."""
        manifest = cls(RunIdentity({}, {}, [], ""))
        record = RunRecord.load(path, COMMAND, on_entry=manifest._read)
        if record is None:
            return None
        manifest.identity, manifest._record = RunIdentity.from_json(record.identity), record
        return manifest

    def commit(self, shard: ShardRef, stats: ShardStats, distributions: Distributions) -> None:
        """Record that the part of a shard, as it is now, is in place."""
        self._append(
            "part",
            shard=shard.name,
            size=shard.size,
            version=shard.version,
            **stats.to_json(),
            **distributions.to_json(),
        )
        self._take(shard.name, (shard.size, shard.version), stats, distributions)

    def record_noise_shift(self, value: float) -> None:
        """Record the estimator's shift, which finalize may need without the estimator."""
        self._append("noise_shift", value=value)
        self.noise_shift = value

    def done_shards(self) -> list[ShardRef]:
        """Shards with a part, in input order."""
        return [shard for shard in self.identity.shards if shard.name in self.done]

    def pending(self) -> list[ShardRef]:
        """Shards without a part, or whose shard was cut short, in input order."""
        return [
            shard
            for shard in self.identity.shards
            if shard.name not in self.done or self.done[shard.name].error is not None
        ]

    def flush(self) -> None:
        """Make sure that what was recorded outlives a crash."""
        if self._record is not None:
            self._record.flush()

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None

    def _read(self, entry: dict[str, Any]) -> None:
        """Take in an entry of an earlier run."""
        if entry["kind"] == "part":
            self._take(
                entry["shard"],
                (entry["size"], entry["version"]),
                ShardStats.from_json(entry),
                Distributions.from_json(entry),
            )
        elif entry["kind"] == "noise_shift":
            self.noise_shift = entry["value"]

    def _take(
        self, name: str, version: tuple[int, str], stats: ShardStats, distributions: Distributions
    ) -> None:
        if name in self._incomplete:  # an earlier part of the shard, which this one replaces
            self.distributions -= self._incomplete.pop(name)
        self.distributions += distributions
        if stats.error is not None:
            self._incomplete[name] = distributions
        self.done[name] = stats
        self.scored_versions[name] = version

    def _differences(
        self, before: Mapping[str, Any], now: Mapping[str, Any], shards: Sequence[ShardRef]
    ) -> list[str]:
        compared = ("model", "options")
        clauses = differences(
            {name: before[name] for name in compared},
            {name: now[name] for name in compared},
            _LABELS,
        )
        earlier = [shard["name"] for shard in before["shards"]]
        names = {shard.name for shard in shards}
        changes = [f"shard {name} is missing now" for name in earlier if name not in names]
        new_names = names - set(earlier)
        for shard in shards:
            stats = self.done.get(shard.name)
            is_kept = stats is not None and stats.error is None
            version = shard.size, shard.version
            if shard.name in new_names:
                changes.append(f"shard {shard.name} is new")
            elif is_kept and self.scored_versions[shard.name] != version:
                changes.append(f"shard {shard.name} has changed since it was scored")
        if not changes and [shard.name for shard in shards] != earlier:
            changes.append("the shards are in another order")
        return clauses + changes

    def _append(self, kind: str, **fields: Any) -> None:
        if self._record is None:
            raise RuntimeError("the manifest is closed")
        self._record.append(kind, **fields)
