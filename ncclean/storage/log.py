"""An append-only log of JSON records: one file on a disk, numbered objects in a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from upath import UPath

from ncclean import stores
from ncclean.atomic import sync_folder
from ncclean.errors import InputError
from ncclean.store_errors import explain

# Objects cannot be appended to. Records are gathered for this long before they make an object; a
# crash loses them, and the work that they stand for is done again.
_GATHER_SECONDS = 5.0
_GATHER_RECORDS = 1000
# A list of a million shards has fewer.
_LONGEST_LINE = 1 << 28


class Log(Protocol):
    """Records in the order in which they were appended."""

    def append(self, record: dict[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def clear(self) -> None:
        """Delete every record of the log, which stays open and locked."""
        ...

    def remove(self) -> None:
        """Close the log and delete its file."""
        ...

    def close(self) -> None: ...


def open_log(path: UPath) -> tuple[Log, Iterator[dict[str, Any]]]:
    """Open the log at `path` (`*.jsonl`), created if needed, and read its records.

    Read the records to their end before you append. Raises `InputError` if the log cannot be
    opened, or another process on this machine is writing to it.
    """
    if stores.is_url(path):
        pieces = _objects(path)
        number = int(pieces[-1].stem.rsplit("-", 1)[1]) + 1 if pieces else 0
        return _Objects(path, number), _records_of(pieces)
    log = _File(Path(str(path)))
    return log, log.records()


def read_log(path: UPath) -> Iterator[dict[str, Any]]:
    """The records of a log that another process may be writing to; none if it does not exist."""
    if stores.is_url(path):
        return _records_of(_objects(path))
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is not a file: choose another --out")
        return _records_in(open(str(path), "rb"))
    except FileNotFoundError:
        return iter(())
    except OSError as error:
        raise InputError(explain(path, error, "read")) from error


def exists(path: UPath) -> bool:
    """Whether a run's log exists at `path`."""
    return bool(_objects(path)) if stores.is_url(path) else path.exists()


class _File:
    """Lines of one file, each synced before `append` returns. A lock keeps two writers apart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._locked()
            sync_folder(path.parent)
        except BlockingIOError as error:
            raise InputError(
                f"another run is writing to {path.parent}: wait for it, or use another --out"
            ) from error
        except (FileExistsError, NotADirectoryError) as error:
            file = next((place for place in path.parents if place.is_file()), path.parent)
            raise InputError(f"{file} is a file: choose another --out") from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # to write to it is to change a file elsewhere
                raise InputError(
                    f"{path} is a link, and a record is a file of its own: remove the link, or "
                    "choose another --out"
                ) from error
            raise InputError(explain(path, error)) from error
        self._is_torn = False  # whether the last line has no end

    def records(self) -> Iterator[dict[str, Any]]:
        with open(self._path, "rb") as file:
            for line in _lines(file):
                # The next record must not join a line that a crash has cut short.
                self._is_torn = not line.endswith(b"\n")
                record = _parse(line)
                if record is not None:
                    yield record

    def append(self, record: dict[str, Any]) -> None:
        line = memoryview(b"\n" * self._is_torn + json.dumps(record).encode() + b"\n")
        self._is_torn = True
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise InputError(explain(self._path, error)) from error
        self._is_torn = False

    def flush(self) -> None:
        """Every line is synced already."""

    def clear(self) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)
        except OSError as error:
            raise InputError(explain(self._path, error)) from error
        self._is_torn = False

    def remove(self) -> None:
        self.clear()
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _locked(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise InputError(f"{self._path} is not a file: choose another --out")
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the file was removed between the opening and the lock


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

    def clear(self) -> None:
        # The first object goes first: without it, the rest does not pass for a log.
        for piece in _objects(self._path):
            stores.ask("remove", piece, piece.unlink)
        self._gathered, self._number = [], 0

    def remove(self) -> None:
        self.clear()

    def close(self) -> None:
        self.flush()

    def _write(self) -> None:
        target = self._path.with_name(f"{self._path.stem}-{self._number:06d}{self._path.suffix}")
        data = ("\n".join(self._gathered) + "\n").encode()
        stores.ask("write", target, target.write_bytes, data)
        self._number += 1
        self._gathered = []
        self._written = time.monotonic()


def _objects(path: UPath) -> list[UPath]:
    """Objects `manifest-000000.jsonl`, ... beside where the file would be, in order."""

    def listed() -> list[UPath]:
        try:
            return list(path.parent.glob(f"{path.stem}-*{path.suffix}"))
        except FileNotFoundError:
            return []

    name = re.compile(rf"{re.escape(path.stem)}-\d{{6,}}{re.escape(path.suffix)}")
    pieces = [piece for piece in stores.ask("list", path, listed) if name.fullmatch(piece.name)]
    return sorted(pieces, key=lambda piece: piece.name)


def _records_in(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """One at a time: those of 100,000 shards take more memory than their file."""
    with file:
        for line in _lines(file):
            record = _parse(line)
            if record is not None:
                yield record


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Raises `InputError` for a line that has no end in sight: it would not fit into memory."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise InputError(
                f"{file.name} is not a record of ncclean: a line is longer than "
                f"{_LONGEST_LINE >> 20} MB. Choose another --out, or remove it with its output"
            )
        yield line


def _records_of(pieces: list[UPath]) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        for line in stores.read_bytes(piece).splitlines():
            record = _parse(line)
            if record is not None:
                yield record


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
