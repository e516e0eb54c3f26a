"""Store the state of a noise injection: its run record, and files of an unfinished run.

The working folder of the output holds the record, which gains an entry for each finished
shard, and, until all are finished, the indexes of the input's shards, the moving images of
compressed ones and the captions of donors. Indexes and captions are tables in Parquet files.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, remove_leftovers
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.data.noise import PERMUTING, WITH_PARTNER, noise_count
from ncclean.data.shards import SUFFIXES, ShardRef, file_sizes
from ncclean.storage.differences import differences
from ncclean.storage.run_record import RUN, RunRecord

COMMAND = "inject-noise"
_LABELS = {"rates": "--noise"}


@dataclass(frozen=True)
class InjectionIdentity:
    """Everything that the shards written by a noise injection depend on."""

    rates: dict[str, float]
    seed: int
    batch_size: int
    caption_key: str | None
    shards: list[ShardRef]
    donors: list[ShardRef] = field(default_factory=list)
    noise_file: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, with a hash in place of the noise file's contents."""
        fields = dataclasses.asdict(self)
        if self.noise_file is not None:
            digest = hashlib.blake2b(self.noise_file.tobytes(), digest_size=8).hexdigest()
            fields["noise_file"] = f"a file of the hash {digest}"
        return fields


@dataclass(frozen=True)
class ShardRecord:
    """Counts of a shard written with noise: samples, pairs, and noisy pairs by kind.

    `unchanged` counts pairs, by kind, that got an equal caption or image; `already_noisy` those
    noisy in the input. `json_added` counts samples without a json before, `json_replaced` those
    whose json could not be parsed. `error` is why the shard is cut short, or "". `bytes` is the
    size of its file, None in records of earlier versions.
    """

    samples: int
    pairs: int
    noisy: dict[str, int]
    unchanged: dict[str, int]
    already_noisy: int
    json_added: int
    json_replaced: int
    error: str
    bytes: int | None = None


@dataclass
class Injection:
    """The state of a noise injection; `done` maps names of written shards to their records.

    `planned` is the number of pairs drawn per kind, None until the whole input is indexed. Opening
    locks a local folder: two runs on one output are refused.
    """

    out: UPath
    identity: InjectionIdentity
    done: dict[str, ShardRecord] = field(default_factory=dict)
    planned: dict[str, int] | None = None
    _record: RunRecord = field(init=False, repr=False)

    @classmethod
    def open(cls, out: UPath, identity: InjectionIdentity, *, overwrite: bool) -> Injection:
        """Begin to write a corpus with noise into `out`, or resume an interrupted run.

        Raises `ResumeError`, spelling out every difference, for another run, and `InputError` for
        an existing file that no injection made.
        """
        run = cls(out, identity)
        run._record = RunRecord.open(
            run.work / RUN,
            COMMAND,
            identity.to_json(),
            overwrite=overwrite,
            base=out,
            files=run._files,
            compare=lambda before, now: differences(before, now, _LABELS),
        )
        for entry in run._record.entries:
            run._take(**entry)
        return run

    @property
    def work(self) -> UPath:
        """The working folder of the injection."""
        return self.out / WORKING_FOLDER

    def shard(self, shard: ShardRef) -> UPath:
        """Return the path of a written shard, which keeps its name."""
        url = stores.without_query(shard.url)
        suffix = next((s for s in SUFFIXES[::-1] if url.endswith(s)), ".tar")
        return self.out / (shard.name + suffix)

    def pending(self) -> list[int]:
        """Return the numbers of the shards still to be written, in input order.

        A shard of another size than was written is one.
        """
        shards = self.identity.shards
        targets = {
            str(self.shard(shard)): shard.name for shard in shards if shard.name in self.done
        }
        finished = {
            targets[target]
            for target, size in file_sizes(map(stores.location, targets)).items()
            if self.done[targets[target]].bytes in (None, size)
        }
        return [number for number, shard in enumerate(shards) if shard.name not in finished]

    def sources(self, name: str) -> list[ShardRef]:
        """Return the shards from which working files of this name are made.

        For `donors` these are the donors, else the input.
        """
        return self.identity.donors if name == "donors" else self.identity.shards

    def working_file(self, name: str, number: int) -> UPath:
        """Return the path of a file that only an unfinished run needs.

        Its `name` is `index` (of a shard), `donors` (the captions of one), or `images` (those moved
        out of a compressed shard).
        """
        return self.work / f"{name}-{number:06d}.{'bin' if name == 'images' else 'parquet'}"

    def record_plan(self, planned: dict[str, int]) -> None:
        if self.planned is None:
            self._append("plan", planned=planned)

    def commit(self, shard: ShardRef, record: ShardRecord) -> None:
        """Record that a shard with noise is complete."""
        self._append("shard", shard=shard.name, **dataclasses.asdict(record))

    def remove_working_files(self) -> None:
        """Delete the files that only an unfinished run needs."""
        self._record.compact()
        shards = self.identity.shards
        stores.remove_files(self._working_files(len(shards), len(self.identity.donors)))
        written = [self.shard(shard) for shard in shards]
        for folder in {path.parent for path in written}:
            remove_leftovers(folder, {path.name for path in written if path.parent == folder})

    def forget(self) -> None:
        """Delete the record and the indexes of a noise injection that has not written a shard."""
        self.remove_working_files()
        self.close()
        RunRecord.clear(self.work / RUN, COMMAND, base=self.out, says=False)

    def close(self) -> None:
        self._record.close()

    def _working_files(self, shards: int, donors: int) -> Iterator[UPath]:
        for name, count in (("index", shards), ("images", shards), ("donors", donors)):
            yield from (self.working_file(name, number) for number in range(count))

    def _files(self, identity: Mapping[str, Any]) -> Iterator[UPath]:
        """Return every file that a run with this identity may write, except its record."""
        shards = identity["shards"]
        yield from (self.shard(ShardRef(**shard)) for shard in shards)
        yield from self._working_files(len(shards), len(identity.get("donors", ())))

    def _take(self, kind: str, **fields: Any) -> None:
        if kind == "plan":
            self.planned = fields["planned"]
        elif kind == "shard":
            name = fields.pop("shard")
            self.done[name] = ShardRecord(**fields)

    def _append(self, kind: str, **fields: Any) -> None:
        self._record.append(kind, **fields)
        self._take(kind, **fields)


def keep_table(path: UPath, table: pa.Table) -> None:
    """Write a working table of a noise injection: a shard's index, or the captions of donors."""
    with published(path) as aside:
        pq.write_table(table, aside, compression="zstd")


def kept_table(path: UPath, columns: list[str] | None = None) -> pa.Table | None:
    """Read a working table of a noise injection, or some of its columns.

    None if it is missing or damaged.
    """
    if not stores.present_files([path]):
        return None
    data = stores.ask("read", path, stores.read_bytes, path)
    try:
        return pq.read_table(pa.BufferReader(data), columns=columns)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class NoiseSummary:
    """Counts of a finished noise injection.

    Among `pairs` scorable pairs, `planned` were drawn per kind and `noisy` became noisy: the rest
    were left in place by the permutation, or drew a sentence of their own image (`left_in_place`),
    or got an equal value (`unchanged`).
    `shortage` is how many fewer were drawn than the rates requested. `already_noisy` pairs were
    noisy in the input and left alone.
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
            if kind in (*PERMUTING, *WITH_PARTNER)
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
