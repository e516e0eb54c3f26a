"""The image files of a unit: those that matter, of a store several at a time."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from ncclean import stores
from ncclean.data.images.files import ImageRoot
from ncclean.data.shards import ShardRef

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 32  # objects asked of a store


class UnitFiles:
    """Reads the files of one unit; of samples that nobody wants it reads none."""

    def __init__(self, shard: ShardRef, wanted: Container[str] | None = None) -> None:
        """`wanted` are keys, see `ncclean.data.reader.read_samples`."""
        root = shard.files[0]
        images = ImageRoot(root, start=posixpath.dirname(shard.url))
        self.read, self.read_exactly = images.read, images.read_exactly
        self.other_names = images.other_names
        self._wanted = wanted
        self._is_remote = stores.is_url(root)

    def is_wanted(self, key: str) -> bool:
        return self._wanted is None or key in self._wanted

    def map(self, read: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`read` of every item, in order."""
        if not self._is_remote:
            yield from map(read, items)
            return
        remaining = iter(items)
        with ThreadPoolExecutor(_AT_ONCE, "ncclean-images") as pool:
            while chunk := list(islice(remaining, _AT_ONCE)):
                yield from pool.map(read, chunk)
