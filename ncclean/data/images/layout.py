"""The base classes of layouts of images.

A new layout is a class in a file of its own, and a line in `registry.py`.
"""

from __future__ import annotations

import posixpath
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol
from urllib.parse import unquote

import pyarrow as pa

from ncclean.base import stores
from ncclean.data.images.columns import IMAGE_COLUMNS, KEY_COLUMNS, is_path_column
from ncclean.data.images.files import UnitFiles
from ncclean.data.images.samples import TableSamples
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.layout import Layout, Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.samples import CaptionKeys, FurtherMembers, Sample
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

_HIVE = re.compile(r"(\w+)=([^/=]*)")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_OF_ROWS = frozenset((*KEY_COLUMNS, *IMAGE_COLUMNS, "uid"))

OutForm = Literal["webdataset", "folder", "csv", "parquet"]


@dataclass(frozen=True)
class Reading:
    """A request to read a shard: which samples and how; see `ncclean.data.reader.read_samples`."""

    caption_key: CaptionKeys = None
    opened: Callable[[], BinaryIO] | None = None
    wanted: Collection[str] | None = None
    together: bool = False
    whole: bool = False


class Samples(Protocol):
    """The samples of a shard, to be iterated over once.

    `samples` is how many have been begun, `late_metadata` the json that came after its sample, by
    row, and `further` counts members outside all rows. Iterating raises `ShardError` if parts of
    the shard cannot be read.
    """

    @property
    def samples(self) -> int: ...
    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]: ...
    @property
    def further(self) -> FurtherMembers: ...
    def __iter__(self) -> Iterator[Sample]: ...


class ImageLayout(Layout):
    """A way to store images with their captions in files."""

    @abstractmethod
    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        """Find the files of this layout at a source, or the folder itself.

        Raises `ShardError` for a folder that cannot be listed, and `InputError` for a source that
        can only be meant as this layout but lacks it.
        """

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        return [
            SourceFile(self, url, (options.image_root or self.root(url),))
            for url in self.sources(source, options)
        ]

    def below(self, layouts: Sequence[ImageLayout]) -> Sequence[ImageLayout]:
        """Return the layouts to look for in subfolders; none if this one covers them."""
        return ()

    def root(self, url: str) -> str:
        """Return the folder of the images that a file names, unless another one is given."""
        return posixpath.dirname(url) or ("/" if url.startswith("/") else ".")

    @abstractmethod
    def samples(self, shard: ShardRef, reading: Reading) -> Samples:
        """Return the samples of a shard in this layout."""

    def written_as(self, urls: Collection[str]) -> OutForm:
        """Return the layout of exports that is closest to these files."""
        return "webdataset"


class RowLayout(ImageLayout):
    """A layout of tables or lists, whose rows hold or name their images."""

    @abstractmethod
    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        """Yield the rows of a shard under lower-case names.

        With `whole`, Parquet rows are `ParquetRow`s. Raises `ShardError` if the file cannot be
        opened, and at the end if parts of it could not be read: their rows are `BrokenRow`s.
        """

    def columns(self, url: str) -> pa.Schema | list[str]:
        """Return the columns of a file, with their types unless it is text. Raises `ShardError`."""
        raise ShardError(f"{url} has no columns")

    def written_names(self, shard: ShardRef) -> dict[str, str]:
        """Map lower-case column names to their spelling in the file. Raises `ShardError`.

        For jsonl, the first spelling in a row of the shard.
        """
        return {}

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
    """Find the first folder of these names beside a file, or one or two levels above.

    Without one, returns the folder of the file.
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
    """Return values named by the folders of a file, as in `lang=en/`, by lower-case name.

    Keys, uids and images belong to a row, not to all rows of a file.
    """
    folders = stores.without_query(url).split("/")[:-1]
    pairs = filter(None, map(_HIVE.fullmatch, folders))
    values = {pair[1].lower(): unquote(pair[2]) for pair in pairs}
    return {
        name: value
        for name, value in values.items()
        if value != _NO_VALUE and name not in _OF_ROWS and not is_path_column(name)
    }


def _with_values(
    rows: Iterator[Row | BrokenRow], values: dict[str, str]
) -> Iterator[Row | BrokenRow]:
    """Yield rows with the values of their folders, unless they have columns of these names."""
    if not values:
        return rows
    return (_with(row, values) if isinstance(row, dict) else row for row in rows)


def _with(row: Row, values: dict[str, str]) -> Row:
    for name, value in values.items():
        row.setdefault(name, value)
    return row
