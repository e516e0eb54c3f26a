"""Read text tables: csv, tsv and jsonl, gzipped or not, and Kaggle's `captions.txt`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from ncclean.data.images.columns import MOST_ROWS, shared_image
from ncclean.data.images.layout import OutForm
from ncclean.data.images.tables import TEXTS, TableLayout
from ncclean.data.images.text_rows import CAPTIONS_TXT, BrokenRow, Row, TextRows, is_lines, row_keys
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import json_object
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError, one_line

_ROWS_LOOKED_AT = 100  # if it is intact


class TextTable(TableLayout):
    """The layout of csv, tsv and jsonl tables of images; a broken line costs only its own row."""

    name = "table"
    endings = files = (*TEXTS, CAPTIONS_TXT)
    form = "csv"

    def written_as(self, urls: Collection[str]) -> OutForm:
        are_lines = any(map(is_lines, urls))
        return "folder" if are_lines else super().written_as(urls)

    def is_unreadable(self, url: str) -> bool:
        return not url.endswith(CAPTIONS_TXT) and super().is_unreadable(url)

    def columns(self, url: str) -> list[str]:
        try:
            with TextRows(url) as rows:
                if rows.names:
                    return rows.names
                looked_at = itertools.islice(rows, _ROWS_LOOKED_AT)
                # Check any row: one with broken names must not hide the others.
                return list(
                    dict.fromkeys(
                        name for row in looked_at if isinstance(row, dict) for name in row
                    )
                )
        except OSError as error:
            raise ShardError(f"{url} cannot be read: {one_line(error)}") from error

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        try:
            with TextRows(file.url, parse=False) as lines:
                return cut_rows(
                    lines,
                    self.unit_rows,
                    image_of=lambda row: shared_image(lines.row_of(row), options.image_key),
                )
        except OSError as error:
            raise ShardError(f"{file.url} cannot be read: {one_line(error)}") from error

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        try:
            with TextRows(shard.url) as rows:
                rows.seek(shard.offset)
                yield from itertools.islice(rows, shard.count)
        except OSError as error:
            raise ShardError(f"cannot be read: {one_line(error)}") from error

    def written_names(self, shard: ShardRef) -> dict[str, str]:
        try:
            if is_lines(shard.url):
                names = _names_of_lines(shard)
            else:
                with TextRows(shard.url) as rows:
                    names = rows.written_names
        except OSError as error:
            raise ShardError(f"cannot be read: {one_line(error)}") from error
        return {key: name for name, key in row_keys(names).items()}


def _names_of_lines(shard: ShardRef) -> list[str]:
    names: dict[str, None] = {}
    with TextRows(shard.url, parse=False) as lines:
        lines.seek(shard.offset)
        for line in itertools.islice(lines, shard.count):
            names |= dict.fromkeys(json_object(line.encode("utf-8", "surrogateescape")) or {})
    return list(names)


class Rows(Protocol):
    """Rows read in order; `offset` is the byte at which the next one starts."""

    @property
    def offset(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


def cut_rows(
    rows: Rows,
    unit_rows: int,
    is_wanted: Callable[[Any], bool] = lambda row: True,
    image_of: Callable[[Any], object] = lambda row: None,
) -> list[Cut]:
    """Cut a text table into shards of `unit_rows` wanted rows: first row, end row, byte offset.

    Rows of one image stay together, as many as an image may have. If a row cannot be passed, the
    last shard has one row too many, so reading it fails; the shards before it are unaffected.
    """
    units: list[Cut] = []
    count = first = 0
    begin = start = rows.offset
    image: object = None
    try:
        for row in rows:
            if is_wanted(row):
                is_near = count - first >= unit_rows - 1
                before, image = image, image_of(row) if is_near else None
                is_same = image is not None and image == before
                if count - first >= unit_rows + (MOST_ROWS if is_same else 0):
                    units.append(Cut(first, count, begin))
                    first = count
                begin = start if count == first else begin
                count += 1
            start = rows.offset
    except ShardError:
        if count - first >= unit_rows:
            units.append(Cut(first, count, begin))
            first = count
        return [*units, Cut(first, count + 1, begin if count > first else start)]
    return [*units, Cut(first, count, begin)] if count > first else units
