"""Which command wrote a file: a mark inside it says so, in any format.

One rule for the files that commands write without a record of the run: what the same command wrote
is replaced, anything else is refused unless a person says `--overwrite`. The mark is a few words
among the metadata that each format has, near its beginning or its end: it is whole where the file
is, and goes with it when it is moved or copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from upath import UPath

from ncclean import stores
from ncclean.errors import InputError

# A page begins with it; the metadata of PDF stand at the end.
_LOOKED_AT = 1 << 16


def mark(command: str) -> str:
    """The words that a file of `ncclean COMMAND` holds."""
    return f"made by ncclean {command}"


def was_made_by(path: str, command: str) -> bool:
    """Whether there is a file at `path` with the mark of the command."""
    place = stores.location(path)
    if not (stores.is_url(path) or os.path.isfile(path)):
        return False
    if path.endswith(".parquet"):
        return _metadata(place).get(b"made_by") == mark(command).encode()
    size = stores.ask("read", path, place.stat).st_size
    ends = stores.read_range(path, 0, min(size, _LOOKED_AT))
    if size > _LOOKED_AT:
        ends += b"\n" + stores.read_range(path, max(size - _LOOKED_AT, _LOOKED_AT), size)
    return re.search(re.escape(mark(command)).encode() + rb"(?![a-z-])", ends) is not None


def _metadata(place: UPath) -> dict[bytes, bytes]:
    """Of a Parquet file, whose captions may hold any words; none of what is no such file."""
    import pyarrow

    try:
        with stores.open_parquet(place) as file:
            return dict(file.metadata.metadata or {})
    except (OSError, pyarrow.ArrowException):
        return {}


def check_free(paths: Iterable[str | None], command: str, overwrite: bool = False) -> None:
    """Raise `InputError` if a file of anything but the command is where it will write.

    `overwrite` allows files to be replaced, but no folders and no devices. None is passed over.
    """
    for path in paths:
        if path is None or not _is_there(path):
            continue
        if not stores.is_url(path) and os.path.exists(path) and not os.path.isfile(path):
            what = "a folder" if os.path.isdir(path) else "not a file"
            raise InputError(f"{path} is {what}: choose another path")
        if not overwrite and not was_made_by(path, command):
            raise InputError(
                f"{path} is in the way: it was not written by `ncclean {command}`. Choose another "
                "path, or use --overwrite to replace it"
            )


def _is_there(path: str) -> bool:
    if stores.is_url(path):
        return bool(stores.present_files([UPath(stores.location(path))]))
    return os.path.lexists(path)
