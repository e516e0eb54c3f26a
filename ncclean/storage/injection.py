"""What a noise injection has done so far, and whether another run may go on with it.

The working folder `_work` of the output holds `manifest.jsonl`, which starts with what the run is
made of and gains a record for each finished shard, and, until all are finished, the indexes of the
input's shards and the moving images of compressed ones.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.shard_index import ShardIndex
from ncclean.data.shards import SUFFIXES, ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.storage.log import Log, exists, open_log

_WORK = "_work"


@dataclass(frozen=True)
class InjectionIdentity:
    """Everything that the written shards depend on."""

    rates: dict[str, float]
    seed: int
    batch_size: int
    caption_key: str | None
    shards: list[ShardRef]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def differences(self, before: dict[str, Any]) -> list[str]:
        """How this run differs from the one with these JSON fields."""
        now = self.to_json()
        found = [
            f"{label} was {_shown(before.get(name))}, is {_shown(now[name])}"
            for name, label in _LABELS.items()
            if before.get(name) != now[name]
        ]
        known = {shard["name"]: shard for shard in before.get("shards", ())}
        given = {shard["name"]: shard for shard in now["shards"]}
        found += [f"shard {name} is missing now" for name in known if name not in given]
        found += [f"shard {name} is new" for name in given if name not in known]
        found += [
            f"shard {name} is another file, or has changed"
            for name, shard in given.items()
            if name in known and shard != known[name]
        ]
        if not found and list(known) != list(given):
            found.append("the shards are in another order")
        return found


_LABELS = {
    "rates": "the noise",
    "seed": "--seed",
    "batch_size": "--batch-size",
    "caption_key": "--caption-key",
}


@dataclass(frozen=True)
class ShardRecord:
    """What was written of a shard: pairs, those noisy by this injection per kind, and the rest.

    `unchanged` pairs were to change, by kind, but got an equal caption or image. The last three
    are those of `ncclean.data.inject.Rewritten`. `error` is why the shard breaks off, or "".
    """

    samples: int
    pairs: int
    noisy: dict[str, int]
    unchanged: dict[str, int]
    already_noisy: int
    json_added: int
    json_replaced: int
    error: str


@dataclass
class Injection:
    """The state of a run; `done` maps names of written shards to their records.

    `planned` is None until the whole input is indexed. Opening takes a lock on a local folder: two
    runs on one output are refused.
    """

    out: UPath
    identity: InjectionIdentity
    done: dict[str, ShardRecord] = field(default_factory=dict)
    planned: dict[str, int] | None = None
    _log: Log | None = None

    @classmethod
    def open(cls, out: UPath, identity: InjectionIdentity, *, overwrite: bool) -> Injection:
        """Begin a run in `out`, or go on with the one that is there.

        Raises `ResumeError`, spelling out every difference, if that is another run, and
        `InputError` if something is in the way that no injection made.
        """
        path = out / _WORK / "manifest.jsonl"
        run = cls(out, identity)
        if not overwrite and not exists(path):
            run._check_unused()
        run._log, records = open_log(path)
        try:
            first = next(records, None)
            if first is not None and not overwrite:
                run._check_same(first)
                for record in records:
                    run._take(record)
            else:
                run._clear(first or {})
                run.close()
                run._log, _ = open_log(path)
                run._log.clear()
                run._append({"kind": "noise", **identity.to_json()})
        except BaseException:
            run.close()
            raise
        return run

    def shard(self, shard: ShardRef) -> UPath:
        """Where the shard is written: under its own name."""
        suffix = next((s for s in SUFFIXES[::-1] if shard.url.endswith(s)), ".tar")
        return self.out / (shard.name + suffix)

    def pending(self) -> list[int]:
        """Numbers of the shards that are to be written, in input order."""
        return [
            number
            for number, shard in enumerate(self.identity.shards)
            if shard.name not in self.done or not _is_there(self.shard(shard))
        ]

    def index(self, number: int) -> ShardIndex | None:
        """The index of a shard, if an earlier run or step has left it."""
        path = self._index(number)
        if not _is_there(path):
            return None
        try:
            return ShardIndex.from_bytes(stores.ask("read", path, stores.read_bytes, path))
        except ValueError:
            return None

    def keep_index(self, number: int, index: ShardIndex) -> None:
        with published(self._index(number)) as aside:
            aside.write_bytes(index.to_bytes())

    def images(self, number: int) -> UPath:
        """The moving images of a compressed shard, taken out of it."""
        return self.out / _WORK / f"images-{number:06d}.bin"

    def record_plan(self, planned: dict[str, int]) -> None:
        if self.planned is None:
            self._append({"kind": "plan", "planned": planned})
            self.planned = planned

    def commit(self, shard: ShardRef, record: ShardRecord) -> None:
        """Record that a shard is in place."""
        self._append({"kind": "shard", "shard": shard.name, **dataclasses.asdict(record)})
        self.done[shard.name] = record

    def remove_indexes(self) -> None:
        """Remove what only an unfinished run needs."""
        for number in range(len(self.identity.shards)):
            self._remove(self._index(number))
            self._remove(self.images(number))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _index(self, number: int) -> UPath:
        return self.out / _WORK / f"index-{number:06d}.npz"

    def _check_unused(self) -> None:
        taken = next((s for s in self.identity.shards if _is_there(self.shard(s))), None)
        if taken is not None:
            raise InputError(
                f"{self.shard(taken)} exists and no run to resume made it; use --overwrite to "
                "replace it, or another --out"
            )

    def _check_same(self, before: dict[str, Any]) -> None:
        if before.get("kind") != "noise":
            raise InputError(f"{self.out / _WORK} belongs to something else; use another --out")
        differences = self.identity.differences(before)
        if differences:
            raise ResumeError(
                f"{self.out} was made by another run: {'; '.join(differences[:5])}"
                f"{'; ...' if len(differences) > 5 else ''}. Use --overwrite to start again, or "
                "another --out"
            )

    def _take(self, record: dict[str, Any]) -> None:
        kind = record.pop("kind")
        if kind == "plan":
            self.planned = record["planned"]
        elif kind == "shard":
            name = record.pop("shard")
            self.done[name] = ShardRecord(**record)

    def _clear(self, before: dict[str, Any]) -> None:
        """Remove what an earlier run left: its shards would pass for this one's."""
        shards = [ShardRef(**shard) for shard in before.get("shards", ())]
        for number in range(max(len(shards), len(self.identity.shards))):
            self._remove(self._index(number))
            self._remove(self.images(number))
        for shard in (*shards, *self.identity.shards):
            self._remove(self.shard(shard))

    def _remove(self, path: UPath) -> None:
        if not stores.is_url(path) or _is_there(path):
            stores.ask("remove", path, path.unlink, missing_ok=True)

    def _append(self, record: dict[str, Any]) -> None:
        if self._log is None:
            raise RuntimeError("the manifest is closed")
        self._log.append(record)


def _is_there(path: UPath) -> bool:
    return bool(stores.ask("read", path, path.exists))


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {rate:g}" for name, rate in value.items())
    return str(value)
