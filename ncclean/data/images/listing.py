"""The files of a folder that make samples, from one key to another, without holding them all."""

from __future__ import annotations

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
        found = _listed(folder)
        extensions = {*_EXTENSIONS, caption_key or "json"}
        for name in sorted(filter(lambda name: _is_meant(name, extensions), found), key=_split):
            key, extension = _split(name)
            if span is not None and not span[0] <= key <= span[1]:
                continue
            size, version = found[name] or _facts(f"{folder}/{name}")
            if size is not None:
                yield Entry(key, extension.lower(), name, size, version)
    except OSError as error:
        raise ShardError(stores.explain(folder, error, "list")) from error


def has_image_files(folder: str) -> bool:
    """Whether images lie in the folder itself. Raises `ShardError` if it cannot be listed."""
    try:
        return any(_is_meant(name, IMAGE_EXTENSIONS) for name in _listed(folder))
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


def _listed(folder: str) -> dict[str, tuple[int, str] | None]:
    """Names in a folder, with size and version where the listing has them."""
    if not stores.is_url(folder):
        return dict.fromkeys(os.listdir(folder))
    system, path = stores.filesystem(folder)
    return {
        one["name"].rpartition("/")[2]: (
            int(one.get("size") or 0),
            str(one.get("ETag") or one.get("etag") or one.get("LastModified") or ""),
        )
        for one in stores.patiently(system.ls, path, detail=True)
        if one["type"] == "file"
    }


def _facts(path: str) -> tuple[int | None, str]:
    """Size and version of a local file; no size for a folder."""
    try:
        facts = os.stat(path)
    except OSError:  # a link to nothing or to itself: said when it is read
        return 0, ""
    return None if stat.S_ISDIR(facts.st_mode) else facts.st_size, str(facts.st_mtime_ns)


def _is_meant(name: str, extensions: Collection[str]) -> bool:
    is_ours = not name.startswith(".") and not name.endswith(_NOT_OF_A_SAMPLE)
    return is_ours and _split(name)[1].lower() in extensions


def _split(name: str) -> tuple[str, str]:
    key, _, extension = name.rpartition(".")
    return key, extension
