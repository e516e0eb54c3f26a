"""Publish files that are whole or absent: written aside, synced, renamed or uploaded."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Collection, Container, Iterator
from contextvars import ContextVar
from pathlib import Path

from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import short_name
from ncclean.base.scratch import scratch_folder
from ncclean.base.store_errors import explain, is_full, is_store_error
from ncclean.errors import InputError, NccleanError

_ASIDE = re.compile(r"\.(?P<name>.+)\.\d+\.tmp", re.DOTALL)
_reports: ContextVar[Callable[[UPath], None] | None] = ContextVar("_reports", default=None)


@contextlib.contextmanager
def reported(report: Callable[[UPath], None] | None) -> Iterator[None]:
    """Within this context, call `report` with each file that this thread is about to publish.

    None reports none: a command's own state is not an output.
    """
    token = _reports.set(report)
    try:
        yield
    finally:
        _reports.reset(token)


@contextlib.contextmanager
def published(path: UPath) -> Iterator[Path]:
    """Yield a local path to write to; on success it becomes `path`, on failure it is removed.

    Local files are renamed; the temporary name starts with a dot, so globs of the folder do not see
    it. Objects are uploaded in one piece from a temporary file, retrying while the store refuses.
    Raises `InputError` with one sentence if the disk is full or the place cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            if stores.is_url(path):
                aside = stack.enter_context(scratch_folder()) / path.name
                yield aside
                _report(path)
                stores.patiently(path.fs.put_file, str(aside), path.path)
            else:
                aside = stack.enter_context(aside_of(Path(str(path))))
                yield aside
                _report(path)
                _rename(aside, Path(str(path)))
        except Exception as error:
            if not is_store_error(error):
                raise_if_full(path, error)
                raise
            raise InputError(explain(path, error)) from error


def create(path: UPath, data: bytes) -> bool:
    """Publish a file that must not exist yet; return False if one with other content exists.

    Among several processes that try, one succeeds, unless the store lacks conditional writes.
    """
    return bool(stores.ask("write", path, _create, path, data))


def _create(path: UPath, data: bytes) -> bool:
    try:
        if stores.is_url(path):
            path.fs.pipe_file(path.path, data, mode="create")
        else:
            with aside_of(Path(str(path))) as aside:
                aside.write_bytes(data)
                os.link(aside, str(path))
                sync_folder(aside.parent)
    except (OSError, NotImplementedError, TypeError) as error:
        if not path.exists():
            if not _lacks_conditions(error):
                raise
            path.write_bytes(data)
            return True
        return stores.read_bytes(path) == data  # ours, if the store's answer was lost
    return True


def _lacks_conditions(error: Exception) -> bool:
    """Check whether a store, or a disk without links, lacks exclusive creation."""
    unknown = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
    if isinstance(error, OSError):
        return error.errno in unknown
    return True


def raise_if_full(path: UPath | Path, error: Exception) -> None:
    """Raise `InputError` with one sentence if the disk of a local file that is written is full.

    For errors that do not say so; those of ncclean do.
    """
    if isinstance(error, NccleanError) or stores.is_url(str(path)):
        return
    if is_full(Path(str(path)).parent):
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise InputError(explain(path, full)) from error


def remove_leftovers(folder: UPath, names: Container[str]) -> None:
    """Remove the temporary files that killed processes left while writing these files."""
    if stores.is_url(folder) or not folder.is_dir():
        return
    if isinstance(names, Collection):
        names = set(map(short_name, names))
    for path in Path(str(folder)).glob(".*.tmp"):
        match = _ASIDE.fullmatch(path.name)
        if match and match["name"] in names:
            stores.ask("remove", path, path.unlink, missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a local folder, so that the names of new files survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def aside_of(path: Path) -> Iterator[Path]:
    """Yield a hidden temporary path beside a local file; what is there is removed at the end."""
    # Processes of two nodes may have the same number and write to one folder.
    number = f"{os.getpid()}{secrets.randbelow(10**9):09d}"
    aside = path.with_name(f".{short_name(path.name)}.{number}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _report(path: UPath) -> None:
    report = _reports.get()
    if report is not None:
        report(path)


def _rename(aside: Path, path: Path) -> None:
    with open(aside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)
