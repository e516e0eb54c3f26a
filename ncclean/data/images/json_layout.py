"""The base class of layouts whose rows are the entries of a list in a json."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclean.data.images.json_list import JsonList, first_entries
from ncclean.data.images.layout import RowLayout
from ncclean.data.images.listing import is_image_name
from ncclean.data.images.row_units import cut_rows
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef
from ncclean.data.source import Source
from ncclean.errors import ShardError, one_line

JSON = ".json"
_MOST_FILES = 20  # of a folder that are looked into
Firsts = Mapping[str | None, Mapping[str, Any]]


class JsonLayout(RowLayout):
    """Entries of the list `list_name`; what follows the layout's name says which are read."""

    endings = (JSON,)
    takes_image_key = False
    list_name: str | None
    has_other_lists = False

    @abstractmethod
    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        """Whether a file has this layout, by the first objects of its lists."""

    @abstractmethod
    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        """The row of an entry."""

    def is_read(self, entry: object, detail: str) -> bool:
        """Whether an entry is one of those that are read, or broken: then nobody knows."""
        return True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if source.url.endswith(JSON) and not source.entries:
            return [source.url] if self.matches(_firsts(source.url), options) else []
        names = [name for name in source.files if name.endswith(JSON)]
        if len(names) > _MOST_FILES or any(map(is_image_name, source.files)):
            return []  # that is what samples of loose files have
        files = [source.below(name) for name in names]
        return [url for url in files if self.is_of_folder(_firsts(url), options)]

    def is_of_folder(self, firsts: Firsts, options: SourceOptions) -> bool:
        """Whether a file in a folder is meant where the folder is named."""
        return self.matches(firsts, options)

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        try:
            with self.open(file.url, facts.detail) as entries:
                entries.seek(0)
                return cut_rows(
                    entries, self.unit_rows, lambda one: self.is_read(one, facts.detail)
                )
        except OSError as error:
            raise ShardError(f"{file.url} cannot be read: {one_line(error)}") from error

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        detail = shard.layout.partition(":")[2]
        try:
            with self.open(shard.url, detail) as entries:
                entries.seek(shard.offset)
                read = (entry for entry in entries if self.is_read(entry, detail))
                for entry in itertools.islice(read, shard.count):
                    is_object = isinstance(entry, dict)
                    yield self.row(entry, shard) if is_object else BrokenRow("no JSON object")
        except OSError as error:
            raise ShardError(f"cannot be read: {one_line(error)}") from error

    def open(self, url: str, detail: str) -> JsonList:
        """The list of a file, closed at the end of a `with`. Raises `OSError` and `ShardError`."""
        return JsonList(url, self.list_name, self.has_other_lists)


def _firsts(url: str) -> Firsts:
    try:
        return first_entries(url)
    except ShardError:
        return {}
