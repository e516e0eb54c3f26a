"""The base classes of layouts of images.

A new layout is a class in a file of its own, and a line in `registry.py`.
"""

from __future__ import annotations

import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow as pa

from ncclean import stores
from ncclean.data.images.row_units import Cut
from ncclean.data.images.samples import TableSamples
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.images.unit_files import UnitFiles
from ncclean.data.options import SourceOptions
from ncclean.data.samples import CaptionKeys, FurtherMembers, Sample
from ncclean.data.shards import ShardRef, sizes_and_versions
from ncclean.data.source import Source
from ncclean.errors import ShardError

_HIVE = re.compile(r"(\w+)=([^/=]*)")

OutForm = Literal["webdataset", "folder", "csv", "parquet"]


@dataclass(frozen=True)
class Reading:
    """What is read of a shard; see `ncclean.data.reader.read_samples`."""

    caption_key: CaptionKeys = None
    opened: Callable[[], BinaryIO] | None = None
    wanted: Collection[str] | None = None
    together: bool = False
    whole: bool = False


class Samples(Protocol):
    """The samples of a shard, to be iterated over once.

    `samples` is how many have been begun, `late_metadata` the json that followed its sample late,
    by row, and `further` counts what no row is about. Iterating raises `ShardError` if parts of the
    shard cannot be read.
    """

    @property
    def samples(self) -> int: ...
    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]: ...
    @property
    def further(self) -> FurtherMembers: ...
    def __iter__(self) -> Iterator[Sample]: ...


class ImageLayout(ABC):
    """A layout: how files hold images with their captions.

    The layouts are asked in the order of the registry: the first that finds `sources` in a file or
    folder reads it. What lies below is then not looked into, unless `has_more_below`.
    """

    name: str  # of `ShardRef.layout`, where further facts may follow it behind a colon
    endings: tuple[str, ...] = ()  # which the names of shards leave out
    takes_image_key = True
    has_splits = False
    has_more_below = False
    unit_rows = 10_000  # what a kill costs, and how many embeddings are held at a time

    @abstractmethod
    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        """The files of this layout that a source is or has in it, or the folder itself.

        Raises `ShardError` for a folder that cannot be listed, and `InputError` for what can only
        be meant as this layout and is not.
        """

    def root(self, url: str) -> str:
        """The folder that the images of a file lie below, unless another one is named."""
        return posixpath.dirname(url) or ("/" if url.startswith("/") else ".")

    def split_of(self, url: str) -> str | None:
        """The split that a file holds; None where that is told inside of it."""
        return None

    @abstractmethod
    def units(self, url: str, root: str, name: str, options: SourceOptions) -> list[ShardRef]:
        """The shards of a file or folder, named after `name`. One that fails when it is read may
        be a shard."""

    @abstractmethod
    def samples(self, shard: ShardRef, reading: Reading) -> Samples:
        """The samples of a shard."""

    def written_as(self, urls: Collection[str]) -> OutForm:
        """The form of an export that comes closest to these files."""
        return "webdataset"


class Facts(NamedTuple):
    """Bytes of a file, a version that changes with its rows, and what follows the layout's name."""

    size: int
    version: str
    detail: str = ""


class RowLayout(ImageLayout):
    """A layout of rows, which hold or name their images."""

    @abstractmethod
    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        """The rows of a shard under lower-case names.

        With `whole`, those of Parquet are `ParquetRow`s. Raises `ShardError` if the file cannot be
        opened, and at the end if parts of it could not be read: their rows are `BrokenRow`s.
        """

    @abstractmethod
    def cuts(self, url: str, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        """Cut a file into units of about `unit_rows`. Raises `ShardError`."""

    def facts(self, url: str, options: SourceOptions) -> Facts:
        """Size and version of what the rows depend on."""
        return Facts(*sizes_and_versions([url])[0])

    def columns(self, url: str) -> pa.Schema | list[str]:
        """The columns of a file: names alone for text. Raises `ShardError`."""
        raise ShardError(f"{url} has no columns")

    def written_names(self, shard: ShardRef) -> dict[str, str]:
        """The names of columns as they are written, by their lower-case form. Raises `ShardError`.

        Those of jsonl are the first that a row of the shard has.
        """
        return {}

    def units(self, url: str, root: str, name: str, options: SourceOptions) -> list[ShardRef]:
        facts = self.facts(url, options)
        layout = f"{self.name}:{facts.detail}" if facts.detail else self.name
        try:
            cuts = self.cuts(url, facts, options)
        except ShardError:  # said when it is read
            return [ShardRef(name, url, facts.size, facts.version, layout, (root,))]
        total = max(cuts[-1].last, 1) if cuts else 1
        return [
            ShardRef(
                name if len(cuts) < 2 else f"{name}-{first:0{len(str(total))}d}",
                url,
                round(facts.size * (last - first) / total),
                facts.version,
                layout,
                (root,),
                (first, last),
                offset,
            )
            for first, last, offset in cuts or [Cut(0, 0)]
        ]

    def samples(self, shard: ShardRef, reading: Reading) -> TableSamples:
        rows = self.rows(shard, reading.whole)
        return TableSamples(
            shard,
            _with_values(rows, hive_values(shard.url)),
            reading.caption_key,
            UnitFiles(shard, reading.wanted),
            reading.together,
            reading.whole,
        )


def folder_beside(url: str, names: Sequence[str]) -> str:
    """The first folder of these names in the folder of a file, or in one of the two above it.

    Without one, the folder of the file.
    """
    folder = above = posixpath.dirname(url) or "."
    for _ in range(3):
        for name in names:
            if stores.listing(f"{above}/{name}"):
                return f"{above}/{name}"
        up = posixpath.dirname(above) if stores.is_url(url) else posixpath.normpath(f"{above}/..")
        if not stores.is_url(url) or "://" in up.rstrip(":/"):
            above = up
    return folder


def hive_values(url: str) -> dict[str, str]:
    """Values that the folders of a file name, as `lang=en/` does, by lower-case name."""
    folders = stores.without_query(url).split("/")[:-1]
    pairs = filter(None, map(_HIVE.fullmatch, folders))
    return {pair[1].lower(): unquote(pair[2]) for pair in pairs}


def _with_values(
    rows: Iterator[Row | BrokenRow], values: dict[str, str]
) -> Iterator[Row | BrokenRow]:
    """Rows with the values of their folders, unless they have columns of these names."""
    if not values:
        return rows
    return (_with(row, values) if isinstance(row, dict) else row for row in rows)


def _with(row: Row, values: dict[str, str]) -> Row:
    for name, value in values.items():
        row.setdefault(name, value)
    return row
