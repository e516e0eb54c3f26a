"""The files of a folder that make samples, from one key to another, without holding them all."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ncclean import stores
from ncclean.data.sample_groups import CAPTION_EXTENSIONS, IMAGE_EXTENSIONS
from ncclean.errors import ShardError

# What img2dataset writes of a whole folder.
_NOT_OF_A_SAMPLE = "_stats.json"
_EXTENSIONS = IMAGE_EXTENSIONS.union(CAPTION_EXTENSIONS, ("json",))


class Entry(NamedTuple):
    """A file of a folder. `version` changes when its bytes do."""

    key: str
    extension: str
    name: str
    size: int
    version: str


def entries_of(
    folder: str, span: tuple[str, str] | None = None, caption_key: str | None = None
) -> Iterator[Entry]:
    """The files of the folder itself that make samples, by key, those of the first to last key.

    A key is a name up to its last dot; files with the ending `caption_key` are captions, too.
    Raises `ShardError` if the folder cannot be listed.
    """
    try:
        yield from sorted(_entries(folder, span, {*_EXTENSIONS, caption_key or "json"}))
    except OSError as error:
        raise ShardError(stores.explain(folder, error, "list")) from error


def subfolders(folder: str) -> list[str]:
    """The folders in a folder, sorted; links to folders are not followed."""
    try:
        if not stores.is_url(folder):
            with os.scandir(folder) as found:
                return sorted(one.path for one in found if one.is_dir(follow_symlinks=False))
        system, path = stores.filesystem(folder)
        scheme = folder.split("://", 1)[0]
        return sorted(
            f"{scheme}://{one['name'].split('://', 1)[-1].rstrip('/')}"
            for one in stores.patiently(system.ls, path, detail=True)
            if one["type"] == "directory" and one["name"].rstrip("/") != path.rstrip("/")
        )
    except OSError as error:
        raise ShardError(stores.explain(folder, error, "list")) from error


def version_of(entries: list[Entry]) -> str:
    """Changes when one of the files does."""
    digest = hashlib.blake2b(digest_size=16)
    for entry in entries:
        digest.update(f"{entry.name}\0{entry.size}\0{entry.version}\0".encode(errors="replace"))
    return digest.hexdigest()


def _entries(
    folder: str, span: tuple[str, str] | None, extensions: Collection[str]
) -> Iterator[Entry]:
    for name, size, version in _listed(folder):
        key, _, ending = name.rpartition(".")
        extension = ending.lower()
        if extension not in extensions or name.startswith(".") or name.endswith(_NOT_OF_A_SAMPLE):
            continue
        if span is None or span[0] <= key <= span[1]:
            yield Entry(key, extension, name, size, version)


def _listed(folder: str) -> Iterator[tuple[str, int, str]]:
    if stores.is_url(folder):
        system, path = stores.filesystem(folder)
        for one in stores.patiently(system.ls, path, detail=True):
            name = one["name"].rpartition("/")[2]
            if one["type"] == "file":
                changed = one.get("ETag") or one.get("etag") or one.get("LastModified") or ""
                yield name, int(one.get("size") or 0), str(changed)
        return
    with os.scandir(folder) as found:
        for entry in found:
            try:
                facts = entry.stat()
            except OSError:  # a link to nothing or to itself: said when it is read
                yield entry.name, 0, ""
                continue
            if not stat.S_ISDIR(facts.st_mode):
                yield entry.name, facts.st_size, str(facts.st_mtime_ns)
