"""Pictures of pairs, read from the source and made small when somebody looks at them.

Tars have an index. Other sources are read from the front: what a page will ask for of one shard is
read in one pass.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from ncclean.data.gate import PixelGate
from ncclean.data.image_index import ImageIndex, can_be_indexed
from ncclean.data.open_image import ImageRejected
from ncclean.data.sample_images import pick_images
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, NccleanError, ShardError
from ncclean.report.thumbnails import LARGE_SIZES, encode_webp, shards_by_name

_INDEXES = 64  # held in memory, some megabytes each
_KEPT = 1_000  # pictures, some 20 KB each
_MOST_BYTES = 60_000
_PATIENCE = 300.0  # seconds; a tar of a store is read through before its last image is found

Place = tuple[str, str]  # shard and key


class NoPicture(NccleanError):
    """Why a pair has no picture, in words for a person."""


class Pictures:
    """Small pictures by shard and key; `None` for shards shows none."""

    def __init__(self, shards: Sequence[ShardRef] | None, folder: Path) -> None:
        """`folder` keeps the indexes of tars."""
        self._named = shards_by_name(shards or ())
        self._has_shards = shards is not None
        self._folder = folder
        self._gate = PixelGate()
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, ImageIndex | None] = OrderedDict()
        self._pictures: OrderedDict[Place, Future[bytes]] = OrderedDict()
        self._expected: dict[str, list[str]] = {}

    def expect(self, places: Iterable[Place]) -> None:
        """Say which pictures of shards without an index will be asked for: those of one page."""
        expected: dict[str, list[str]] = {}
        for shard, key in places:
            expected.setdefault(shard, []).append(key)
        with self._lock:
            self._expected = expected

    def read(self, shard: str, key: str) -> bytes:
        """A picture as WebP. Raises `NoPicture` with the reason why there is none."""
        reference = self._named.get(shard) or self._named.get(shard.rsplit("/", 1)[-1])
        if reference is None:
            raise NoPicture(
                "the shard is not among --shards"
                if self._has_shards
                else "no pictures: the review was started without --shards"
            )
        try:
            index = self._index(reference)
        except (OSError, NccleanError) as error:
            raise NoPicture(f"the shard cannot be read: {error}") from error
        with self._lock:
            future = self._pictures.get((shard, key))
            begun: dict[str, Future[bytes]] = {}
            if future is None:
                soon = self._expected.pop(shard, ()) if index is None else ()
                for name in dict.fromkeys((key, *soon)):
                    if (shard, name) not in self._pictures:
                        begun[name] = self._pictures[shard, name] = Future()
                future = begun[key]
                while len(self._pictures) > _KEPT:
                    self._pictures.popitem(last=False)
            else:
                self._pictures.move_to_end((shard, key))
        if begun:
            self._fill(reference, index, begun)
        return future.result(timeout=_PATIENCE)

    def _fill(
        self, shard: ShardRef, index: ImageIndex | None, begun: dict[str, Future[bytes]]
    ) -> None:
        """Read the pictures of one shard, each handed out when it is there."""
        why = "the shard has no image of this key"
        try:
            for key, data in _images(shard, index, begun):
                try:
                    begun[key].set_result(self._encoded(data))
                except NoPicture as reason:
                    begun[key].set_exception(reason)
        except KeyError:
            pass
        except (ShardError, InputError, OSError) as error:
            why = f"the shard {error}"
        finally:
            for future in begun.values():
                if not future.done():
                    future.set_exception(NoPicture(why))

    def _encoded(self, data: bytes | None) -> bytes:
        if data is None:
            raise NoPicture("image file too large to show")
        if not data:
            raise NoPicture("zero bytes")
        try:
            return encode_webp(data, _MOST_BYTES, LARGE_SIZES[2:], self._gate)[0]
        except ImageRejected as rejected:
            raise NoPicture(str(rejected)) from rejected

    def _index(self, shard: ShardRef) -> ImageIndex | None:
        with self._lock:
            if shard.name in self._indexes:
                self._indexes.move_to_end(shard.name)
                return self._indexes[shard.name]
        index = ImageIndex(shard, self._folder) if can_be_indexed(shard) else None
        with self._lock:
            kept = self._indexes.setdefault(shard.name, index)
            while len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
            return kept


def _images(
    shard: ShardRef, index: ImageIndex | None, keys: Iterable[str]
) -> Iterator[tuple[str, bytes | None]]:
    if index is None:
        yield from pick_images(shard, list(keys))
        return
    for key in keys:
        yield key, index.read(key)
