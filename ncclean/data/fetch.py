"""Fetch the images of chosen samples from the places recorded in a score table.

Everything that shows images of a corpus gets them here. An image in an uncompressed tar is a range
of bytes, and neighbouring ranges are one request; a loose image is its file. A shard is read from
its start if its layout has no places, if the table has none, or if they are outdated.
"""

from __future__ import annotations

import functools
import posixpath
import tarfile
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ncclean.base import stores
from ncclean.base.store_errors import explain, is_store_error, is_transient
from ncclean.data.images.files import UnitFiles, UnreadableFile
from ncclean.data.images.folders import Folder
from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import utf8
from ncclean.data.samples import Place
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_walk import BLOCK
from ncclean.errors import ShardError

LARGEST_IMAGE = 64 << 20  # bytes
_GAP = 128 << 10  # between images that are read together
_LARGEST_RUN = 4 << 20
_RUNS_AT_ONCE = 16
_NAME_BYTES = 100  # name field of a header; longer names precede it, and are truncated in it
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KEPT_TARS = 64  # some megabytes each
_NO_PLACES = (
    "the table does not tell where images lie, as those written before 0.4: "
    "they are found by reading each shard once"
)

Image = tuple[str, bytes | None]


class ImageFetcher:
    """Reads the images of chosen samples; any thread may ask.

    With `keeps_places`, a tar is read from its start only once. `say` is called once for a table
    without places, and for each shard that has changed, or whose image files have.
    """

    def __init__(
        self, say: Callable[[str], None] = lambda text: None, keeps_places: bool = False
    ) -> None:
        self._say_once = functools.cache(say)
        self._keeps_places = keeps_places
        self._tars: OrderedDict[str, dict[str, Place]] = OrderedDict()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def fetch(self, shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
        """Yield key and bytes of the image of each chosen sample.

        None stands for an image of more than 64 MiB. Keys that the shard lacks are missing from the
        result. Raises `ShardError` if the shard cannot be read that far, after yielding what came
        before.
        """
        left = dict(places)
        is_tar = shard.layout == WEBDATASET
        yield from _taken(left, (_in_tar if is_tar else self._in_files)(shard, left))
        for key, place in list(left.items()):
            # An unreadable file, or a sample in a tar without a readable image.
            where = place.sample_offset if is_tar else place.image_path
            if place.image_offset is None and where is not None:
                del left[key]
        if not left:
            return
        with self._locks[shard.name]:
            places_now = self._tars.get(shard.name, {})
            earlier = {key: places_now[key] for key in left if key in places_now}
            yield from _taken(left, _in_tar(shard, earlier))
            has_changed = any(
                earlier[key].image_offset is not None for key in left if key in earlier
            )
            if not places_now or has_changed:
                yield from _taken(left, self._in_samples(shard, left))

    def _in_samples(self, shard: ShardRef, left: Mapping[str, Place]) -> Iterator[Image]:
        """Yield images of a shard, read from its start up to the last remaining one."""
        places_now: dict[str, Place] = {}
        is_kept = False
        for sample in read_samples(shard, wanted=frozenset(left)):
            if sample.key in places_now:
                continue
            places_now[sample.key] = place = sample.place
            is_kept = is_kept or (self._keeps_places and place.image_offset is not None)
            if sample.image is not None and (before := left.get(sample.key)) is not None:
                if before[1:3] != place[1:3]:
                    changed = f"{shard.url} has changed since it was scored: it is read once more"
                    self._say_once(_NO_PLACES if before.image_offset is None else changed)
                yield sample.key, _shown(sample.image)
            if not left and not is_kept:
                return
        if is_kept:
            self._tars[shard.name] = places_now
            while len(self._tars) > _KEPT_TARS:
                self._tars.popitem(last=False)

    def _in_files(self, shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
        """Yield loose images that can be read."""
        files = UnitFiles(shard)
        is_folder = shard.layout == Folder.name
        folder = stores.absolute(shard.url) if is_folder else ""
        read_file = files.read_exactly if is_folder else files.read

        def read(path: str) -> bytes:
            try:
                return read_file(posixpath.join(folder, path))
            except UnreadableFile:
                return b""

        paths = {key: place.image_path for key, place in places.items() if place.image_path}
        for key, image in zip(paths, files.map(read, paths.values()), strict=True):
            if image:
                if places[key].image_size not in (None, len(image)):
                    self._say_once(f"images of {shard.url} have changed since they were scored")
                yield key, _shown(image)


def _taken(left: dict[str, Place], images: Iterator[Image]) -> Iterator[Image]:
    for key, data in images:
        del left[key]
        yield key, data


def _shown(image: bytes) -> bytes | None:
    return image if len(image) <= LARGEST_IMAGE else None


@dataclass
class _Run:
    """Bytes of a tar to read at once, with key, offset and size of the images in them."""

    begin: int
    end: int
    images: list[tuple[str, int, int]]


def _in_tar(shard: ShardRef, places: Mapping[str, Place]) -> Iterator[Image]:
    """Yield images of a tar by their ranges, if the recorded places are right."""
    runs = _runs(shard, places)
    while runs:
        at_once, runs = runs[:_RUNS_AT_ONCE], runs[_RUNS_AT_ONCE:]
        ranges = [(run.begin, run.end) for run in at_once]
        try:
            read = stores.read_ranges(stores.location(shard.url), ranges)
        except Exception as error:
            if not is_store_error(error):
                raise
            if is_transient(error):
                raise ShardError(explain(shard.url, error, "read")) from error
            return  # reading the shard reports the problem
        for run, data in zip(at_once, read, strict=True):
            for key, offset, size in run.images:
                begin = offset - run.begin
                image = data[begin : begin + size] if size <= LARGEST_IMAGE else None
                is_whole = image is None or len(image) == size
                if is_whole and _is_header_of(key, size, data[begin - BLOCK : begin]):
                    yield key, image


def _runs(shard: ShardRef, places: Mapping[str, Place]) -> list[_Run]:
    """Group images, with their headers, in tar order into runs of neighbours."""
    runs: list[_Run] = []
    for key, (_, offset, size, *_) in sorted(places.items(), key=lambda one: one[1][1] or 0):
        if offset is None or size is None:
            continue
        end = offset + (size if size <= LARGEST_IMAGE else 0)
        if not BLOCK <= offset <= end <= shard.size:
            continue
        if not runs or offset - runs[-1].end > _GAP or end - runs[-1].begin > _LARGEST_RUN:
            runs.append(_Run(offset - BLOCK, end, []))
        runs[-1].end = max(runs[-1].end, end)
        runs[-1].images.append((key, offset, size))
    return runs


def _is_header_of(key: str, size: int, header: bytes) -> bool:
    """Check that a member's last header states this size and belongs to this key."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    if info.size != size or info.type not in _REGULAR:
        return False
    name, own = (utf8(text).encode("ascii", "replace") for text in (info.name, f"{key}."))
    is_cut = len(f"{key}.".encode()) >= _NAME_BYTES
    return name.startswith(own) or (is_cut and own.startswith(name))
