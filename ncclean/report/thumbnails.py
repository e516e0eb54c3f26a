"""Make thumbnails of the chosen pairs, read from the shards and re-encoded as data URLs."""

from __future__ import annotations

import base64
import functools
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from PIL import Image

from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.fetch import ImageFetcher
from ncclean.data.gate import PixelGate
from ncclean.data.open_image import ImageRejected, decode_whole
from ncclean.data.samples import NO_PLACE, OF_CAPTIONS, Place
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

_THREADS = 32  # most of the time is spent waiting for a store
_ALL_BYTES = 2_900_000  # of the page's 5 MB, as base64
# Longest side in pixels and WebP quality; the first that fits is used.
_SIZES = ((288, 80), (256, 72), (224, 64), (192, 56), (160, 48), (128, 40), (96, 30), (64, 20))
_METHOD = 2  # of WebP: a quarter of the time of the default, 2 % more bytes

LARGE_SIZES = ((640, 80), (512, 78), (448, 76), (384, 74), (320, 72), *_SIZES[1:])
_Sizes = Sequence[tuple[int, int]]

Row = tuple[str, int]  # shard and row

_WITHOUT_CAPTION = tuple(status.value for status in OF_CAPTIONS)
# In folders and tables such images are not read; in tars they are shown.
_NOT_SHOWN = {
    "image_missing": "no image",
    **dict.fromkeys(_WITHOUT_CAPTION, "not shown: it has no caption that can be used"),
}


@dataclass(frozen=True, kw_only=True)
class Pictured:
    """A pair whose image is to be shown."""

    shard: str
    key: str
    row: int
    status: str = "ok"
    error: str | None = None


@dataclass(frozen=True)
class Thumbnail:
    """The small image of a pair: a data URL with its size in pixels, or the reason why not."""

    url: str | None = None
    width: int = 0
    height: int = 0
    reason: str | None = None


Encode = Callable[[bytes | None], Thumbnail]


@dataclass
class Thumbnails:
    """The small images of pairs, by shard and row.

    `failed_shards` could not be read up to a chosen pair.
    """

    pictures: dict[Row, Thumbnail] = field(default_factory=dict)
    failed_shards: dict[str, str] = field(default_factory=dict)
    missing_shards: list[str] = field(default_factory=list)

    def count(self, pairs: Iterable[Pictured]) -> int:
        """Return how many of the pairs have a picture; captions of an image share theirs."""
        pictures = (self.pictures.get((pair.shard, pair.row)) for pair in pairs)
        return sum(picture is not None and picture.url is not None for picture in pictures)


def read_thumbnails(
    pairs: Sequence[Pictured],
    shards: Iterable[ShardRef],
    places: Mapping[Row, Place],
    fetcher: ImageFetcher,
    all_bytes: int = _ALL_BYTES,
    sizes: _Sizes = _SIZES,
    encode: Encode | None = None,
) -> Thumbnails:
    """Read the chosen pairs from their shards, several shards at a time.

    `places` are from `places_of`, by which `fetcher` gets the images. Together they take at most
    `all_bytes` as base64, whatever the number of pairs; `encode` may make other images instead.

    The shards have the names of the table (`as_scored`). A broken picture or shard does not raise;
    its placeholder gives the reason.
    """
    thumbnails = Thumbnails()
    wanted: dict[str, list[Pictured]] = defaultdict(list)
    for pair in pairs:
        wanted[pair.shard].append(pair)
    named = {shard.name: shard for shard in shards}
    if encode is None:
        most_bytes = all_bytes * 3 // 4 // max(len(pairs), 1)
        encode = functools.partial(
            encode_thumbnail, most_bytes=most_bytes, sizes=sizes, gate=PixelGate()
        )
    with ThreadPoolExecutor(_THREADS, "ncclean-thumbnails") as pool:
        jobs = {}
        for name, chosen in wanted.items():
            shard = named.get(name)
            if shard is None:
                thumbnails.missing_shards.append(name)
                reason = "shard not among --shards"
                thumbnails.pictures |= {(p.shard, p.row): Thumbnail(reason=reason) for p in chosen}
            else:
                jobs[name] = pool.submit(_read_shard, shard, chosen, places, fetcher, encode)
        for name, job in jobs.items():
            pictures, error = job.result()
            thumbnails.pictures |= pictures
            if error is not None:
                thumbnails.failed_shards[name] = error
    return thumbnails


def encode_thumbnail(
    data: bytes | None, most_bytes: int, sizes: _Sizes = _SIZES, gate: PixelGate | None = None
) -> Thumbnail:
    """Encode an image as a WebP data URL of at most `most_bytes` before base64, as large as fits.

    All decoding threads share `gate`. Raises `ImageRejected` as the decoder does.
    """
    webp, (width, height) = encode_webp(data, most_bytes, sizes, gate)
    url = "data:image/webp;base64," + base64.b64encode(webp).decode()
    return Thumbnail(url, width, height)


def encode_webp(
    data: bytes | None, most_bytes: int, sizes: _Sizes = _SIZES, gate: PixelGate | None = None
) -> tuple[bytes, tuple[int, int]]:
    """Encode an image as WebP of at most `most_bytes`, as large as fits; also return its size.

    The size is width and height in pixels.
    """
    image = decode_whole(data, sizes[0][0], gate or PixelGate())
    for longest, quality in sizes:
        small = image.copy()
        small.thumbnail((longest, longest), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        small.save(buffer, "WEBP", quality=quality, method=_METHOD)
        if buffer.tell() <= most_bytes:
            break
    return buffer.getvalue(), small.size


def places_of(rows: pa.Table) -> dict[Row, Place]:
    """Return where samples are in their shards, from rows of a score table."""
    columns = (rows.column(name).to_pylist() for name in ("shard", "row", *PLACE_COLUMNS))
    return {(shard, row): Place.of(*place) for shard, row, *place in zip(*columns, strict=True)}


def _read_shard(
    shard: ShardRef,
    pairs: list[Pictured],
    places: Mapping[Row, Place],
    fetcher: ImageFetcher,
    encode: Encode,
) -> tuple[dict[Row, Thumbnail], str | None]:
    pictures: dict[Row, Thumbnail] = {}
    # For a repeated key, the first image is not that of the second sample.
    by_key = {pair.key: pair for pair in pairs if pair.status != "duplicate_key"}  # any caption's
    failure = None
    try:
        wanted = {key: places.get((p.shard, p.row), NO_PLACE) for key, p in by_key.items()}
        for key, data in fetcher.fetch(shard, wanted):
            pair = by_key[key]
            pictures[pair.shard, pair.row] = _thumbnail(data, encode)
    except ShardError as error:
        failure = f"cannot be read: {error}"
    for pair in pairs:
        reason = failure if pair.status in _WITHOUT_CAPTION else pair.error or failure
        reason = reason or _NOT_SHOWN.get(
            pair.status, "the picture is no longer where it was scored"
        )
        pictures.setdefault((pair.shard, pair.row), Thumbnail(reason=reason))
    return pictures, failure


def _thumbnail(data: bytes | None, encode: Encode) -> Thumbnail:
    try:
        return encode(data)
    except ImageRejected as rejected:
        return Thumbnail(reason=str(rejected))
