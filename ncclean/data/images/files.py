"""Read image files from below one folder and nowhere else."""

from __future__ import annotations

import functools
import os
import posixpath
import stat
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from ncclean.base import stores
from ncclean.base.regular_files import open_file
from ncclean.base.store_errors import explain, is_store_error, is_transient
from ncclean.data.member_samples import LARGEST_FILE
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 32  # concurrent requests to a store


class UnreadableFile(Exception):
    """The error of a file without a usable image; `reason` is the status of its sample.

    `may_be_near` says that no file has this name, but a similar name may be meant.
    """

    def __init__(self, reason: SkipReason, what: str, may_be_near: bool = False) -> None:
        super().__init__(what)
        self.reason, self.may_be_near = reason, may_be_near


class ImageRoot:
    """A folder of image files, local or in a store.

    Tables are written by others: a path, or a link, that leads out of the folder is refused, since
    the target would be read, embedded and exported. `start` is a folder below it where paths may
    begin, too. `other_names` counts files found under another name than the path, by what differs.
    """

    def __init__(self, folder: str, start: str | None = None) -> None:
        self.other_names: Counter[str] = Counter()
        self._folder = folder
        self._is_url = stores.is_url(folder)
        self._real = folder.rstrip("/") if self._is_url else os.path.realpath(folder)
        other = os.path.realpath(start) if start is not None else ""
        self._start = other if not self._is_url and self._holds(other) else None
        self._near = NearNames(self._real)

    def read(self, path: str) -> bytes:
        """Read a file, by its path from the folder or from the root of the file system.

        A local file with a similar name is read if the match is unambiguous; over http, one whose
        name the path holds percent-encoded. Raises `UnreadableFile` for a path that is not a file
        below the folder, exceeds 256 MiB, or is refused by its store, and `ShardError` if a store
        does not answer.
        """
        try:
            return self.read_exactly(path)
        except UnreadableFile as error:
            if not error.may_be_near:
                raise
            near = _decoded(path) if self._is_url else self._near.take(path)
            if near is None:
                raise (error if self._is_url else self._with_near(path, error)) from error
            data = self.read_exactly(near.path)
            self.other_names[near.why] += 1
            return data

    def _with_near(self, path: str, error: UnreadableFile) -> UnreadableFile:
        """Return the error of a missing file, with a name that may be meant."""
        near = self._near.find(path)
        if not near:
            return error
        others = " and others are" if len(near) > 1 else ", which another path takes, is"
        return UnreadableFile(error.reason, f"{error}; {near[0].path}{others} alike")

    def read_exactly(self, path: str) -> bytes:
        """Read a file of exactly this name."""
        return self._read_url(path) if self._is_url else self._read_local(path)

    def _read_local(self, path: str) -> bytes:
        try:
            real = self._place(path)
            if not self._holds(real):
                raise self._outside(path, real)
            facts = os.stat(real)
            if not stat.S_ISREG(facts.st_mode):  # reading a pipe would block
                raise UnreadableFile(SkipReason.IMAGE_MISSING, f"{path} is not a file")
            _check_size(path, facts.st_size)
            with open_file(real) as file:
                return file.read()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            raise UnreadableFile(SkipReason.IMAGE_MISSING, f"{path}: {what}", is_missing) from error

    def _place(self, path: str) -> str:
        """Return the real path of a file, from the first folder that has it."""
        place = os.path.realpath(os.path.join(self._real, path))
        if self._start is None or os.path.lexists(place):
            return place
        other = os.path.realpath(os.path.join(self._start, path))
        if not os.path.lexists(other):
            return place
        self.other_names["folder of the table"] += 1
        return other

    def _holds(self, real: str) -> bool:
        return real.startswith(self._real.rstrip(os.sep) + os.sep)

    def _read_url(self, path: str) -> bytes:
        inside = path.removeprefix(self._real + "/")
        if stores.is_url(inside) or inside.startswith("/") or ".." in inside.split("/"):
            raise self._outside(path)
        is_http = self._real.startswith(stores.HTTP)
        try:
            if is_http and inside == path:  # a file's name, in which `#` begins no fragment
                inside = quote(inside, errors="surrogateescape")
            system, place = stores.filesystem(f"{self._real}/{inside}")
            return stores.patiently(_start, system, place, path)
        except FileNotFoundError as error:
            raise UnreadableFile(
                SkipReason.IMAGE_MISSING, f"{self._real}/{inside}: no such object", is_http
            ) from error
        except Exception as error:
            if not is_store_error(error) and not isinstance(error, ValueError):
                raise
            if is_transient(error):
                raise ShardError(explain(path, error, "read")) from error
            # List this one object: stores that forbid listing refuse missing names.
            what = explain(f"{self._real}/{inside}", error, "read")
            raise UnreadableFile(SkipReason.IMAGE_MISSING, what) from error

    def _outside(self, path: str, real: str | None = None) -> UnreadableFile:
        """Return the error for a path that leads out of the folder, by a link or by its name."""
        named = os.path.normpath(os.path.join(self._real, path))
        if real is not None and self._holds(named):
            what = f"{path} is a link to {real}, which is not below {self._folder}; --image-root "
            return UnreadableFile(SkipReason.IMAGE_MISSING, f"{what}names a folder that holds both")
        what = f"{path} is not below {self._folder}; --image-root names another folder"
        return UnreadableFile(SkipReason.IMAGE_MISSING, what, may_be_near=os.path.isabs(path))


