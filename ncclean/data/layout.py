"""What layouts of images and of embeddings share: they find sources, and cut them into shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import NamedTuple

from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef, check_named_once, distinct_names, sizes_and_versions
from ncclean.data.source import Source
from ncclean.errors import ShardError

_QUESTIONS = 32  # asked at a time about the files of a corpus


class Cut(NamedTuple):
    """Rows that are read together: the first, the one after the last, the byte where they begin."""

    first: int
    last: int
    offset: int = 0


class Facts(NamedTuple):
    """Bytes of a file, a version that changes with its rows, and what follows the layout's name."""

    size: int
    version: str
    detail: str = ""


class SourceFile(NamedTuple):
    """A file or folder of a layout, and its `files`: the folder of its images, or its vectors."""

    layout: Layout
    url: str
    files: tuple[str, ...] = ()


class Layout(ABC):
    """How files hold pairs.

    The layouts are asked in the order of a registry: the first that finds something in a source
    reads it.
    """

    name: str  # of `ShardRef.layout`, where further facts may follow it behind a colon
    endings: tuple[str, ...] = ()  # which the names of shards leave out
    unit_rows = 10_000  # what a kill costs, and how many embeddings are held at a time
    may_be_images = True
    takes_image_key = True
    has_splits = False

    @abstractmethod
    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        """The files of this layout that a source is or has in it, in order; none if it has none.

        Raises `InputError` for what can only be meant as this layout and is not.
        """

    def split_of(self, url: str) -> str | None:
        """The split that a file holds; None where that is told inside of it."""
        return None

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut] | None:
        """Cut a file into units of about `unit_rows`; None for one that is a shard.

        Raises `ShardError`.
        """
        return None

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        """Size and version of what the rows depend on."""
        return Facts(*sizes_and_versions([file.url])[0])

    def units(self, file: SourceFile, name: str, options: SourceOptions) -> list[ShardRef]:
        """The shards of a file or folder, named after `name`.

        What cannot be cut is one shard, which fails when it is read.
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
    """The shards of all files, in order, named by the paths `named_after`.

    Raises `InputError` for a file that is named twice.
    """
    check_named_once([one.url for one in files])
    endings = [
        ending for one in dict.fromkeys(one.layout for one in files) for ending in one.endings
    ]
    names = distinct_names(named_after, endings)
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        # In a copy of its context a thread has the listings that were kept.
        units = [
            pool.submit(copy_context().run, one.layout.units, one, name, options)
            for one, name in zip(files, names, strict=True)
        ]
        return [unit for several in units for unit in several.result()]
