"""An append-only log of JSON records: one file on a disk, numbered objects in a store."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from upath import UPath

from ncclean import stores
from ncclean.errors import InputError

# Objects cannot be appended to. Records are gathered for this long before they make an object; a
# crash loses them, and the shards they tell of are scored again.
_GATHER_SECONDS = 5.0
_GATHER_RECORDS = 1000


class Log(Protocol):
    """Records in the order in which they were appended."""

    def append(self, record: dict[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def open_log(path: UPath, *, fresh: bool) -> tuple[Log, Iterator[dict[str, Any]]]:
    """The log at `path` (ending in `.jsonl`) and the records that are in it, empty if `fresh`.

    Raises `InputError` if it cannot be opened, or another process on this machine is writing to
    it.
    """
    return _open_objects(path, fresh) if stores.is_url(path) else _open_file(Path(str(path)), fresh)


def exists(path: UPath) -> bool:
    """Whether there is a log at `path`."""
    if not stores.is_url(path):
        return path.exists()
    return bool(stores.ask("list", path, _objects, path))


def _open_file(path: Path, fresh: bool) -> tuple[Log, Iterator[dict[str, Any]]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(stores.explain(path, error)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise InputError(f"another run is writing to {path.parent}") from error
    if fresh:
        file.truncate(0)
    file.seek(0)
    return _File(path, file), _lines(file)


def _lines(file: TextIO) -> Iterator[dict[str, Any]]:
    torn = False
    for line in file:
        record = _parse(line)
        torn = record is None
        if record is not None:
            yield record
    if torn:
        file.write("\n")  # so that the next record does not join the torn line


class _File:
    """Lines of one file, each synced before `append` returns."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file

    def append(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(stores.explain(self._path, error)) from error

    def flush(self) -> None:
        """Every line is synced already."""

    def close(self) -> None:
        self._file.close()


def _open_objects(path: UPath, fresh: bool) -> tuple[Log, Iterator[dict[str, Any]]]:
    """Objects `manifest-000000.jsonl`, ... beside where the file would be."""
    found = sorted(stores.ask("list", path, _objects, path), key=lambda piece: piece.name)
    if fresh:
        for piece in found:
            stores.ask("remove", piece, piece.unlink)
        found = []
    last = int(found[-1].stem.rsplit("-", 1)[1]) if found else -1
    return _Objects(path, last + 1), _pieces(found)


def _objects(path: UPath) -> list[UPath]:
    try:
        return list(path.parent.glob(f"{path.stem}-*{path.suffix}"))
    except FileNotFoundError:
        return []


def _pieces(found: list[UPath]) -> Iterator[dict[str, Any]]:
    for piece in found:
        for line in stores.read_bytes(piece).decode().splitlines():
            record = _parse(line)
            if record is not None:
                yield record


class _Objects:
    """Records gathered into objects. The first one is written at once: it says whose log it is."""

    def __init__(self, path: UPath, number: int) -> None:
        self._path, self._number = path, number
        self._gathered: list[str] = []
        self._written = -_GATHER_SECONDS

    def append(self, record: dict[str, Any]) -> None:
        self._gathered.append(json.dumps(record))
        is_due = time.monotonic() - self._written >= _GATHER_SECONDS
        if is_due or len(self._gathered) >= _GATHER_RECORDS or self._number == 0:
            self._write()

    def flush(self) -> None:
        if self._gathered:
            self._write()

    def close(self) -> None:
        self.flush()

    def _write(self) -> None:
        target = self._path.with_name(f"{self._path.stem}-{self._number:06d}{self._path.suffix}")
        data = ("\n".join(self._gathered) + "\n").encode()
        stores.ask("write", target, target.write_bytes, data)
        self._number += 1
        self._gathered = []
        self._written = time.monotonic()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
