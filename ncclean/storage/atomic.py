"""Files that are either whole or not there: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ncclean.errors import InputError


@contextlib.contextmanager
def published(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it becomes `path`, on failure it is removed.

    The temporary name starts with a dot, so globs of the folder do not see it. Raises
    `InputError` with one sentence if the disk is full or the folder cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(explain(path, error)) from error
    finally:
        aside.unlink(missing_ok=True)


def explain(path: Path, error: OSError) -> str:
    """What a failed write means and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for {path}; nothing is lost: free some and run the same command"
    return f"cannot write {path}: {error.strerror or error}"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
