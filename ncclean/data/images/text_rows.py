"""Rows of csv, tsv and jsonl files from anywhere in the file: a broken line costs its own row."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ncclean import stores
from ncclean.data.sample_groups import is_image
from ncclean.errors import ShardError, one_line

SEPARATED = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
# A quote that is never closed would make one field of the rest of the file.
_LONGEST_FIELD = 1 << 20
_LONGEST_QUOTED = 256 << 10  # characters of a row over several lines
_LONGEST_LINE = 16 << 20
_FEW_LINES = 3  # of a caption may have as many commas as a row, by chance
_BLOCK_BYTES = 8 << 20  # of an object store
_BOM = "\ufeff"
# What files begin with that are called csv and are none, and what to do.
_FOREIGN = {
    b"\xff\xfe": "is UTF-16: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
    b"\xfe\xff": "is UTF-16: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or save it as csv",
    b"\x1f\x8b": "is compressed by gzip: unpack it first",
    b"(\xb5/\xfd": "is compressed by zstd: unpack it first",
    b"BZh": "is compressed by bzip2: unpack it first",
    b"\xfd7zXZ": "is compressed by xz: unpack it first",
    b"PAR1": "is a Parquet file: give it the ending .parquet",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be read, and why."""

    what: str


@dataclass(frozen=True)
class LeftOut:
    """In place of a value that is too large to be read: why."""

    what: str


class TextRows:
    """Rows of a text table, in order, from its first one or a byte offset that is one's begin.

    `names` are the columns of csv and tsv, empty for jsonl. `offset` is the byte at which the next
    row begins. Raises `ShardError` for what is no text, `OSError` if it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._stream = open_text(url)
        self._lines = _Lines(self._stream)
        self.names: list[str] = []
        self._dialect: type[csv.Dialect] | None = None
        try:
            if url.endswith(SEPARATED):
                self._read_header(url)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TextRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    @property
    def offset(self) -> int:
        return self._lines.offset

    def seek(self, offset: int) -> None:
        """Go on with the row that begins at a byte, as `offset` told it; 0 is the first row's."""
        if offset:
            self._stream.seek(offset)
            self._lines = _Lines(self._stream, offset)

    def __iter__(self) -> Iterator[Row | BrokenRow]:
        if self._dialect is None:
            yield from self._json_rows()
            return
        for fields in self._records(self._dialect):
            if isinstance(fields, BrokenRow):
                yield fields
            elif len(fields) > len(self.names):
                yield BrokenRow(f"{len(fields)} fields under {len(self.names)} names")
            elif fields and _names(fields) == self.names:
                yield BrokenRow("the header once more")
            elif fields:  # else an empty line
                yield dict(zip(self.names, fields, strict=False))

    def _read_header(self, url: str) -> None:
        first = next(self._lines, "")
        self._lines.take(0)
        self._dialect = _dialect(url, first)
        fields = next(self._records(self._dialect), [])
        if isinstance(fields, BrokenRow):
            raise ShardError(f"{url}: the names of its columns cannot be read: {fields.what}")
        self.names = _names(fields)

    def _records(self, dialect: type[csv.Dialect]) -> Iterator[list[str] | BrokenRow]:
        """Fields of each record.

        A quote that is not closed where it should be makes a field of the lines after it. Such a
        record costs its first line alone: the next one begins a record again.
        """
        csv.field_size_limit(_LONGEST_FIELD)
        reader = csv.reader(self._lines, dialect, strict=True)
        while True:
            fields: list[str] | BrokenRow | None
            try:
                fields = next(reader, None)
            except csv.Error as error:
                fields = BrokenRow(one_line(error))
            read = self._lines.read
            if not read:
                return
            if isinstance(fields, BrokenRow) and len(read) == 1:
                fields = self._alone(read[0], dialect, fields)
            elif len(read) > 1 and (fields is None or self._holds_rows(fields, read, dialect)):
                fields = BrokenRow("a quote that is not closed in its line, before further rows")
            self._lines.take(1 if isinstance(fields, BrokenRow) else len(read))
            yield fields or []

    def _alone(
        self, line: str, dialect: type[csv.Dialect], broken: BrokenRow
    ) -> list[str] | BrokenRow:
        """A line with quotes in the middle of a field, which mean themselves."""
        if len(line) > _LONGEST_LINE or "end of data" in broken.what:
            return BrokenRow("a quote that is not closed")
        try:
            return next(csv.reader([line], dialect), [])
        except csv.Error:
            return broken

    def _holds_rows(
        self, fields: list[str] | BrokenRow, lines: list[str], dialect: type[csv.Dialect]
    ) -> bool:
        """Whether lines inside a record are rows by themselves: of as many fields, with an image.

        Where images have no usual ending, every line between the first and the last must look so.
        """
        if isinstance(fields, BrokenRow):
            return True
        try:
            inside = list(csv.reader(lines[1:], dialect, quoting=csv.QUOTE_NONE))
        except csv.Error:
            return True
        alike = [len(inner) == len(self.names) > 1 for inner in inside]
        has_image = any(
            is_alike and any(map(_is_image_path, inner))
            for is_alike, inner in zip(alike, inside, strict=True)
        )
        return has_image or (len(alike) > _FEW_LINES and all(alike[:-1]))

    def _json_rows(self) -> Iterator[Row | BrokenRow]:
        for line in self._lines:
            is_first = self._lines.offset == 0
            self._lines.take(1)
            text = line.removeprefix(_BOM).strip() if is_first else line.strip()
            if not text:
                continue
            try:
                parsed = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield BrokenRow(f"no JSON: {one_line(error)}")
                continue
            if isinstance(parsed, dict):
                yield {str(name).lower(): value for name, value in parsed.items()}
            else:
                yield BrokenRow("no JSON object")


