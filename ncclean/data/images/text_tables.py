"""Text tables: csv, tsv and jsonl, compressed by gzip or not, and `captions.txt` of Kaggle."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from ncclean.data.images.columns import shared_path
from ncclean.data.images.layout import OutForm
from ncclean.data.images.row_units import cut_rows
from ncclean.data.images.tables import TEXTS, TableLayout
from ncclean.data.images.text_rows import CAPTIONS_TXT, BrokenRow, Row, TextRows, is_lines, row_keys
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import json_object
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError, one_line

_ROWS_LOOKED_AT = 100  # for one that is not broken


class TextTable(TableLayout):
    """Tables of text; a broken line costs its own row."""

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
                # Of any row: one whose names are broken must not hide the others.
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
                    path_of=lambda row: shared_path(lines.row_of(row), options.image_key),
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
