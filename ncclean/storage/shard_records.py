"""Store the records of the shards of a scoring run.

The part of a shard carries its record in its own Parquet metadata: a part in place says that the
shard is done. Once the rows are in the table, `shards.parquet` holds the record instead. It lists
all shards of the run, done or not, in the order of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, reported
from ncclean.data.shards import ShardRef
from ncclean.scoring.stats import Distributions, ShardStats

RECORD = "ncclean_shard"  # in the metadata of a part
_TAIL_BYTES = 32 << 10  # the footer of most parts
_AT_ONCE = 256
_ROWS_AT_ONCE = 1000
_NEXT, _DIGITS = b"next_number", b"digits"
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("number", pa.int64()),
        ("position", pa.int64()),
        ("ref", pa.string()),
        ("file", pa.string()),
        ("record", pa.string()),
    ]
)


@dataclass(frozen=True)
class ShardRecord:
    """The record of a scored shard: its size and version when scored, counts and histograms."""

    name: str
    size: int
    version: str
    stats: ShardStats
    distributions: Distributions

    def to_json(self) -> str:
        fields = {"shard": self.name, "size": self.size, "version": self.version}
        return json.dumps(fields | self.stats.to_json() | self.distributions.to_json())

    @classmethod
    def from_json(cls, text: str) -> ShardRecord:
        """Parse the record of a shard.

        Raises `ValueError`, `LookupError` or `TypeError` if it is invalid.
        """
        fields = json.loads(text)
        return cls(
            str(fields["shard"]),
            int(fields["size"]),
            str(fields["version"]),
            ShardStats.from_json(fields),
            Distributions.from_json(fields),
        )


@dataclass
class Listed:
    """A shard in the list of a scoring run.

    Its `number` stays the same when others come or go, and names its embeddings. `position` is its
    place in the table; None for a dropped shard until the table is written without it. `file` is
    the table file with its rows, None before there is one.
    """

    number: int
    position: int | None
    ref: ShardRef
    file: str | None = None


@dataclass
class ShardList:
    """The shards of a scoring run by name; gives each new one a number."""

    shards: dict[str, Listed]
    next_number: int
    digits: int

    @classmethod
    def read(cls, path: UPath) -> ShardList | None:
        """Read the list of shards, without their records; None if there is none."""
        if not stores.present_files([path]):
            return None
        listed: dict[str, Listed] = {}
        with stores.open_parquet(path) as file:
            stated = file.schema_arrow.metadata
            for batch in file.iter_batches(columns=_SCHEMA.names[:-1]):
                for row in batch.to_pylist():
                    ref = ShardRef(**json.loads(row["ref"]))
                    listed[row["name"]] = Listed(row["number"], row["position"], ref, row["file"])
        return cls(listed, int(stated[_NEXT]), int(stated[_DIGITS]))

    def write(self, path: UPath, records: Iterable[tuple[str, str]]) -> None:
        """Write the list of shards, with the records of those whose rows are in the table."""
        metadata = {_NEXT: str(self.next_number), _DIGITS: str(self.digits)}
        missing = dict.fromkeys(self.shards)
        rows: list[dict[str, object]] = []

        def row(name: str, record: str | None) -> dict[str, object]:
            one = self.shards[name]
            return {
                "name": name, "number": one.number, "position": one.position,
                "ref": json.dumps(one.ref.to_json()), "file": one.file, "record": record,
            }  # fmt: skip

        schema = _SCHEMA.with_metadata(metadata)
        with (
            reported(None),
            published(path) as aside,
            pq.ParquetWriter(aside, schema, compression="zstd") as writer,
        ):
            for name, record in records:
                if name in missing:
                    del missing[name]
                    rows.append(row(name, record))
                if len(rows) == _ROWS_AT_ONCE:
                    writer.write_table(pa.Table.from_pylist(rows, schema))
                    rows.clear()
            rows += [row(name, None) for name in missing]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def records_in_list(path: UPath) -> Iterator[tuple[str, str]]:
    """Yield the name and record of each shard in `shards.parquet` that has one.

    These are the shards whose rows are in the table.
    """
    if not stores.present_files([path]):
        return
    with stores.open_parquet(path) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=["name", "record"]):
            for row in batch.to_pylist():
                if row["record"] is not None:
                    yield row["name"], row["record"]


def records_in_parts(parts: Mapping[str, UPath]) -> Iterator[tuple[str, str]]:
    """Yield the name and record of each shard from its part; nothing for a missing part.

    A part is a Parquet file of one shard's rows, of which only the footer is read; in a store,
    hundreds at once.
    """
    names = list(parts)
    for begin in range(0, len(names), _AT_ONCE):
        some = names[begin : begin + _AT_ONCE]
        paths = [parts[name] for name in some]
        for name, footer in zip(some, _footers(paths), strict=True):
            record = _record(footer)
            if record is not None and json.loads(record).get("shard") == name:
                yield name, record


def present_files(work: UPath) -> dict[str, UPath]:
    """Return the files of a working folder, by name."""
    return {one.name: work / one.name for one in stores.listing(work) if not one.is_folder}


def _footers(paths: Sequence[UPath]) -> list[bytes]:
    tails = stores.read_tails(paths, _TAIL_BYTES)
    for number, tail in enumerate(tails):
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail) and tail.endswith(b"PAR1"):
            tails[number] = stores.read_tails([paths[number]], length)[0]
    return tails


def _record(footer: bytes) -> str | None:
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer)).metadata or {}
        return str(metadata[RECORD.encode()], "utf-8")
    except (KeyError, ValueError, OSError):
        return None
