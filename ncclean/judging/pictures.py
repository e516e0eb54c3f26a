"""Read the images of a sample in order, some pairs ahead, in constant memory."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from ncclean.data.fetch import ImageFetcher
from ncclean.data.gate import PixelGate
from ncclean.data.shards import ShardRef
from ncclean.report.audit_page import AuditPair
from ncclean.report.thumbnails import Encode, Thumbnail, Thumbnails, places_of, read_thumbnails

# Pairs whose images are read together, shard by shard: few at first, so that the first question is
# sent at once, then as many as fit into some 100 MB.
_FIRST_PAIRS, _MOST_PAIRS = 16, 1_024
_QUALITY = 85


@dataclass
class SamplePictures:
    """Reads images as JPEG of at most `longest` pixels a side, and keeps errors."""

    rows: pa.Table
    shards: Sequence[ShardRef]
    longest: int
    missing_shards: set[str] = field(default_factory=set)
    failed_shards: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._fetcher = ImageFetcher(self.say, keeps_places=True)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, AuditPair, Thumbnail]]:
        """Yield the rows of these numbers with their images, in order."""
        encode = functools.partial(encode_jpeg, longest=self.longest, gate=PixelGate())
        pieces = _pieces(numbers)
        with ThreadPoolExecutor(1, "ncclean-pictures") as ahead:
            waiting = [ahead.submit(self._read, piece, encode) for piece in pieces[:1]]
            for at in range(len(pieces)):
                pairs, pictures = waiting.pop().result()
                if at + 1 < len(pieces):
                    waiting.append(ahead.submit(self._read, pieces[at + 1], encode))
                self.missing_shards.update(pictures.missing_shards)
                self.failed_shards |= pictures.failed_shards
                for number, pair in zip(pieces[at], pairs, strict=True):
                    yield number, pair, pictures.pictures[pair.shard, pair.row]

    def _read(
        self, numbers: Sequence[int], encode: Encode
    ) -> tuple[tuple[AuditPair, ...], Thumbnails]:
        rows = self.rows.take(pa.array(numbers))
        pairs = AuditPair.of(rows)
        places = places_of(rows)
        return pairs, read_thumbnails(pairs, self.shards, places, self._fetcher, encode=encode)


def encode_jpeg(data: bytes | None, longest: int, gate: PixelGate) -> Thumbnail:
    """The picture as a JPEG data URL. Raises `ImageRejected` as the decoder does."""
    from ncclean.data.open_image import decode_whole

    image = decode_whole(data, longest, gate)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Thumbnail(url, *image.size)


def _pieces(numbers: Sequence[int]) -> list[Sequence[int]]:
    pieces, begin, size = [], 0, _FIRST_PAIRS
    while begin < len(numbers):
        pieces.append(numbers[begin : begin + size])
        begin, size = begin + size, min(2 * size, _MOST_PAIRS)
    return pieces
