"""Read rows of csv, tsv and jsonl files from any offset: a broken line costs only its own row."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from ncclean.base import stores
from ncclean.base.regular_files import check_is_file
from ncclean.base.small_tables import LONGEST_FIELD
from ncclean.data.sample_groups import is_image
from ncclean.data.unpacking import ALWAYS_UNPACKED, MOST_UNPACKED, UNPACKING_ERRORS
from ncclean.errors import ShardError, one_line

SEPARATED = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
COMPRESSED = ".gz"
CAPTIONS_TXT = "captions.txt"  # Kaggle's Flickr8k: a csv
_LONGEST_QUOTED = 256 << 10  # characters of a row that spans several lines
_LONGEST_LINE = 16 << 20
_FEW_LINES = 3  # of a caption may have as many commas as a row by chance
_BLOCK_BYTES = 8 << 20  # per read from an object store
_BOM = "\ufeff"
_GZIP = b"\x1f\x8b"
_RAW_DECODE = json.JSONDecoder().raw_decode
# First bytes of files that are called csv but are not, and what to do.
_FOREIGN = {
    b"\xff\xfe": "is UTF-16: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
    b"\xfe\xff": "is UTF-16: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or save it as csv",
    b"(\xb5/\xfd": "is compressed by zstd: unpack it first",
    b"BZh": "is compressed by bzip2: unpack it first",
    b"\xfd7zXZ": "is compressed by xz: unpack it first",
    b"PAR1": "is a Parquet file: give it the ending .parquet",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class BrokenRow:
    """A row of a table that cannot be read, and why."""

    what: str


@dataclass(frozen=True)
class LeftOut:
    """Stands in a row for a value too large to read, with the reason."""

    what: str


class TextRows:
    """Rows of a text table, in order, from the first or a byte offset where a row begins.

    `names` are the columns of csv and tsv, empty for jsonl; `written_names` are their original
    spellings, and `separator` divides them. `offset` is the byte at which the next row begins.
    Unless `parse`, rows come unparsed, for `row_of`. Raises `ShardError` if it is not text,
    `OSError` if it cannot be read.
    """

    def __init__(self, url: str, parse: bool = True) -> None:
        self._stream = open_text(url)
        self._parse = parse
        self._lines = _Lines(self._stream)
        self.names: list[str] = []
        self.written_names: list[str] = []
        self._keys: dict[str, str] | None = None  # of columns, some of which differ only in case
        self._dialect: type[csv.Dialect] | None = None
        try:
            if not is_lines(url):
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
        """Continue with the row that starts at the byte `offset` of the text; 0 is the first."""
        if offset:
            self._stream.seek(offset)
            self._lines = _Lines(self._stream, offset)

    def __iter__(self) -> Iterator[Any]:
        lies = self._json_lines() if self._dialect is None else self._records(self._dialect)
        records = (record for record in lies if record)  # skip empty lines
        return map(self.row_of, records) if self._parse else records

    def row_of(self, record: str | list[str] | BrokenRow) -> Row | BrokenRow:
        """Parse a row of a text table: a line of JSON, or the fields of a csv."""
        if isinstance(record, BrokenRow):
            return record
        if isinstance(record, str):
            return _json_row(record)
        if len(record) > len(self.names):
            return BrokenRow(f"{len(record)} fields under {len(self.names)} names")
        if _names(record) == self.names:
            return BrokenRow("the header once more")
        if self._keys is None:
            return dict(zip(self.names, record, strict=False))
        row: Row = {}
        for name, value in zip(self.written_names, record, strict=False):
            row.setdefault(self._keys[name], value)
        return row

    def _read_header(self, url: str) -> None:
        first = next(self._lines, "")
        self._lines.take(0)
        self._dialect = _dialect(url, first)
        fields = next(self._records(self._dialect), [])
        if isinstance(fields, BrokenRow):
            raise ShardError(f"{url}: the names of its columns cannot be read: {fields.what}")
        self.written_names = [name.strip() for name in fields]
        self.names = [name.lower() for name in self.written_names]
        if len({*self.names}) < len(self.names):
            self._keys = row_keys(self.written_names)

    @property
    def separator(self) -> str | None:
        return self._dialect.delimiter if self._dialect is not None else None

    def _records(self, dialect: type[csv.Dialect]) -> Iterator[list[str] | BrokenRow]:
        """Yield the fields of each record.

        An unclosed quote swallows the following lines into a field. Such a record costs only its
        first line: the next line begins a record again.
        """
        csv.field_size_limit(LONGEST_FIELD)
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
        """Parse a line whose quotes, inside a field, are literal."""
        if len(line) > _LONGEST_LINE or "end of data" in broken.what:
            return BrokenRow("a quote that is not closed")
        try:
            return next(csv.reader([line], dialect), [])
        except csv.Error:
            return broken

    def _holds_rows(
        self, fields: list[str] | BrokenRow, lines: list[str], dialect: type[csv.Dialect]
    ) -> bool:
        """Check whether lines inside a record are rows: with as many fields, and an image.

        If images have no usual ending, every line between the first and the last must look like a
        row.
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

    def _json_lines(self) -> Iterator[str]:
        for line in self._lines.alone():
            yield line.strip()


