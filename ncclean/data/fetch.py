"""The images of chosen samples, by the places that a score table has of them.

All that shows images of a corpus gets them here. An image in an uncompressed tar is a range of
bytes, and neighbouring ranges are one request; an image in a file is that file. A shard is read
from its front where its layout has no places, where the table has none, and where they are not
right any more.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import tarfile
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple, cast

from ncclean import stores
from ncclean.data.images.files import UnreadableFile
from ncclean.data.images.unit_files import UnitFiles
from ncclean.data.images.units import FOLDER
from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import utf8
from ncclean.data.samples import Place
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_walk import BLOCK
from ncclean.errors import ShardError
from ncclean.regular_files import open_file
from ncclean.store_errors import explain, is_store_error, is_transient

LARGEST_IMAGE = 64 << 20  # bytes
_GAP = 128 << 10  # between images that are read together
_LARGEST_RUN = 8 << 20
_RUNS_AT_ONCE = 32
_BYTES_AT_ONCE = 64 << 20
_READ_BUFFER = 64 << 10  # of a tar whose headers are read
_NAME_BYTES = 100  # of a header: a longer name lies before it, and is cut in it
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KEPT_TARS = 64  # some megabytes each
_NO_PLACES = (
    "the table does not tell where images lie, as those written before 0.4: "
    "they are found by reading each shard once"
)

Image = tuple[str, bytes | None]


class ImageFetcher:
    """Reads the images of chosen samples; any thread may ask.

    With `keeps_places`, a tar that had to be read from its front is not read so again. `say` is
    told once that a table has no places, and of each shard that has changed.
    """

    def __init__(
        self, say: Callable[[str], None] = lambda text: None, keeps_places: bool = False
    ) -> None:
        self._say, self._keeps_places = say, keeps_places
        self._said: set[str] = set()
        self._tars: OrderedDict[str, dict[str, Place]] = OrderedDict()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def fetch(self, shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
        """Key and bytes of the picture of each chosen sample.

        None stands for an image of more than 64 MiB. Keys that the shard does not hold are missing
        from the result. Raises `ShardError` if the shard cannot be read that far; what came before
        has been handed out by then.
        """
        left = dict(places)
        if shard.layout != WEBDATASET:
            yield from _taken(left, _in_files(shard, left))
            yield from _taken(left, self._in_samples(shard, left))
            return
        yield from _taken(left, _in_tar(shard, left))
        for key in [key for key, place in left.items() if _has_no_picture(place)]:
            del left[key]
        if not left:
            return
        with self._locks[shard.name]:
            there = self._tars.get(shard.name)
            if there is not None:
                places = {key: there[key] for key in left if key in there}
                yield from _taken(left, _in_tar(shard, places))
                if all(there[key].image_offset is None for key in left if key in there):
                    return  # else the tar has changed since
            yield from _taken(left, self._in_samples(shard, left))

    def _in_samples(self, shard: ShardRef, left: Mapping[str, Place]) -> Iterator[Image]:
        """Images of a shard that is read from its front, up to the last of those that are left."""
        if not left:
            return
        there: dict[str, Place] = {}
        is_tar = False
        for sample in read_samples(shard, opened=lambda: _opened(shard), wanted=frozenset(left)):
            if sample.key in there:
                continue
            there[sample.key] = place = sample.place
            is_tar = is_tar or place.image_offset is not None
            if sample.key in left and sample.image is not None:
                self._tell_moved(shard, left[sample.key], place)
                yield sample.key, _shown(sample.image)
            if not left and not (self._keeps_places and is_tar):
                return
        if self._keeps_places and is_tar:
            self._tars[shard.name] = there
            while len(self._tars) > _KEPT_TARS:
                self._tars.popitem(last=False)

    def _tell_moved(self, shard: ShardRef, before: Place, now: Place) -> None:
        """Say why an image was looked for, unless its layout has no places."""
        if before[1:3] == now[1:3]:
            return
        changed = f"{shard.url} has changed since it was scored: its images are found by reading it"
        text = _NO_PLACES if before.image_offset is None else changed
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def _taken(left: dict[str, Place], images: Iterator[Image]) -> Iterator[Image]:
    for key, data in images:
        del left[key]
        yield key, data


def _has_no_picture(place: Place) -> bool:
    """Whether a tar has a sample, but no picture of it that is read."""
    return place.image_offset is None and place.sample_offset is not None


def _in_files(shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
    """Images in files of their own, those that can be read."""
    files = UnitFiles(shard)
    folder = ""
    if shard.layout == FOLDER:
        folder = shard.url if stores.is_url(shard.url) else os.path.abspath(shard.url)

    def read(item: tuple[str, str]) -> tuple[str, bytes]:
        try:
            return item[0], files.read(posixpath.join(folder, item[1]))
        except UnreadableFile:
            return item[0], b""

    paths = {key: place.image_path for key, place in places.items() if place.image_path}
    for key, data in files.map(read, paths.items()):
        if data:
            yield key, _shown(data)


class _Run(NamedTuple):
    """Bytes of a tar, and the images in them."""

    begin: int
    end: int
    images: list[tuple[str, int, int]]  # key, offset, size


def _in_tar(shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
    """Images of a tar by their ranges, those that are where their places say."""
    for runs in _batches(_runs(shard, places)):
        try:
            read = stores.read_ranges(
                stores.location(shard.url), [(run.begin, run.end) for run in runs]
            )
        except Exception as error:
            if not is_store_error(error):
                raise
            if is_transient(error):
                raise ShardError(explain(shard.url, error, "read")) from error
            return  # reading the shard says what is wrong
        for run, data in zip(runs, read, strict=True):
            for key, offset, size in run.images:
                begin = offset - run.begin
                content = data[begin : begin + size] if size <= LARGEST_IMAGE else None
                is_whole = content is None or len(content) == size
                if is_whole and _is_header_of(key, size, data[begin - BLOCK : begin]):
                    yield key, content


def _runs(shard: ShardRef, places: Mapping[str, Place]) -> list[_Run]:
    """Images with their headers in the order of the tar, neighbours together."""
    runs: list[_Run] = []
    ranges = [
        (place.image_offset, place.image_size, key)
        for key, place in places.items()
        if place.image_offset is not None and place.image_size is not None
    ]
    for offset, size, key in sorted(ranges):
        begin, end = offset - BLOCK, offset + (size if size <= LARGEST_IMAGE else 0)
        if not BLOCK <= offset <= end <= shard.size:
            continue
        last = runs.pop() if runs else _Run(begin, begin, [])
        if begin - last.end > _GAP or end - last.begin > _LARGEST_RUN:
            runs.append(last)
            last = _Run(begin, begin, [])
        runs.append(_Run(last.begin, max(last.end, end), [*last.images, (key, offset, size)]))
    return [run for run in runs if run.images]


def _batches(runs: list[_Run]) -> Iterator[list[_Run]]:
    """Runs to read at the same time, as many as may be held."""
    while runs:
        ends = itertools.accumulate(run.end - run.begin for run in runs[:_RUNS_AT_ONCE])
        count = max(1, sum(end <= _BYTES_AT_ONCE for end in ends))
        yield runs[:count]
        runs = runs[count:]


def _is_header_of(key: str, size: int, header: bytes) -> bool:
    """Whether a member's last header says that it has so many bytes and belongs to a key."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    if info.size != size or info.type not in _REGULAR:
        return False
    name, own = (utf8(text).encode("ascii", "replace") for text in (info.name, f"{key}."))
    is_cut = len(f"{key}.".encode()) >= _NAME_BYTES
    return name.startswith(own) or (is_cut and own.startswith(name))


def _shown(image: bytes) -> bytes | None:
    return image if len(image) <= LARGEST_IMAGE else None


def _opened(shard: ShardRef) -> BinaryIO:
    """A tar: headers of one on a disk are read in small pieces, a store is read through."""
    if stores.is_url(shard.url):
        return shard.open()
    return cast(BinaryIO, open_file(shard.url, _READ_BUFFER))
