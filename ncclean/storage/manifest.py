"""What a scoring run has done so far, and whether another run may go on with it.

`manifest.jsonl` starts with what the run is made of (input, model, options) and gains a line for
each finished shard. Lines are appended and synced after the shard's part is in place, so a line
that is there is true; a last line cut short by a crash is ignored and its shard done again.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.scoring.stats import ShardStats
from ncclean.storage.atomic import explain

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

    Open one with `create` or `load`, which take a lock: two runs on one output are refused.
    """

    path: Path
    identity: RunIdentity
    done: dict[str, ShardStats] = field(default_factory=dict)
    scored_versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    noise_shift: float | None = None  # of the estimator, once it has been estimated
    _file: TextIO | None = None

    @classmethod
    def create(cls, path: Path, identity: RunIdentity) -> Manifest:
        manifest = cls(path, identity)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        except OSError as error:
            raise InputError(explain(path, error)) from error
        manifest._open()
        manifest._append({"kind": "run", **identity.to_json()})
        return manifest

    @classmethod
    def load(cls, path: Path) -> Manifest | None:
        """The manifest at `path`, or None if there is none (or not even its first line)."""
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            return None
        records = [record for line in lines if (record := _parse(line)) is not None]
        if not records or records[0].pop("kind", None) != "run":
            return None
        manifest = cls(path, RunIdentity.from_json(records[0]))
        for record in records[1:]:
            if record["kind"] == "part":
                manifest.done[record["shard"]] = ShardStats.from_json(record)
                manifest.scored_versions[record["shard"]] = (record["size"], record["version"])
            elif record["kind"] == "noise_shift":
                manifest.noise_shift = record["value"]
        manifest._open()
        if lines and _parse(lines[-1]) is None:
            manifest._write("\n")  # so that the next record does not join the torn line
        return manifest

    def commit(self, shard: ShardRef, stats: ShardStats) -> None:
        """Record that the part of a shard, as it is now, is in place."""
        version = {"size": shard.size, "version": shard.version}
        self._append({"kind": "part", "shard": shard.name, **version, **stats.to_json()})
        self.done[shard.name] = stats
        self.scored_versions[shard.name] = (shard.size, shard.version)

    def record_noise_shift(self, value: float) -> None:
        """Record the estimator's shift, which finalize may need without the estimator."""
        self._append({"kind": "noise_shift", "value": value})
        self.noise_shift = value

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

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

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

    def _open(self) -> None:
        try:
            self._file = self.path.open("a", encoding="utf-8")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another run is writing to {self.path.parent}") from error
        except OSError as error:
            raise InputError(explain(self.path, error)) from error

    def _append(self, record: dict[str, Any]) -> None:
        self._write(json.dumps(record) + "\n")

    def _write(self, text: str) -> None:
        if self._file is None:
            raise RuntimeError("the manifest is closed")
        try:
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(explain(self.path, error)) from error


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _differences(prefix: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{prefix}{name.replace('_', '-') if prefix else name} was {before.get(name)}, is {value}"
        for name, value in now.items()
        if before.get(name) != value
    ]
