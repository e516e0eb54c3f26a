"""Store the finished steps of a run, each a small JSON file that is whole or absent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, remove_leftovers, reported

_NAME = re.compile(r"\d{6,}\.json")
_AT_ONCE = 1000  # held in memory at a time


class Entries:
    """JSON objects in a folder, one file each, in the order in which one writer added them."""

    def __init__(self, folder: UPath) -> None:
        self.folder = folder
        self._next: int | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the entries; skip files that are not JSON objects."""
        paths = self._paths()
        for begin in range(0, len(paths), _AT_ONCE):
            for data in stores.read_files(paths[begin : begin + _AT_ONCE]):
                try:
                    entry = json.loads(data)
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield entry

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write an entry to its file, which is complete on return."""
        with self._lock:
            if self._next is None:
                paths = self._paths()
                self._next = int(paths[-1].stem) + 1 if paths else 0
            number, self._next = self._next, self._next + 1
        with reported(None), published(self.folder / _name(number)) as aside:
            aside.write_text(json.dumps(entry), encoding="utf-8")

    def clear(self) -> None:
        """Remove all entries and, on a disk, the folder."""
        paths = self._paths()
        stores.remove_files(paths)
        last = int(paths[-1].stem) if paths else -1
        remove_leftovers(self.folder, {_name(number) for number in range(last + 2)})
        stores.remove_empty(self.folder)
        self._next = None

    def _paths(self) -> list[UPath]:
        names = [one.name for one in stores.listing(self.folder) if _NAME.fullmatch(one.name)]
        return [self.folder / name for name in sorted(names, key=lambda name: int(name[:-5]))]


def _name(number: int) -> str:
    return f"{number:06d}.json"
