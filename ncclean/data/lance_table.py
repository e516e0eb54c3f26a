"""Read Lance data sets: columns, rows, and a version that changes with the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from ncclean.base.url_secrets import without_secrets
from ncclean.errors import InputError, ShardError, one_line
from ncclean.workers.call import contained

T = TypeVar("T")

ENDING = ".lance"
# Columns that `ncclean annotate` writes are not scored.
_TABLE_BATCH_ROWS = 65_536
SCORE_PREFIX = "ncclean_"
_LANCE_ERRORS = (OSError, ValueError, RuntimeError, pa.ArrowException)


class Piece(NamedTuple):
    """Rows of a Lance data set read at a time; `version` covers all rows up to the last."""

    first: int
    last: int
    size: int
    version: str


def is_lance(place: str) -> bool:
    """Check by its name whether a path or URL is a Lance data set."""
    return place.rstrip("/").endswith(ENDING)


def open_lance(url: str) -> Any:  # a `lance.LanceDataset`
    """Open a Lance data set at its latest version.

    Raises `InputError` if the library is missing, `ShardError` if it cannot be opened.
    """
    try:
        import lance
    except ImportError as error:
        raise InputError(f"{url} needs an extra: pip install 'ncclean[lance]'") from error

    dataset = _read(url, lambda: lance.dataset(url))
    # For types that it does not know, the library panics only here.
    _read(url, lambda: dataset.schema)
    return dataset


def lance_columns(url: str) -> pa.Schema:
    """Return the columns of a Lance data set, without those written by `ncclean annotate`."""
    schema = open_lance(url).schema
    return pa.schema(
        [_as_read(field) for field in schema if not field.name.startswith(SCORE_PREFIX)]
    )


def _as_read(field: pa.Field) -> pa.Field:
    """Convert a blob column's type to bytes, as which it is read."""
    is_blob = getattr(field.type, "extension_name", "").startswith("lance.blob")
    return field.with_type(pa.large_binary()) if is_blob else field


def lance_pieces(url: str, rows: int) -> list[Piece]:
    """Cut a Lance data set into pieces of about `rows` rows, at ends of fragments if possible.

    Appending rows leaves the earlier pieces unchanged.
    """
    dataset = open_lance(url)
    return _read(url, lambda: _pieces(dataset, rows))


def _pieces(dataset: Any, rows: int) -> list[Piece]:
    pieces: list[Piece] = []
    begin = size = 0
    fragments = _fragments(dataset)
    for number, (end, bytes_, version) in enumerate(fragments):
        size += bytes_
        if end - begin < rows and number < len(fragments) - 1:
            continue
        count = max(1, round((end - begin) / rows))
        ends = [begin + (end - begin) * (one + 1) // count for one in range(count)]
        pieces += [
            Piece(first, last, size // count, version)
            for first, last in zip([begin, *ends[:-1]], ends, strict=True)
            if last > first
        ]
        begin, size = end, 0
    return pieces


def _fragments(dataset: Any) -> list[tuple[int, int, str]]:
    """Return each fragment's end row, its bytes, and the version of all rows up to there."""
    fields = dataset.lance_schema.fields()
    scored = _field_ids([one for one in fields if not one.name().startswith(SCORE_PREFIX)])
    digest, end, fragments = hashlib.blake2b(digest_size=16), 0, []
    for fragment in dataset.get_fragments():
        files = [one for one in fragment.metadata.files if scored & set(one.fields)]
        digest.update(f"{[one.path for one in files]} {fragment.num_deletions}".encode())
        deleted = fragment.metadata.deletion_file
        if deleted is not None:  # others may be as many
            digest.update(f"{deleted.read_version} {deleted.id}".encode())
        end += fragment.count_rows()
        size = sum(one.file_size_bytes or 0 for one in files)
        fragments.append((end, size, digest.hexdigest()))
    return fragments


def _field_ids(fields: Sequence[Any]) -> set[int]:
    """Return the ids of fields, including nested ones; files keep those of dropped columns."""
    return {field.id() for field in fields}.union(
        *(_field_ids(field.children()) for field in fields)
    )


def lance_size_and_version(url: str) -> tuple[int, str]:
    """Return the bytes of a Lance data set without scores, and the version of all its rows."""
    pieces = lance_pieces(url, 1 << 62)
    return sum(one.size for one in pieces), pieces[-1].version if pieces else ""


def lance_batches(
    url: str, columns: Sequence[str], rows: tuple[int, int], batch_rows: int, version: str = ""
) -> Iterator[pa.RecordBatch]:
    """Read a range of rows of a Lance data set, in order.

    Raises `ShardError` if they cannot be read, or no longer match `version`.
    """
    dataset = open_lance(url)
    if version and version not in {one for _, _, one in _read(url, lambda: _fragments(dataset))}:
        raise ShardError(f"{without_secrets(url)} has changed since the run began")
    try:
        yield from contained(read_batches, url, list(columns), rows, batch_rows, dataset.version)
    except (ShardError, *_LANCE_ERRORS) as error:
        raise ShardError(_unreadable(url, one_line(error))) from error


def read_batches(
    url: str, columns: list[str], rows: tuple[int, int], batch_rows: int, version: int
) -> Iterator[pa.RecordBatch]:
    """Read a range of rows of a version of a Lance data set.

    Damaged files may make the library end this process.
    """
    import lance

    first, last = rows
    scanner = lance.dataset(url, version=version).scanner(
        columns=columns, offset=first, limit=last - first,
        batch_size=batch_rows, scan_in_order=True, blob_handling="all_binary",
    )  # fmt: skip
    yield from scanner.to_reader()


def read_lance(url: str, columns: Sequence[str] | None, rows: tuple[int, int] | None) -> pa.Table:
    """Read the named columns of a Lance data set that exist, for all or some of the rows."""
    dataset = open_lance(url)
    names = [name for name in dataset.schema.names if columns is None or name in columns]
    asked = rows or (0, dataset.count_rows())
    batches = [*lance_batches(url, names, asked, _TABLE_BATCH_ROWS)]
    schema = pa.schema([dataset.schema.field(name) for name in names])
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def _read(url: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except BaseException as error:
        # For damaged files the library panics, which is not an `Exception`.
        if not isinstance(error, _LANCE_ERRORS) and type(error).__name__ != "PanicException":
            raise
        raise ShardError(_unreadable(url, one_line(error))) from error


def _unreadable(url: str, problem: str) -> str:
    # After the message, the library names the line of its source.
    return f"{without_secrets(url)} cannot be read as Lance: {problem.partition(', /')[0]}"
