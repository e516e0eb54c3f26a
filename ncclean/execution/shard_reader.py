"""A worker process that reads shards, decodes their images, and counts their tokens.

Images go to memory that it shares with its parent, in blocks; all other data of a shard follow
once, as columns: the parent does nothing for a single pair.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from ncclean.base.stores import is_url
from ncclean.data.decode import DecodedImage, ImageDecoder, Preprocessing
from ncclean.data.decoding import DecodedSample, DecodedSamples, decode_samples
from ncclean.data.images.layout import Samples
from ncclean.data.open_image import ImageRejected
from ncclean.data.reader import read_samples
from ncclean.data.samples import TRUTH, CaptionKeys, FurtherMembers, Sample, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError
from ncclean.execution.sample_rows import (
    Row,
    captions_of,
    check_places,
    facts_of_rows,
    fields_of,
    images_of_rows,
    place_of,
    repeated,
    strings,
)
from ncclean.models.tokens import TokenCache, Tokenize, Tokens
from ncclean.workers.arena import Arena
from ncclean.workers.worker import (
    Parent,
    WorkerDied,
    in_a_fork,
    limit_seconds,
    limit_this_process,
    progress,
    trust,
)

# Processor seconds for one image or sample: a decoder takes about three for the largest images. An
# image that exceeds the first limit is tried with others, then alone, before it is given up.
_SECONDS, _SECONDS_TOGETHER, _SECONDS_ALONE = 1.5, 0.5, 4.0


@dataclass(frozen=True)
class ReaderSettings:
    """Settings of a process that reads shards; `arena` is the number and the shape of its blocks.

    `fields` of the samples are requested as columns, and with `with_pairs` the captions and fields
    of each block. Without `tokenize`, the parent tokenizes.
    """

    preprocessing: Preprocessing
    tokenize: Tokenize | None
    max_pixels: int
    arena: tuple[int, tuple[int, int, int, int]] = (0, (0, 0, 0, 0))
    threads: int = 1
    signals: bool = False
    draft: bool = False
    keep_jpegs: bool = False  # for a device that decodes them
    exif: bool = True
    caption_key: CaptionKeys = None
    fields: tuple[str, ...] = ()
    with_pairs: bool = False


@dataclass(frozen=True)
class Block:
    """Images of a shard in a block of shared memory; `rows` (n,) are the numbers of their samples.

    `encoded` are JPEGs decoded elsewhere, by their numbers. `samples` have been read so far.
    `pairs` have the place in the shard, the caption and the fields of each, if requested.
    """

    number: int
    rows: list[int]
    encoded: dict[int, bytes]
    samples: int
    pairs: list[tuple[int, str, dict[str, Any]]] | None = None


@dataclass(frozen=True)
class ShardRows:
    """The rows of a shard, once all of it has been read.

    `facts` are (n,) columns of the score table, of which m rows can be scored: `images` are (m,)
    numbers of their images, and `image_signals` (m,) their signals. `tokens` are those of the m
    captions. `metadata` has n rows of the requested fields.
    """

    facts: dict[str, pa.Array]
    images: np.ndarray
    tokens: Tokens | None
    metadata: pa.Table
    image_signals: list[dict[str, float | str] | None]
    samples: int
    further: FurtherMembers
    error: str | None
    waited: dict[str, float] = field(default_factory=dict)

    def without(self, rejected: Mapping[int, ImageRejected]) -> ShardRows:
        """Return the rows of the shard if more images, by their samples' numbers, are unusable."""
        status = np.array(self.facts["status"].to_pylist(), dtype=object)
        error = np.array(self.facts["error"].to_pylist(), dtype=object)
        is_ok = status == SkipReason.OK.value
        rows = self.facts["row"].to_numpy()
        is_kept = ~np.isin(rows[is_ok], list(rejected))
        for place in np.flatnonzero(is_ok)[~is_kept]:
            image = rejected[int(rows[place])]
            status[place], error[place] = image.reason.value, str(image)
        changed = {"status": strings(status.tolist()), "error": strings(error.tolist())}
        # Images are numbered as encoded: without rejected ones.
        _, images = np.unique(self.images[is_kept], return_inverse=True)
        return replace(
            self,
            facts=self.facts | changed,
            images=images,
            tokens=self.tokens and replace(self.tokens, places=self.tokens.places[is_kept]),
            image_signals=list(itertools.compress(self.image_signals, is_kept)),
        )


