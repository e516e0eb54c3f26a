"""Files that are either whole or not there: written aside, synced, renamed or uploaded."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from upath import UPath

from ncclean import stores
from ncclean.errors import InputError


@contextlib.contextmanager
def published(path: UPath) -> Iterator[Path]:
    """Yield a local path to write to; on success it becomes `path`, on failure it is removed.

    Local files are renamed; the temporary name starts with a dot, so globs of the folder do not
    see it. Objects are uploaded in one piece from a temporary file, again and again while the
    store refuses. Raises `InputError` with one sentence if the disk is full or the place cannot
    be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            if stores.is_url(path):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ncclean-"))
                aside = Path(folder) / path.name
                yield aside
                stores.patiently(path.fs.put_file, str(aside), path.path)
            else:
                aside = stack.enter_context(_aside(Path(str(path))))
                yield aside
                _rename(aside, Path(str(path)))
        except Exception as error:
            if not stores.is_store_error(error):
                raise
            raise InputError(stores.explain(path, error)) from error


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _rename(aside: Path, path: Path) -> None:
    with open(aside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(aside, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
