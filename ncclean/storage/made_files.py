"""Track the files that a run made, and remove them: never outside the run's output.

A record is an untrusted file. What it lists is therefore only removed where the run itself would
have put it: below the output, and through no link.

The files of the previous table, and of dropped shards, are removed once a new table is written.
They are first listed in a file, so that a resumed run removes them after a kill. While that file
exists, the files in the folder of the table are inconsistent.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, remove_leftovers, reported
from ncclean.base.text_files import parse_json, read_text


@dataclass(frozen=True)
class OwnPlace:
    """The folders in which a run may remove files: its output `base` and its folder `work`."""

    base: UPath
    work: UPath

    def holds(self, path: UPath) -> bool:
        """Check whether a path is in the run's own folders and not reached through a link."""
        place = absolute(path)
        if ".." in str(path).split("/") or not any(
            is_within(place, absolute(owned)) for owned in (self.base, self.work)
        ):
            return False
        return stores.is_url(place) or not self._is_behind_link(place)

    def _is_behind_link(self, place: str) -> bool:
        base, work = absolute(self.base), absolute(self.work)
        # The output itself may be a link: that is its owner's choice.
        root = base if is_within(work, base) and place != base else os.path.dirname(base)
        while place != root:
            if os.path.islink(place):
                return True
            place = os.path.dirname(place)
        return False


@dataclass
class MadeFiles:
    """The files that a run made below `base`, by names that stay valid when it is moved."""

    base: UPath
    _names: dict[str, None] = field(default_factory=dict)

    def add(self, names: Iterable[str]) -> None:
        self._names.update(dict.fromkeys(names))

    def new_names(self, paths: Iterable[UPath | Path]) -> list[str]:
        """Return the relative names of paths not listed yet; none for those outside `base`."""
        base = absolute(self.base)
        places = [place for place in map(absolute, paths) if is_within(place, base)]
        names = dict.fromkeys(place[len(base) :].lstrip("/") or "." for place in places)
        return [name for name in names if name not in self._names]

    def paths(self) -> Iterator[UPath]:
        """Yield the paths of the listed files; the names are not trusted, see `OwnPlace`."""
        for name in self._names:
            if name == ".":
                yield self.base
            elif not stores.is_url(name) and not os.path.isabs(name):
                yield self.base / name


def absolute(path: UPath | Path | str) -> str:
    """Return the unique absolute spelling of a path, whether or not it exists."""
    return str(path).rstrip("/") if stores.is_url(str(path)) else os.path.abspath(str(path))


def remove_with_leftovers(paths: Iterable[UPath]) -> int:
    """Delete files and their temporary leftovers, but no folders; return their number."""
    files = list(paths)
    present = stores.present_files(files)
    stores.remove_files(present)
    folders: dict[UPath, set[str]] = defaultdict(set)
    for path in files:
        folders[path.parent].add(path.name)
    for folder, names in folders.items():
        remove_leftovers(folder, names)
    return len(present)


def is_within(place: str, folder: str) -> bool:
    """Check whether an absolute path is a folder or inside it."""
    return place == folder or place.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True)
class Leftovers:
    """The files of a score table still to be deleted: their names, and numbers of shards.

    The files are of the `table`; the `numbers` are of shards whose embeddings are obsolete.
    """

    table: list[str]
    numbers: list[int]

    @classmethod
    def read(cls, path: UPath) -> Leftovers:
        """Read what a killed run left to be deleted; skip names of files in other folders."""
        if not stores.present_files([path]):
            return cls([], [])
        fields = parse_json(read_text(str(path)), path)
        table = [str(name) for name in fields.get("table", ()) if "/" not in str(name)]
        return cls(table, [int(number) for number in fields.get("numbers", ())])

    def __add__(self, other: Leftovers) -> Leftovers:
        return Leftovers(
            sorted({*self.table, *other.table}), sorted({*self.numbers, *other.numbers})
        )

    def write(self, path: UPath) -> None:
        """Write the list of what remains to be deleted."""
        with reported(None), published(path) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")