@dataclass(frozen=True)
class ReadShard:
    """A request to read a shard.

    With `carefully`, because a reader died of it, each sample is read and announced separately, and
    decoded in its own process. `most` limits the number of samples, and `why` is the reason.
    """

    shard: ShardRef
    carefully: bool = False
    most: int | None = None
    why: str = ""


def before_forks() -> None:
    """Load what Pillow and pyarrow would otherwise load in each reader, at its first sample."""
    Image.init()
    with contextlib.suppress(Exception):  # it may be missing, or broken, and is not needed
        importlib.import_module("pandas")  # whose types pyarrow looks for in lists


def main(connection: Connection, descriptors: Sequence[int]) -> None:
    """Read the shards that the parent names, until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        parent = Parent(connection)
        settings: ReaderSettings = parent.receive()
        arena = Arena(*settings.arena, descriptors[0])
        limit_this_process()
        reader = ShardReader(settings, arena, parent)
        while True:
            message = parent.receive()
            if isinstance(message, ReadShard):
                reader.read(message)
                limit_seconds(0)
            else:
                reader.free.append(message)


class ShardReader:
    """Reads one shard after another into blocks of shared memory that the parent has freed."""

    def __init__(self, settings: ReaderSettings, arena: Arena, parent: Parent) -> None:
        self.free: list[int] = []
        self._settings, self._arena, self._parent = settings, arena, parent
        self._seconds = _SECONDS * settings.threads
        self._kept = {"uid", "url", *TRUTH, *settings.fields}
        self._decoder = ImageDecoder(
            settings.preprocessing,
            settings.max_pixels,
            signals=settings.signals,
            draft=settings.draft,
            keep_jpegs=settings.keep_jpegs,
            exif=settings.exif,
        )

    def read(self, asked: ReadShard) -> None:
        """Send the parent the images of a shard, then its rows or the error that ended reading."""
        shard = asked.shard
        trust(not asked.carefully)
        limit_seconds(_SECONDS_ALONE if asked.carefully else self._seconds)
        read = read_samples(shard, self._settings.caption_key, together=True)
        samples = _Watched(read, self._parent, asked)
        if asked.carefully:
            decode = functools.partial(decode_samples, decoder=_ForkingDecoder(self._decoder))
            stream = DecodedSamples(samples, decode, 0)
        else:
            # With one thread, others only compete for the core, unless reading must wait.
            alone = self._settings.threads == 1 and not is_url(shard.url)
            stream = DecodedSamples(samples, self._decode, 0 if alone else self._settings.threads)
        try:
            self._parent.send(self._rows(shard, stream))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            self._parent.send(error)

    def _decode(self, samples: Sequence[Sample]) -> list[DecodedSample]:
        decoded = []
        for sample in samples:
            decoded += decode_samples([sample], self._decoder)
            progress()
        return decoded

    def _rows(self, shard: ShardRef, stream: DecodedSamples) -> ShardRows:
        samples: list[DecodedSample] = []
        held: list[DecodedSample] = []
        rows: list[int] = []
        encoded: dict[int, bytes] = {}
        count, block, place, turned = 0, torch.empty(0), 0, 0
        size = self._settings.arena[1][0]
        tokenize = self._settings.tokenize
        tokens = TokenCache(tokenize) if tokenize is not None else None

        def send() -> None:
            pairs = _pairs(held) if self._settings.with_pairs else None
            self._parent.send(Block(place, list(rows), dict(encoded), count, pairs))
            if tokens is not None:
                tokens.add(
                    caption.text
                    for decoded in held
                    for caption in decoded.sample.captions
                    if caption.text is not None
                )
            for decoded in held:
                self._forget(decoded.sample)
            held.clear()
            rows.clear()
            encoded.clear()

        for decoded in stream:
            samples.append(decoded)
            turned += decoded.is_turned
            count += 1 + len(decoded.sample.alike)
            if decoded.pixels is not None:
                if not held:
                    place = self._free_block()
                    block = self._arena.blocks[place]
                if decoded.pixels.dim() == 1:
                    encoded[decoded.sample.row] = decoded.pixels.numpy().tobytes()
                else:
                    block[len(rows)] = decoded.pixels
                    rows.append(decoded.sample.row)
                decoded.pixels = None  # the sample outlives the block
                held.append(decoded)
            else:
                self._forget(decoded.sample)
            if len(held) == size:
                send()
        if held:
            send()
        stream.samples.further.turned = turned
        samples.sort(key=lambda decoded: decoded.sample.row)
        return self._finished(shard, stream, samples, count, tokens)

    def _forget(self, sample: Sample) -> None:
        """Drop the fields of a sample that are in no column: it is held until the shard ends."""
        sample.metadata = {
            name: value for name, value in sample.metadata.items() if name in self._kept
        }

    def _free_block(self) -> int:
        """Return the next free block; wait for one."""
        while not self.free:
            self.free.append(self._parent.receive())
        return self.free.pop()

    def _finished(
        self,
        shard: ShardRef,
        stream: DecodedSamples,
        samples: list[DecodedSample],
        count: int,
        tokens: TokenCache | None,
    ) -> ShardRows:
        limit_seconds(0)  # for our own code, which takes time in proportion to the rows
        late = stream.samples.late_metadata
        rows = [Row(one, caption) for one in samples for caption in captions_of(one.sample)]
        scorable = [row for row in rows if row.status is SkipReason.OK]
        captions = [row.caption.text or "" for row in scorable]
        facts = facts_of_rows(shard.name, late, samples, rows)
        check_places(facts, count)
        metadata = pa.table({})
        if self._settings.fields:
            fields = fields_of([row.sample.metadata for row in rows], self._settings.fields)
            metadata = pa.table(fields).take(repeated(rows)[0])
        return ShardRows(
            facts=facts,
            images=images_of_rows(scorable),
            tokens=tokens.of(captions) if tokens is not None else None,
            metadata=metadata,
            image_signals=[row.decoded.signals for row in scorable],
            samples=count,
            further=stream.samples.further,
            error=str(stream.error) if stream.error is not None else None,
            waited=stream.waited,
        )


class _Watched:
    """Samples whose reading counts as progress and, with care, is announced: which one is fatal."""

    def __init__(self, samples: Samples, parent: Parent, asked: ReadShard) -> None:
        self._samples, self._parent, self._asked = samples, parent, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._samples, name)

    def __iter__(self) -> Iterator[Sample]:
        samples = iter(self._samples)
        for number in itertools.count():
            if number == self._asked.most:
                raise ShardError(self._asked.why)
            if self._asked.carefully:
                self._parent.send(number)
            sample = next(samples, None)
            progress()
            if sample is None:
                return
            yield sample


class _ForkingDecoder:
    """Decodes images in forks of this process, several in each as long as it lives."""

    def __init__(self, decoder: ImageDecoder) -> None:
        self._decoder = decoder

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]:
        """Decode images; a failed one becomes an `ImageRejected` with the end of its decoder."""
        seconds = _SECONDS_TOGETHER if len(images) > 1 else _SECONDS_ALONE
        try:
            return in_a_fork(functools.partial(self._decoder.decode_many, images), seconds)
        except Exception as error:  # how it ended, or its memory
            if len(images) > 1:
                return [one for image in images for one in self.decode_many([image])]
            what = f"its decoder {error}" if isinstance(error, WorkerDied) else repr(error)
            return [ImageRejected(SkipReason.IMAGE_CORRUPT, what)]


def _pairs(held: Sequence[DecodedSample]) -> list[tuple[int, str, dict[str, Any]]]:
    return [
        (place_of(sample.row, caption.number), caption.text, sample.metadata)
        for sample in (decoded.sample for decoded in held)
        for caption in sample.captions
        if caption.text is not None
    ]
