"""The state of a noise injection: its run record, and files that only an unfinished run needs.

The working folder of the output holds the record, which gains an entry for each finished
shard, and, until all are finished, the indexes of the input's shards, the moving images of
compressed ones and the captions of donors.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.atomic import published, remove_leftovers
from ncclean.data.captions import Captions
from ncclean.data.shard_index import ShardIndex
from ncclean.data.shards import SUFFIXES, ShardRef
from ncclean.storage.differences import differences
from ncclean.storage.run_record import RunRecord
from ncclean.storage.work_folder import work_folder

T = TypeVar("T")

COMMAND = "inject-noise"
_RECORD = "manifest.jsonl"
_LABELS = {"rates": "--noise"}


@dataclass(frozen=True)
class InjectionIdentity:
    """Everything that the written shards depend on."""

    rates: dict[str, float]
    seed: int
    batch_size: int
    caption_key: str | None
    shards: list[ShardRef]
    donors: list[ShardRef] = field(default_factory=list)
    noise_file: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, a hash in place of the noise file."""
        fields = dataclasses.asdict(self)
        if self.noise_file is not None:
            digest = hashlib.blake2b(self.noise_file.tobytes(), digest_size=8).hexdigest()
            fields["noise_file"] = f"a file of the hash {digest}"
        return fields


@dataclass(frozen=True)
class ShardRecord:
    """Counts of a written shard: pairs, those made noisy by kind, and the rest.

    `unchanged` pairs were to change, by kind, but got an equal caption or image. The last three
    are those of `ncclean.data.inject.Rewritten`. `error` is why the shard is cut short, or "".
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
    _record: RunRecord | None = None

    @classmethod
    def open(cls, out: UPath, identity: InjectionIdentity, *, overwrite: bool) -> Injection:
        """Begin to write a corpus with noise into `out`, or resume an interrupted run.

        Raises `ResumeError`, spelling out every difference, if that is another run, and
        `InputError` if something is in the way that no injection made.
        """
        run = cls(out, identity)
        run._record = RunRecord.open(
            run.work / _RECORD,
            COMMAND,
            identity.to_json(),
            overwrite=overwrite,
            base=out,
            files=run._files,
            compare=lambda before, now: differences(before, now, _LABELS),
        )
        for entry in run._record.entries:
            run._take(entry)
        return run

    @functools.cached_property
    def work(self) -> UPath:
        """The working folder."""
        return work_folder(self.out, _RECORD, self.out / "_work")

    def shard(self, shard: ShardRef) -> UPath:
        """Path of a written shard, which keeps its name."""
        url = stores.without_query(shard.url)
        suffix = next((s for s in SUFFIXES[::-1] if url.endswith(s)), ".tar")
        return self.out / (shard.name + suffix)

    def pending(self) -> list[int]:
        """Numbers of the shards still to be written, in input order."""
        shards = self.identity.shards
        targets = {shard.name: self.shard(shard) for shard in shards if shard.name in self.done}
        present = set(map(str, stores.present_files(targets.values())))
        finished = {name for name, target in targets.items() if str(target) in present}
        return [number for number, shard in enumerate(shards) if shard.name not in finished]

    def index(self, number: int) -> ShardIndex | None:
        """The saved index of a shard, None if it has not been made."""
        return self._left(self._index(number), ShardIndex.from_bytes)

    def keep_index(self, number: int, index: ShardIndex) -> None:
        with published(self._index(number)) as aside:
            aside.write_bytes(index.to_bytes())

    def donated(self, number: int) -> Captions | None:
        """The saved captions of a donor shard, None if they have not been read."""
        return self._left(self._captions(number), Captions.from_bytes)

    def keep_donated(self, number: int, captions: Captions) -> None:
        with published(self._captions(number)) as aside:
            aside.write_bytes(captions.to_bytes())

    def images(self, number: int) -> UPath:
        """Path of the file with the moved images of a compressed shard."""
        return self.work / f"images-{number:06d}.bin"

    def record_plan(self, planned: dict[str, int]) -> None:
        if self.planned is None:
            self._append("plan", planned=planned)
            self.planned = planned

    def commit(self, shard: ShardRef, record: ShardRecord) -> None:
        """Record that a shard with noise is in place."""
        self._append("shard", shard=shard.name, **dataclasses.asdict(record))
        self.done[shard.name] = record

    def remove_indexes(self) -> None:
        """Delete the indexes, which only an unfinished run needs."""
        numbers = range(len(self.identity.shards))
        stores.remove_files(path for number in numbers for path in self._working_files(number))
        stores.remove_files(map(self._captions, range(len(self.identity.donors))))
        shards = [self.shard(shard) for shard in self.identity.shards]
        for folder in {shard.parent for shard in shards}:
            remove_leftovers(folder, {shard.name for shard in shards if shard.parent == folder})

    def forget(self) -> None:
        """Delete the record and the indexes of a run that has not written a shard."""
        self.remove_indexes()
        self.close()
        RunRecord.clear(self.work / _RECORD, COMMAND, base=self.out, says=False)

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None

    def _index(self, number: int) -> UPath:
        return self.work / f"index-{number:06d}.npz"

    def _captions(self, number: int) -> UPath:
        return self.work / f"donors-{number:06d}.npz"

    @staticmethod
    def _left(path: UPath, parse: Callable[[bytes], T]) -> T | None:
        if not stores.present_files([path]):
            return None
        try:
            return parse(stores.ask("read", path, stores.read_bytes, path))
        except ValueError:
            return None

    def _working_files(self, number: int) -> tuple[UPath, UPath]:
        return self._index(number), self.images(number)

    def _files(self, identity: Mapping[str, Any]) -> Iterator[UPath]:
        """Every file that a run with this identity may write, but for its record."""
        for number, shard in enumerate(identity["shards"]):
            yield self.shard(ShardRef(**shard))
            yield from self._working_files(number)
        yield from map(self._captions, range(len(identity.get("donors", ()))))

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry.pop("kind")
        if kind == "plan":
            self.planned = entry["planned"]
        elif kind == "shard":
            name = entry.pop("shard")
            self.done[name] = ShardRecord(**entry)

    def _append(self, kind: str, **fields: Any) -> None:
        if self._record is None:
            raise RuntimeError("the record is closed")
        self._record.append(kind, **fields)
