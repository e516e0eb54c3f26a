"""The base of image and embedding layouts, which find sources and cut them into shards."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from typing import NamedTuple

from upath import UPath

from ncclean.base import stores
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef, check_named_once, distinct_names, sizes_and_versions
from ncclean.errors import ShardError

_QUESTIONS = 32  # concurrent requests about the files of a corpus


class Cut(NamedTuple):
    """Rows of a file that form a shard: the first, the end row, and the byte where they start."""

    first: int
    last: int
    offset: int = 0


class Facts(NamedTuple):
    """The identity of a file's rows: its size, and a version that changes with the rows.

    `detail` is a suffix for the layout's name.
    """

    size: int
    version: str
    detail: str = ""


class SourceFile(NamedTuple):
    """A file or folder in a layout; `files` is the folder of its images, or its vectors."""

    layout: Layout
    url: str
    files: tuple[str, ...] = ()


class Layout(ABC):
    """A way to store pairs in files, such as tars, tables or folders.

    Layouts are tried in the order of a registry: the first that finds files in a source reads it.
    """

    name: str  # in `ShardRef.layout`, where further facts may follow after a colon
    endings: tuple[str, ...] = ()  # omitted from the names of shards
    unit_rows = 10_000  # bounds the cost of a kill, and the embeddings held at a time
    may_be_images = True
    takes_image_key = True
    has_splits = False

    @abstractmethod
    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        """Return the files of this layout at a source, in order; none if it has none.

        Raises `InputError` for a source that can only be meant as this layout but lacks it.
        """

    def split_of(self, url: str) -> str | None:
        """Return the split that a file holds; None if only its content tells."""
        return None

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut] | None:
        """Cut a file into shards of about `unit_rows` rows; None if it is a single shard.

        Raises `ShardError`.
        """
        return None

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        """Return the size and version of what the rows of a file depend on."""
        return Facts(*sizes_and_versions([file.url])[0])

    def units(self, file: SourceFile, name: str, options: SourceOptions) -> list[ShardRef]:
        """Return the shards of a file or folder, named after `name`.

        A file that cannot be cut is one shard, which fails when it is read.
        """
        facts = self.facts(file, options)
        layout = f"{self.name}:{facts.detail}" if facts.detail else self.name
        try:
            cuts = self.cuts(file, facts, options)
        except ShardError:
            cuts = None
        if cuts is None:
            return [ShardRef(name, file.url, facts.size, facts.version, layout, file.files)]
        total = max(cuts[-1].last, 1) if cuts else 1
        return [
            ShardRef(
                name if len(cuts) < 2 else f"{name}-{first:0{len(str(total))}d}",
                file.url,
                round(facts.size * (last - first) / total),
                facts.version,
                layout,
                file.files,
                (first, last),
                offset,
            )
            for first, last, offset in cuts or [Cut(0, 0)]
        ]


def units_of(
    files: Sequence[SourceFile], named_after: Sequence[str], options: SourceOptions
) -> list[ShardRef]:
    """Return the shards of all files, in order, named by the paths `named_after`.

    Raises `InputError` for a file that is named twice.
    """
    check_named_once([one.url for one in files])
    endings = [
        ending for one in dict.fromkeys(one.layout for one in files) for ending in one.endings
    ]
    names = distinct_names(named_after, endings)
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        # In a copy of its context, a thread sees the cached listings.
        units = [
            pool.submit(copy_context().run, one.layout.units, one, name, options)
            for one, name in zip(files, names, strict=True)
        ]
        return [unit for several in units for unit in several.result()]


class Source:
    """A file or a folder given by the user, listed on first use.

    Raises `InputError` for a URL that cannot be opened, and if a store does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        self._place = stores.location(self.url)

    @cached_property
    def is_file(self) -> bool:
        """Whether the source is a file; for a URL, by its name."""
        is_url = stores.is_url(self.url)
        return bool(self._place.suffix) if is_url else os.path.isfile(self.url)

    @cached_property
    def entries(self) -> list[stores.Entry]:
        """Return the files and folders in a folder, sorted by name; none for a file."""
        return [] if self.is_file else stores.listing(self.url)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of the files and folders in a folder; none for a file."""
        return frozenset() if self.is_file else _names(self._place)

    @property
    def files(self) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return [entry.name for entry in self.entries if not entry.is_folder]

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names of the files in a subfolder; none if it does not exist."""
        return _names(self._place / folder)

    def below(self, *names: str) -> str:
        """Return the path of a file in this folder."""
        return str(self._place.joinpath(*names))


def _names(folder: UPath) -> frozenset[str]:
    return frozenset(entry.name for entry in stores.listing(folder))
