"""Open regular local files, and explain in one sentence pipes and devices instead of them."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

from upath import UPath

LFS_POINTER = b"version https://git-lfs"  # first bytes of a git LFS pointer in a clone without LFS
IS_LFS_POINTER = "it is a pointer of Git LFS in place of the file: fetch that with `git lfs pull`"


def open_file(path: str | os.PathLike[str], buffering: int = -1) -> IO[bytes]:
    """Open a local regular file for reading.

    Raises `OSError` for anything else: a pipe would block, a device has no end.
    """
    return open(path, "rb", buffering, opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise _not_a_file(path, mode)


def check_is_file(path: str | UPath) -> None:
    """Raise `OSError` for a local path that exists and, links followed, is not a regular file.

    For readers that open a path themselves; others use `open_file`.
    """
    if "://" in str(path):
        return
    try:
        mode = os.stat(str(path)).st_mode
    except (OSError, ValueError):  # reported by whatever opens it
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _not_a_file(str(path), mode)


def why_missing(path: str | UPath) -> str:
    """Return a sentence if a path does not exist, or is a pipe or a device."""
    try:
        check_is_file(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} does not exist"


def _not_a_file(path: str, mode: int) -> OSError:
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    kind = kinds.get(stat.S_IFMT(mode), "device")
    return OSError(errno.EINVAL, f"it is a {kind}, not a file", path)
