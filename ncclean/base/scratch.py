"""Temporary folders that are removed soon after a process is killed."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ncclean-scratch-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, removed at the end; also remove those left by killed processes.

    Its owner holds a lock on it, which the system releases when the process dies.
    """
    _remove_left()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _locked(folder)
        except FileNotFoundError:
            continue
        except OSError:  # no locks on this file system: nobody else considers it abandoned either
            with contextlib.ExitStack() as held:
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                yield folder
            return
        if lock is None:  # another process considers it abandoned
            continue
        if os.fstat(lock).st_nlink:
            break
        os.close(lock)  # it has been removed already
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@functools.cache
def process_folder() -> Path:
    """The temporary folder of this process, removed at its end."""
    held = contextlib.ExitStack()
    atexit.register(held.close)
    return held.enter_context(scratch_folder())


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # gone by now, or another user's
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """Return a descriptor that holds the lock; None if another one does. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
