"""The files that a run has made, under names that stay right when its output is moved."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from upath import UPath

from ncclean import stores
from ncclean.atomic import remove_leftovers


class MadeFiles:
    """Files by their names relative to `base`, a folder or a file; others by their whole path."""

    def __init__(self, base: UPath) -> None:
        self._base = base
        self._names: dict[str, None] = {}

    def add(self, names: Iterable[str]) -> None:
        self._names.update(dict.fromkeys(names))

    def new_names(self, paths: Iterable[UPath | Path]) -> list[str]:
        """The names of those paths that are not in the list."""
        names = dict.fromkeys(map(self._name, paths))
        return [name for name in names if name not in self._names]

    def paths(self) -> Iterator[UPath]:
        for name in self._names:
            if name == ".":
                yield self._base
            elif stores.is_url(name) or os.path.isabs(name):
                yield stores.location(name)
            elif ".." not in name.split("/"):
                yield self._base / name

    def _name(self, path: UPath | Path) -> str:
        place, base = absolute(path), absolute(self._base)
        return "." if place == base else place.removeprefix(base.rstrip("/") + "/")


def absolute(path: UPath | Path) -> str:
    """One spelling for each place, with or without a file."""
    return str(path) if stores.is_url(str(path)) else os.path.abspath(str(path))


def remove_with_leftovers(paths: Iterable[UPath]) -> None:
    """Remove files, and what killed processes left of them. Folders stay."""
    files = list(paths)
    stores.remove_files(files)
    folders: dict[UPath, set[str]] = defaultdict(set)
    for path in files:
        folders[path.parent].add(path.name)
    for folder, names in folders.items():
        remove_leftovers(folder, names)