class UnitFiles:
    """Reads the image files of one shard, except those of unwanted samples."""

    def __init__(self, shard: ShardRef, wanted: Container[str] | None = None) -> None:
        """Set up the reader; `wanted` are keys, see `ncclean.data.reader.read_samples`."""
        root = shard.files[0]
        images = ImageRoot(root, start=posixpath.dirname(shard.url))
        self.read, self.read_exactly = images.read, images.read_exactly
        self.other_names = images.other_names
        self._wanted = wanted
        self._is_remote = stores.is_url(root)

    def is_wanted(self, key: str) -> bool:
        return self._wanted is None or key in self._wanted

    def map(self, read: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `read` to every item, and return the results in order."""
        if not self._is_remote:
            yield from map(read, items)
            return
        remaining = iter(items)
        with ThreadPoolExecutor(_AT_ONCE, "ncclean-images") as pool:
            while chunk := list(islice(remaining, _AT_ONCE)):
                yield from pool.map(read, chunk)


def _start(system: Any, place: str, path: str) -> bytes:
    """Read the start of an object, not much more than the size limit."""
    try:
        data: bytes = system.cat_file(place, start=0, end=LARGEST_FILE + 1)
    except Exception as error:
        # An empty object has no first byte.
        if "range" not in str(error).lower() or system.info(place).get("size"):
            raise
        return b""
    if len(data) > LARGEST_FILE:
        _check_size(path, system.info(place).get("size") or len(data))
    return data


def _check_size(path: str, size: int) -> None:
    if size > LARGEST_FILE:
        raise UnreadableFile(SkipReason.IMAGE_TOO_LARGE, f"{path} has {size:,} bytes")


_FOLDERS_KEPT = 8  # number of folders whose names are held
_MOST_NAMES = 100_000  # per folder
_IMAGE_FOLDERS = frozenset(("images", "image", "imgs", "img"))


class NearName(NamedTuple):
    """A path below a folder that resembles a requested one, and how they differ."""

    path: str
    why: str


class NearNames:
    """Finds files of one folder whose names resemble a path.

    Names match if they differ in letter case, Unicode normal form, folder separator or
    percent-encoding. Leading folders of an absolute path may be another machine's. A file that two
    paths could mean is given to the first only.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")
        self._names = functools.lru_cache(_FOLDERS_KEPT)(self._listed)
        self._taken: dict[str, str] = {}  # requested path, by the path found

    def find(self, path: str) -> list[NearName]:
        """Find the files that a path may mean; several if ambiguous, or none."""
        plain = path.replace("\\", "/")
        parts = [part for part in plain.split("/") if part not in ("", ".")]
        is_elsewhere = plain.startswith("/") or plain[1:2] == ":"
        for first in range(len(parts) if is_elsewhere else 1):
            matches = self._alike("", parts[first:])
            if not matches:
                inside = [name for name in self._names("") if name in _IMAGE_FOLDERS]
                matches = [
                    one for name in inside for one in self._alike("", [name, *parts[first:]])
                ]
            if matches:
                return [NearName(one, _difference(path, one, first > 0)) for one in matches]
        return []

    def take(self, path: str) -> NearName | None:
        """Return the file that a path means, and reserve it for this path."""
        matches = self.find(path)
        is_free = len(matches) == 1 and self._taken.setdefault(matches[0].path, path) == path
        return matches[0] if is_free else None

    def _alike(self, folder: str, parts: list[str]) -> list[str]:
        """Return paths below the folder with similar parts."""
        folders = [folder]
        for part in parts:
            folders = [
                posixpath.join(one, name)
                for one in folders
                for name in self._names(one).get(_folded(part), ())
            ]
        return folders

    def _listed(self, folder: str) -> dict[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        try:
            entries = stores.listing(posixpath.join(self._folder, folder))
            for entry in entries if len(entries) <= _MOST_NAMES else ():
                names[_folded(entry.name)].append(entry.name)
        except InputError:
            pass
        return dict(names)


def _decoded(path: str) -> NearName | None:
    """Return the path without its percent-encoding, if it has any."""
    plain = unquote(path)
    return None if plain == path else NearName(plain, _difference(path, plain, False))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unquote(name)).casefold()


def _difference(asked: str, path: str, has_front: bool) -> str:
    """Return how a path differs from the requested one."""
    if has_front:
        return "folders in front"
    if asked.replace("\\", "/") == path:
        return "separator of folders"
    if asked.casefold() == path.casefold():
        return "letter case"
    if unicodedata.normalize("NFC", asked) == unicodedata.normalize("NFC", path):
        return "normal form of Unicode"
    return "percent signs" if unquote(asked) == unquote(path) else "folder of images"
