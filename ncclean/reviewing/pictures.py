"""Read images of pairs from the source, and make them small when a page shows them."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

from ncclean.base.formats import counted
from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.fetch import ImageFetcher
from ncclean.data.gate import PixelGate
from ncclean.data.open_image import ImageRejected, date_taken
from ncclean.data.samples import Place, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, NccleanError
from ncclean.report.thumbnails import LARGE_SIZES, encode_webp

_KEPT = 1_000  # pictures, some 20 KB each
_MOST_BYTES = 60_000
_MOST_LARGE_BYTES = 4_000_000
_OWN_SIZE = ((4000, 90), (2000, 80), (1200, 70))  # longest side in pixels, and quality
_FETCHERS = 32  # most of the time is spent waiting for a store
_ENCODERS = 16  # waiting for images in page order
_NO_IMAGE = "the picture is no longer where it was scored"
_PATIENCE = 300.0  # seconds; a tar in a store may be read through before its last image is found


class NoPicture(NccleanError):
    """The error of a pair without an image; its message gives the reason in words for a person."""


class Pictures:
    """Reads and caches images of pairs for the page, small or large, by shard and key.

    With `None` for the shards, no pair has an image.
    """

    def __init__(
        self,
        shards: Sequence[ShardRef] | None,
        place_of: Callable[[str, str], Place],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`place_of` looks a shard and a key up in the table; `say` see `ImageFetcher`."""
        self._named = {shard.name: shard for shard in shards or ()}
        self._has_shards = shards is not None
        self._place_of = place_of
        self._fetcher = ImageFetcher(say, keeps_places=True)
        self._gate = PixelGate()
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "ncclean-fetch")
        self._encoders = ThreadPoolExecutor(_ENCODERS, "ncclean-encode")
        self._lock = threading.Lock()
        self._pictures: OrderedDict[tuple[str, str], Future[bytes]] = OrderedDict()
        self._expected: dict[str, dict[str, Place]] = {}

    def check(self, shards: Sequence[str]) -> str | None:
        """Return a warning about pairs whose shards are not among those given; None if all are.

        Raises `InputError` if none of them is.
        """
        missing = [shard for shard in shards if self._named.get(shard) is None]
        if not missing:
            return None
        example = f"such as {missing[0]}: --shards takes what was scored"
        if len(missing) == len(shards):
            raise InputError(
                f"--shards has none of the {counted(len(shards), 'shard')} of the table, {example}"
            )
        return f"{counted(len(missing), 'shard')} of {len(shards):,} show no pictures, {example}"

    def expect(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Prepare for requests of the images of a page's rows.

        Starts reading images with known byte positions. The others of a shard are read from its
        start at the first request.
        """
        pages: defaultdict[str, dict[str, Place]] = defaultdict(dict)
        for row in rows:
            if row["status"] != SkipReason.DUPLICATE_KEY.value:  # the first sample has the key
                place = Place.of(*(row[name] for name in PLACE_COLUMNS))
                pages[row["shard"]][row["key"]] = place
        self._expected = {
            shard: places
            for shard, places in pages.items()
            if any(one.image_path is None and one.image_offset is None for one in places.values())
        }
        for shard, places in pages.items():
            if shard not in self._expected and self._named.get(shard) is not None:
                self._begin(shard, places)

    def dates(self, rows: Iterable[Mapping[str, Any]]) -> dict[int, datetime | None]:
        """Return when the images of rows were taken, by the rows' places; None if not stated.

        Rows with unreadable images are missing.
        """
        samples: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        shards: defaultdict[str, dict[str, Place]] = defaultdict(dict)
        for row in rows:
            if row["status"] == SkipReason.DUPLICATE_KEY.value:
                continue
            samples[row["shard"], row["key"]].append(row)
            shards[row["shard"]][row["key"]] = Place.of(*(row[name] for name in PLACE_COLUMNS))
        dates: dict[int, datetime | None] = {}

        def read(shard: str) -> None:
            reference = self._named.get(shard)
            with contextlib.suppress(NccleanError, OSError):
                for key, data in self._fetcher.fetch(reference, shards[shard]) if reference else ():
                    taken = date_taken(data) if data is not None else None
                    dates.update((row["place"], taken) for row in samples[shard, key])

        list(self._fetchers.map(read, shards))
        return dates

    def read(self, shard: str, key: str) -> bytes:
        """Return a small image as WebP. Raises `NoPicture` with the reason if there is none."""
        self._known(shard)
        future = self._pictures.get((shard, key))
        if future is None:
            expected = self._expected.pop(shard, {})
            first = expected[key] if key in expected else self._place_of(shard, key)
            future = self._begin(shard, {key: first, **expected})[key]
        return future.result(timeout=_PATIENCE)

    def read_large(self, shard: str, key: str) -> bytes:
        """Return an image at full size as WebP, up to a limit. Raises `NoPicture`."""
        reference = self._known(shard)
        try:
            for _, data in self._fetcher.fetch(reference, {key: self._place_of(shard, key)}):
                return encode_webp(data, _MOST_LARGE_BYTES, _OWN_SIZE, self._gate)[0]
            raise NoPicture(_NO_IMAGE)
        except (NccleanError, OSError, ImageRejected) as error:
            raise NoPicture(str(error)) from error

    def _known(self, shard: str) -> ShardRef:
        reference = self._named.get(shard)
        if reference is None:
            raise NoPicture(
                f"{shard} is not among --shards"
                if self._has_shards
                else "no pictures: the review was started without --shards"
            )
        return reference

    def _begin(self, shard: str, places: Mapping[str, Place]) -> dict[str, Future[bytes]]:
        """Start reading images, unless present or being read."""
        with self._lock:
            pending = {key: self._pictures.pop((shard, key), None) for key in places}
            begun = {key: Future[bytes | None]() for key, one in pending.items() if one is None}
            pictures = {
                key: one or self._encoders.submit(self._encode, begun[key])
                for key, one in pending.items()
            }
            self._pictures |= {(shard, key): one for key, one in pictures.items()}
            while len(self._pictures) > _KEPT:
                self._pictures.popitem(last=False)
        if begun:
            self._fetchers.submit(self._fetch, shard, {key: places[key] for key in begun}, begun)
        return pictures

    def _fetch(
        self, shard: str, places: Mapping[str, Place], left: dict[str, Future[bytes | None]]
    ) -> None:
        """Fetch images of one shard, handing out each as it arrives."""
        why = _NO_IMAGE
        try:
            reference = self._named.get(shard)
            assert reference is not None
            for key, data in self._fetcher.fetch(reference, places):
                left.pop(key).set_result(data)
        except (NccleanError, OSError) as error:
            why = f"the shard {error}"
        finally:
            for image in left.values():
                image.set_exception(NoPicture(why))

    def _encode(self, image: Future[bytes | None]) -> bytes:
        try:
            return encode_webp(image.result(), _MOST_BYTES, LARGE_SIZES[2:], self._gate)[0]
        except ImageRejected as rejected:
            raise NoPicture(str(rejected)) from rejected
