"""Files whose names are not quite those that a table has for them."""

from __future__ import annotations

import functools
import posixpath
import unicodedata
from collections import defaultdict
from typing import NamedTuple
from urllib.parse import unquote

from ncclean.base import stores
from ncclean.errors import InputError

_FOLDERS_KEPT = 8  # whose names are held
_MOST_NAMES = 100_000  # of a folder
_IMAGE_FOLDERS = frozenset(("images", "image", "imgs", "img"))


class NearName(NamedTuple):
    """A path below a folder, and in which respect the name that was asked for differs from it."""

    path: str
    why: str


class NearNames:
    """Looks for files of one folder by what their names have in common with a path.

    Names are alike if they differ in letter case, in Unicode's normal form, in the separator of
    folders or in percent signs. Of an absolute path, folders in front may be of another machine.
    A file that two paths could mean is given to the first alone.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")
        self._names = functools.lru_cache(_FOLDERS_KEPT)(self._listed)
        self._taken: dict[str, str] = {}  # path asked for, by the one that was found

    def find(self, path: str) -> list[NearName]:
        """The file that a path means; several where more than one may be meant, or none."""
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
        """The file that a path means, which no other path means from then on."""
        matches = self.find(path)
        is_free = len(matches) == 1 and self._taken.setdefault(matches[0].path, path) == path
        return matches[0] if is_free else None

    def _alike(self, folder: str, parts: list[str]) -> list[str]:
        """Paths below the folder whose parts are alike."""
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


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unquote(name)).casefold()


def _difference(asked: str, path: str, has_front: bool) -> str:
    """In which respect a path differs from the one that was asked for."""
    if has_front:
        return "folders in front"
    if asked.replace("\\", "/") == path:
        return "separator of folders"
    if asked.casefold() == path.casefold():
        return "letter case"
    if unicodedata.normalize("NFC", asked) == unicodedata.normalize("NFC", path):
        return "normal form of Unicode"
    return "percent signs" if unquote(asked) == unquote(path) else "folder of images"
