"""Where the images of a tar lie: found by their keys where these are in order, else in an index.

The index is made in one pass, used from its first entry on, and kept. An image of a tar of
gigabytes is then one read of its bytes, from a disk or a store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import threading
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.sample_images import LARGEST_IMAGE
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import TarSamples
from ncclean.data.tar_seek import NotInOrder, TarSeek
from ncclean.data.tar_walk import BLOCK
from ncclean.data.unpacking import is_packed
from ncclean.errors import InputError, ShardError
from ncclean.regular_files import open_file

_READ_BUFFER = 64 << 10
_NOTIFIED = 64  # members between two looks of those who wait
_TOO_LARGE = -1

Place = tuple[int, int]  # first byte and size


class ImageIndex:
    """The picture of each sample of an uncompressed tar.

    Of a tar whose keys are in order a few places are read for an image. For another one, a thread
    walks over the tar, and `read` waits until it has come to a key. The finished index goes to a
    file of `folder`, whose name changes with the shard.
    """

    def __init__(self, shard: ShardRef, folder: Path) -> None:
        self._shard = shard
        self._file = folder / f"{_name(shard)}.npz"
        self._places: dict[str, Place] = {}
        self._is_done = False
        self._error: str | None = None
        self._moved = threading.Condition()
        self._is_walked = self._load()
        read = functools.partial(stores.read_range, shard.url)
        self._seek = TarSeek(shard.size, read, shard.image_key)

    def read(self, key: str) -> bytes | None:
        """The bytes of a key's image, None for one that is too large to show.

        Raises `KeyError` if the tar has none, `ShardError` if it cannot be read that far.
        """
        if (data := self._sought(key)) is not None:
            return data
        with self._moved:
            while key not in self._places and not self._is_done:
                self._moved.wait()
            place = self._places.get(key)
        if place is None:
            if self._error is not None:
                raise ShardError(self._error)
            raise KeyError(key)
        begin, size = place
        try:
            return None if size < 0 else stores.read_range(self._shard.url, begin, begin + size)
        except InputError as error:
            raise ShardError(str(error)) from error

    def _sought(self, key: str) -> bytes | None:
        """An image found by its key; None where the index is what tells, which is then made."""
        if self._is_walked:
            return None
        with contextlib.suppress(NotInOrder, InputError):
            member, data = self._seek.find(key)
            if member.size <= LARGEST_IMAGE:
                end = member.content + member.size
                return data or stores.read_range(self._shard.url, member.content, end)
        with self._moved:
            if not self._is_walked:
                self._is_walked = True
                threading.Thread(target=self._walk, name="ncclean-index", daemon=True).start()
        return None

    def _walk(self) -> None:
        try:
            samples = TarSamples(self._shard, opened=lambda: _opened(self._shard), wanted=())
            for number, sample in enumerate(samples):
                picture = sample.members.get(sample.picture or "")
                if picture is not None and sample.key not in self._places:
                    is_shown = picture.size <= LARGEST_IMAGE and not picture.is_sparse
                    size = picture.size if is_shown else _TOO_LARGE
                    self._places[sample.key] = picture.content, size
                if number % _NOTIFIED == 0:
                    with self._moved:
                        self._moved.notify_all()
            self._save()
        except (ShardError, InputError, OSError) as error:
            self._error = str(error)
        finally:
            with self._moved:
                self._is_done = True
                self._moved.notify_all()

    def _load(self) -> bool:
        try:
            with np.load(self._file, allow_pickle=False) as arrays:
                names = arrays["keys"].tobytes().decode("utf-8", "surrogateescape").split("\0")
                places = arrays["places"].astype(np.int64).reshape(-1, 2).tolist()
            if len(places) == 0:
                names = []
            self._places = {
                name: (begin, size)
                for name, (begin, size) in zip(names, places, strict=True)
                if begin >= 0 and size <= LARGEST_IMAGE
            }
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            return False
        self._is_done = True
        return True

    def _save(self) -> None:
        keys = "\0".join(self._places).encode("utf-8", "surrogateescape")
        try:
            with published(UPath(self._file)) as aside, open(aside, "wb") as file:
                np.savez(
                    file,
                    keys=np.frombuffer(keys, dtype=np.uint8),
                    places=np.array(list(self._places.values()), dtype=np.int64).reshape(-1, 2),
                )
        except (OSError, InputError):
            return  # a folder that cannot be written to: the index is made again next time


def can_be_indexed(shard: ShardRef) -> bool:
    """Whether a shard is an uncompressed tar."""
    if shard.layout != WEBDATASET:
        return False
    return not is_packed(io.BytesIO(stores.read_range(shard.url, 0, min(shard.size, BLOCK))))


def _opened(shard: ShardRef) -> BinaryIO:
    """The tar: headers of one on a disk are read in small pieces, a store is read through."""
    if stores.is_url(shard.url):
        return shard.open()
    return cast(BinaryIO, open_file(shard.url, _READ_BUFFER))


def _name(shard: ShardRef) -> str:
    identity = f"{stores.canonical(shard.url)}\n{shard.size}\n{shard.version}\n{shard.image_key}"
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
