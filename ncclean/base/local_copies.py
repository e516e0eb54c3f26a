"""Fetch tables' files from stores whole to this machine before reading them.

DuckDB asks a file system for the size and the date of each file whenever a query is bound, and
reads pages one by one: through fsspec that is hundreds of requests a file, one after the other, and
all under Python's lock. Its own client for stores is an extension to download, which a cluster may
not allow. The columns of a query are in as many places as a file has row groups, so a few large
requests cannot omit the others. One request for the whole file is the minimum; each later scan
reads a local disk.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ncclean.base import stores
from ncclean.base.formats import file_size
from ncclean.base.scratch import process_folder
from ncclean.base.url_secrets import without_secrets
from ncclean.errors import InputError

AT_ONCE = stores.REQUESTS_AT_ONCE
# s3fs fetches large files in parts of 50 MB; here, many files are on their way in any case.
_WHOLE = {"s3": {"max_concurrency": 1}, "s3a": {"max_concurrency": 1}}


class ListedFile(NamedTuple):
    """A file; in a store, also the size and version from its listing."""

    path: str
    size: int | None = None
    version: str | None = None


_copies: dict[str, tuple[ListedFile, Path]] = {}  # by path, until the process ends
_fetching = threading.Lock()


def local_copies(files: Sequence[ListedFile]) -> list[str]:
    """Return where the files are on this machine, fetching those in a store once.

    Raises `InputError` if one cannot be read, or the temporary folder has no room for them.
    """
    with _fetching:
        missing = [
            file
            for file in dict.fromkeys(files)
            if stores.is_url(file.path) and not _is_copied(file)
        ]
        _check_room(missing)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for file, copy in zip(missing, pool.map(_fetch, missing), strict=True):
                if file.path in _copies:  # as it was before
                    _copies[file.path][1].unlink(missing_ok=True)
                _copies[file.path] = file, copy
        return [
            str(_copies[file.path][1]) if stores.is_url(file.path) else file.path for file in files
        ]


def _is_copied(file: ListedFile) -> bool:
    """Check whether there is a copy of the same version; without one, of the same listing."""
    if file.path not in _copies:
        return False
    before = _copies[file.path][0]
    return before == file if file.version else before is file


def with_original_names(text: str) -> str:
    """Replace the paths of copies in a text by the original names in stores."""
    for path, (_, copy) in list(_copies.items()):
        text = text.replace(str(copy), without_secrets(path))
    return text


def _fetch(file: ListedFile) -> Path:
    system, path = stores.filesystem(file.path)
    copy = process_folder() / f"{uuid.uuid4().hex}.parquet"
    options = _WHOLE.get(file.path.partition("://")[0], {})
    stores.ask("read", file.path, system.get_file, path, str(copy), **options)
    return copy


def _check_room(files: Sequence[ListedFile]) -> None:
    """Raise `InputError` if the temporary folder has no room for copies of the files."""
    needed = sum(file.size or 0 for file in files)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{without_secrets(files[0].path)} and what is read with it take {file_size(needed)}, "
            f"and the temporary folder {folder} has {file_size(free)} left: set TMPDIR to a folder "
            "with more room"
        )
