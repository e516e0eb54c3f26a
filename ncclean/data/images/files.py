"""Images that lie in files of their own, read from below one folder and nowhere else."""

from __future__ import annotations

import os
import stat
from typing import Any

from ncclean import stores
from ncclean.data.member_samples import LARGEST_FILE
from ncclean.data.samples import SkipReason
from ncclean.errors import ShardError
from ncclean.regular_files import open_file
from ncclean.store_errors import explain, is_store_error, is_transient


class UnreadableFile(Exception):
    """A file that gives no image; `reason` is the status of its sample."""

    def __init__(self, reason: SkipReason, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class ImageRoot:
    """A folder that image files lie below, local or in a store.

    Tables are written by others: a path, or a link, that leads out of the folder is refused, since
    what it names would be read, embedded and exported.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_url = stores.is_url(folder)
        self._real = folder.rstrip("/") if self._is_url else os.path.realpath(folder)

    def read(self, path: str) -> bytes:
        """The bytes of a file, by its path from the folder or from the root of the file system.

        Raises `UnreadableFile` for what is not a file below the folder, is larger than 256 MiB,
        or that its store refuses, and `ShardError` if a store does not answer.
        """
        return self._read_url(path) if self._is_url else self._read_local(path)

    def _read_local(self, path: str) -> bytes:
        try:
            real = os.path.realpath(os.path.join(self._real, path))
            if not real.startswith(self._real.rstrip(os.sep) + os.sep):
                raise self._outside(path)
            facts = os.stat(real)
            if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for
                raise UnreadableFile(SkipReason.IMAGE_MISSING, f"{path} is not a file")
            _check_size(path, facts.st_size)
            with open_file(real) as file:
                return file.read()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise UnreadableFile(SkipReason.IMAGE_MISSING, f"{path}: {what}") from error

    def _read_url(self, path: str) -> bytes:
        inside = path.removeprefix(self._real + "/")
        if stores.is_url(inside) or inside.startswith("/") or ".." in inside.split("/"):
            raise self._outside(path)
        system, place = stores.filesystem(f"{self._real}/{inside}")
        try:
            return stores.patiently(_start, system, place, path)
        except FileNotFoundError as error:
            raise UnreadableFile(SkipReason.IMAGE_MISSING, f"{path}: no such object") from error
        except Exception as error:
            if not is_store_error(error) and not isinstance(error, ValueError):
                raise
            if is_transient(error):
                raise ShardError(explain(path, error, "read")) from error
            # Of this one object: stores that may not be listed refuse what is not there.
            what = explain(f"{self._real}/{inside}", error, "read")
            raise UnreadableFile(SkipReason.IMAGE_MISSING, what) from error

    def _outside(self, path: str) -> UnreadableFile:
        return UnreadableFile(
            SkipReason.IMAGE_MISSING,
            f"{path} is not below {self._folder}; --image-root names another folder",
        )


def _start(system: Any, place: str, path: str) -> bytes:
    """An object, of which not much more is read than may be used."""
    try:
        data: bytes = system.cat_file(place, start=0, end=LARGEST_FILE + 1)
    except Exception as error:
        # There is no first byte of an empty object.
        if "range" not in str(error).lower() or system.info(place).get("size"):
            raise
        return b""
    if len(data) > LARGEST_FILE:
        _check_size(path, system.info(place).get("size") or len(data))
    return data


def _check_size(path: str, size: int) -> None:
    if size > LARGEST_FILE:
        raise UnreadableFile(SkipReason.IMAGE_TOO_LARGE, f"{path} has {size:,} bytes")
