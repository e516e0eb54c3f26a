"""Lists of the image files that tasks write: to remove them again, and to find two of one path."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.scratch import scratch_folder
from ncclean.storage.catalog import connect
from ncclean.storage.tables import listed

_PATTERN = "*_files-*.parquet"
_SCHEMA = pa.schema([("task", pa.int64()), ("file", pa.string()), ("digest", pa.binary())])
# Disks that do not tell large from small letters, or two spellings of an accent, have one file.
_SAME_FILE = "lower(nfc_normalize(file))"


class ListedFile(NamedTuple):
    """A file to write, with the digest of an image; `digest` is None for a caption."""

    file: str
    digest: bytes | None


def digest_of(image: bytes) -> bytes:
    """Digest by which images of one path are compared."""
    return hashlib.blake2b(image, digest_size=16).digest()


def write_list(work: UPath, task: str, batch: int, files: Iterable[ListedFile]) -> None:
    """Write the list of a batch of files of a task, before they are written."""
    rows = [{"task": int(task), **one._asdict()} for one in files]
    with published(work / f"{task}_files-{batch:05d}.parquet") as aside:
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), aside)


def lists_in(work: UPath) -> list[UPath]:
    """Return the lists of all tasks."""
    return stores.ask("list", work, listed, work, _PATTERN)


def names_in(path: UPath) -> Iterator[str]:
    """Yield the names of the files in a list. Raises `InputError` if it cannot be read."""
    with (
        scratch_folder() as scratch,
        contextlib.closing(connect([_near(path, scratch)])) as connection,
    ):
        cursor = connection.execute("SELECT file::VARCHAR FROM scores WHERE file IS NOT NULL")
        while rows := cursor.fetchmany(10_000):
            yield from (name for (name,) in rows)


def replaced_images(out: UPath, work: UPath) -> Mapping[int, dict[str, int]]:
    """Return the images that another task's image of the same path replaced.

    By task, their paths with the number of samples. Tasks see their own files only; what lies at
    the path at the end tells whose image it is.
    """
    found: dict[int, dict[str, int]] = defaultdict(dict)
    lists = lists_in(work)
    if not lists:
        return found
    with (
        scratch_folder() as scratch,
        contextlib.closing(connect(_near(path, scratch) for path in lists)) as connection,
    ):
        cursor = connection.execute(
            f"""WITH shared AS (SELECT {_SAME_FILE} AS place FROM scores WHERE digest IS NOT NULL
                GROUP BY place HAVING count(DISTINCT digest) > 1)
            SELECT task, file, digest, count(*) FROM scores
            WHERE digest IS NOT NULL AND {_SAME_FILE} IN (FROM shared)
            GROUP BY task, file, digest ORDER BY file, task"""
        )
        file, there = "", None
        while rows := cursor.fetchmany(10_000):
            for task, name, digest, count in rows:
                if name != file:
                    file, there = name, _digest_at(out / name)
                if there not in (None, digest):
                    found[task][name] = count
    return found


def _near(path: UPath, scratch: Path) -> str:
    """A list on this machine, fetched if it is in a store."""
    if not stores.is_url(path):
        return str(path)
    (scratch / path.name).write_bytes(stores.ask("read", path, stores.read_bytes, path))
    return str(scratch / path.name)


def _digest_at(path: UPath) -> bytes | None:
    """Digest of a file; None if there is none."""
    try:
        return digest_of(stores.read_bytes(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