class _Lines:
    """Lines of a text that can be given back, with the offsets of lines not yet taken.

    They begin after a byte order mark. A record of many lines ends where it is too long to be
    meant.
    """

    def __init__(self, stream: io.TextIOWrapper, offset: int = 0) -> None:
        self._stream = stream
        self._waiting: deque[str] = deque()
        self.read: list[str] = []
        self.offset = offset
        if offset == 0 and stream.read(1) == _BOM:  # a quoted name may follow it
            self.offset = len(_BOM.encode())
        elif offset == 0:
            stream.seek(0)
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._characters > _LONGEST_QUOTED:
            raise StopIteration
        line = self._waiting.popleft() if self._waiting else self._next()
        if not line:
            raise StopIteration
        self.read.append(line)
        self._characters += len(line)
        return line

    def alone(self) -> Iterator[str]:
        """Yield lines that are never given back."""
        while line := self._next():
            self.offset += _bytes_of(line)
            yield line

    def _next(self) -> str:
        line = self._stream.readline(_LONGEST_LINE)
        if len(line) == _LONGEST_LINE and not line.endswith(("\n", "\r")):
            raise ShardError(
                f"a line has more than {_LONGEST_LINE:,} characters, so what follows is not read"
            )
        return line

    def take(self, count: int) -> None:
        """Take the first of the lines read; the others come again."""
        self.offset += sum(map(_bytes_of, self.read[:count]))
        self._waiting.extendleft(reversed(self.read[count:]))
        self.read, self._characters = [], 0


def _bytes_of(text: str) -> int:
    return len(text if text.isascii() else text.encode("utf-8", "surrogateescape"))


def _json_row(text: str) -> Row | BrokenRow:
    try:
        parsed, end = _RAW_DECODE(text)
        if end < len(text):
            parsed = json.loads(text)  # the error says what is wrong
    except (ValueError, RecursionError) as error:
        return BrokenRow(f"no JSON: {one_line(error)}")
    if not isinstance(parsed, dict):
        return BrokenRow("no JSON object")
    row = {str(name).lower(): value for name, value in parsed.items()}
    if len(row) == len(parsed):
        return row
    keys = row_keys(parsed)
    return {keys[name]: value for name, value in parsed.items()}


def row_keys(names: Iterable[str]) -> dict[str, str]:
    """Map the column names of a file to names in rows: lower case, unless another column has that.

    `URL` beside `url`, or after `Url`, stays `URL`.
    """
    distinct = dict.fromkeys(names)
    keys: dict[str, str] = {name: name for name in distinct if name == name.lower()}
    taken = {*keys}
    for name in distinct:
        if name not in keys:
            keys[name] = name if name.lower() in taken else name.lower()
            taken.add(keys[name])
    return keys


def is_lines(url: str) -> bool:
    """Check by its name whether a file has one json per line."""
    return url.removesuffix(COMPRESSED).endswith(LINES)


class _Unpacked(gzip.GzipFile):
    """A gzipped text that yields no more than its size can account for."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed)
        self._packed = packed

    def read1(self, size: int = -1) -> bytes:
        try:
            data = super().read1(size)
        except UNPACKING_ERRORS as error:
            raise OSError(f"is broken as gzip: {one_line(error)}") from error
        if self.tell() > ALWAYS_UNPACKED + MOST_UNPACKED * self._packed.tell():
            raise OSError(f"it unpacks to more than {MOST_UNPACKED} times its size")
        return data

    def close(self) -> None:
        super().close()
        self._packed.close()


def open_text(url: str) -> io.TextIOWrapper:
    """Open a text file, preserving undecodable bytes."""
    stream: BinaryIO
    if stores.is_url(url):
        stream = stores.open_binary(url, block_bytes=_BLOCK_BYTES, blocks=4)
    else:
        check_is_file(url)
        stream = open(url, "rb")  # noqa: SIM115  the caller closes it
    begin = stream.read(40)
    stream.seek(0)
    if begin.startswith(_GZIP):
        stream = cast(BinaryIO, _Unpacked(stream))
        begin = stream.read1(40)  # type: ignore[attr-defined]
        stream.seek(0)
    what = next((what for magic, what in _FOREIGN.items() if begin.startswith(magic)), None)
    if what is None and begin.count(0) > len(begin) // 4:
        what = "is UTF-16 or UTF-32: iconv makes UTF-8 of it" if begin.strip(b"\0") else "is empty"
    if what is not None:
        stream.close()
        raise ShardError(f"{url} {what}")
    return io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")


def _dialect(url: str, first: str) -> type[csv.Dialect]:
    """Detect the dialect from the separator of names: tabs in open_clip's files, or semicolons."""

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