class _Lines:
    """Lines of a text that can be given back, and where those begin that are not taken yet.

    A record of many lines ends where it is too long to be meant.
    """

    def __init__(self, stream: io.TextIOWrapper, offset: int = 0) -> None:
        self._stream = stream
        self._waiting: deque[str] = deque()
        self.read: list[str] = []
        self.offset = offset
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._characters > _LONGEST_QUOTED:
            raise StopIteration
        line = self._waiting.popleft() if self._waiting else self._stream.readline(_LONGEST_LINE)
        if not line:
            raise StopIteration
        if len(line) == _LONGEST_LINE and not line.endswith(("\n", "\r")):
            raise ShardError(
                f"a line has more than {_LONGEST_LINE:,} characters, so what follows is not read"
            )
        self.read.append(line)
        self._characters += len(line)
        return line

    def take(self, count: int) -> None:
        """Be done with the first lines of those read; the others come again."""
        for line in self.read[:count]:
            is_bytes = line.isascii()  # as many characters as bytes
            self.offset += len(line if is_bytes else line.encode("utf-8", "surrogateescape"))
        self._waiting.extendleft(reversed(self.read[count:]))
        self.read, self._characters = [], 0


def open_text(url: str) -> io.TextIOWrapper:
    """A text whose undecodable bytes stay what they are."""
    stream: BinaryIO
    if stores.is_url(url):
        stream = stores.open_binary(url, block_bytes=_BLOCK_BYTES, blocks=4)
    else:
        stores.check_is_file(url)
        stream = open(url, "rb")  # noqa: SIM115  the caller closes it
    begin = stream.read(40)
    stream.seek(0)
    what = next((what for magic, what in _FOREIGN.items() if begin.startswith(magic)), None)
    if what is None and begin.count(0) > len(begin) // 4:
        what = "is UTF-16 or UTF-32: iconv makes UTF-8 of it" if begin.strip(b"\0") else "is empty"
    if what is not None:
        stream.close()
        raise ShardError(f"{url} {what}")
    return io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")


def _dialect(url: str, first: str) -> type[csv.Dialect]:
    """By what separates the names: open_clip's csv files have tabs, those of Europe semicolons."""

    class Separated(csv.excel):
        delimiter = next(
            (mark for mark in ("\t,;|" if url.endswith(".tsv") else ",\t;|") if mark in first), ","
        )

    return Separated


def _names(fields: list[str]) -> list[str]:
    return [name.removeprefix(_BOM).strip().lower() for name in fields]


def _is_image_path(field: str) -> bool:
    name = field.strip().strip('"')
    return " " not in name and is_image(name.rpartition(".")[2].lower()) and "." in name
