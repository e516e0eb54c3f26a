"""Shards to decoded image batches: reading and decoding run ahead of the model, bounded.

One thread reads shards, a pool of threads decodes (the decoders release the GIL), the caller takes
batches in order. The reader proceeds to the next shard while the model is busy with this one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO

import torch

from ncclean.data.decode import ImageDecoder
from ncclean.data.gate import Gate
from ncclean.data.open_image import ImageRejected
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, FurtherMembers, Sample
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.errors import ShardError
from ncclean.progress import timed
from ncclean.stores import is_url

_CHUNK_SAMPLES = 256  # with those that lack an image
_IMAGE_BYTES = 256 << 10  # of an image of a full chunk, at most
_WAITING_BYTES = 256 << 20  # of encoded images that wait for a decoder
_JOIN_SECONDS = 10.0  # a read from a store that does not answer is not waited for longer


@dataclass(slots=True)
class DecodedSample:
    """A sample without its image bytes; `pixels` is None where the image cannot be used."""

    sample: Sample
    pixels: torch.Tensor | None = None
    width: int | None = None
    height: int | None = None
    signals: dict[str, float | str] | None = None


@dataclass
class ShardStream:
    """The decoded samples of one shard; iterate once, then read what was told at its end.

    A second iteration continues where the first one stopped.
    """

    shard: ShardRef
    _chunks: queue.Queue[Future[list[DecodedSample]] | _End]
    _slots: threading.Semaphore
    error: ShardError | None = None
    late_metadata: dict[int, dict[str, object]] = field(default_factory=dict)
    further: FurtherMembers = field(default_factory=FurtherMembers)
    waited: dict[str, float] = field(default_factory=dict)  # seconds, for the store and decoders
    _ended: bool = False

    def __iter__(self) -> Iterator[DecodedSample]:
        while not self._ended:
            with timed(self.waited, "store"):
                chunk = self._chunks.get()
            if isinstance(chunk, _End):
                self._ended, self.error = True, chunk.error
                self.late_metadata, self.further = chunk.late_metadata, chunk.further
                return
            with timed(self.waited, "decode"):
                decoded = chunk.result()
            self._slots.release()  # another chunk may be read ahead
            yield from decoded


@dataclass(slots=True)
class _End:
    error: ShardError | None
    late_metadata: dict[int, dict[str, object]]
    further: FurtherMembers


class StreamReader:
    """Context manager that yields a `ShardStream` for each shard, in order.

    At most `prefetch` decoded or waiting samples exist ahead of the caller, and a quarter of a
    gigabyte of encoded images, so memory does not grow with the number or the size of shards.
    """

    def __init__(
        self,
        shards: Iterable[ShardRef],
        decoder: ImageDecoder,
        *,
        threads: int,
        prefetch: int,
        caption_key: CaptionKeys = None,
        keep: Callable[[ShardRef, Sample], bool] | None = None,
        together: bool = False,
    ) -> None:
        """`keep` says which samples to decode; the others are skipped.

        `together` see `ncclean.data.reader.read_samples`.
        """
        self._shards = shards
        self._keep = keep
        self._together = together
        self._decoder = decoder
        self._caption_key = caption_key
        depth = max(2 * threads, prefetch // decoder.chunk_images)
        self._slots = threading.Semaphore(depth)
        self._waiting = Gate(_WAITING_BYTES)
        self._streams: queue.Queue[ShardStream | BaseException | None] = queue.Queue()
        self._stop = threading.Event()
        # Each decoder thread works on an image of its own; more threads inside one only get in
        # each other's way, and in the model's.
        self._pool = ThreadPoolExecutor(
            threads, "ncclean-decode", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._reader = threading.Thread(target=self._read, name="ncclean-read", daemon=True)

    def __enter__(self) -> StreamReader:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._slots.release()  # the reader may be waiting for one
        # Threads left running while the interpreter goes down can abort the whole process.
        self._reader.join(_JOIN_SECONDS)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[ShardStream]:
        while (stream := self._streams.get()) is not None:
            if isinstance(stream, BaseException):
                raise stream
            yield stream

    def _read(self) -> None:
        try:
            with ThreadPoolExecutor(1, "ncclean-open") as pool:
                for shard, opened in _opened_ahead(self._shards, pool):
                    if self._stop.is_set():
                        return
                    self._read_shard(shard, opened)
            self._streams.put(None)
        except BaseException as error:  # must reach the caller, who would wait for ever
            self._streams.put(error)

    def _read_shard(self, shard: ShardRef, opened: Callable[[], BinaryIO] | None) -> None:
        chunks: queue.Queue[Future[list[DecodedSample]] | _End] = queue.Queue()
        self._streams.put(ShardStream(shard, chunks, self._slots))
        samples = read_samples(shard, self._caption_key, opened, together=self._together)
        failure: ShardError | None = None
        try:
            chunk: list[Sample] = []
            size = images = 0
            for sample in samples:
                if self._keep is not None and not self._keep(shard, sample):
                    continue
                chunk.append(sample)
                if sample.image is not None:
                    images, size = images + 1, size + len(sample.image)
                full = self._decoder.chunk_images
                is_full = images == full or len(chunk) == _CHUNK_SAMPLES
                if is_full or size > full * _IMAGE_BYTES:
                    if not self._submit(chunk, chunks):
                        return
                    chunk, size, images = [], 0, 0
        except ShardError as error:
            failure = error
        except Exception as error:
            failure = ShardError(f"cannot be read: {error!r}", samples.samples)
        if chunk and not self._submit(chunk, chunks):
            return
        chunks.put(_End(failure, samples.late_metadata, samples.further))

    def _submit(
        self, chunk: list[Sample], chunks: queue.Queue[Future[list[DecodedSample]] | _End]
    ) -> bool:
        size = sum(len(sample.image or b"") for sample in chunk)
        self._slots.acquire()
        self._waiting.enter(size)
        if self._stop.is_set():
            return False
        chunks.put(self._pool.submit(self._decode, chunk, size))
        return True

    def _decode(self, chunk: list[Sample], size: int) -> list[DecodedSample]:
        try:
            return decode_samples(chunk, self._decoder)
        finally:
            self._waiting.leave(size)


def _opened_ahead(
    shards: Iterable[ShardRef], pool: ThreadPoolExecutor
) -> Iterator[tuple[ShardRef, Callable[[], BinaryIO] | None]]:
    """The shards, each with a call for its stream; one in a store is opened one shard ahead.

    Opening an object and its first block take a round trip each, which the model would wait for.
    """
    waiting: deque[tuple[ShardRef, Future[BinaryIO] | None]] = deque()
    try:
        for shard in shards:
            is_object = is_url(shard.url) and shard.layout == WEBDATASET
            opening = pool.submit(_open_and_begin, shard) if is_object else None
            waiting.append((shard, opening))
            if len(waiting) > 1:
                yield _take(*waiting.popleft())
        while waiting:
            yield _take(*waiting.popleft())
    finally:
        for _, opening in waiting:
            if opening is not None and not opening.cancel() and opening.exception() is None:
                opening.result().close()


def _take(
    shard: ShardRef, opening: Future[BinaryIO] | None
) -> tuple[ShardRef, Callable[[], BinaryIO] | None]:
    return shard, None if opening is None else opening.result


def _open_and_begin(shard: ShardRef) -> BinaryIO:
    stream = shard.open()
    stream.read(1)
    stream.seek(0)
    return stream


def decode_samples(samples: Sequence[Sample], decoder: ImageDecoder) -> list[DecodedSample]:
    """Decode the images of samples and free their bytes; a rejection sets a sample's status."""
    images = [sample.image for sample in samples if sample.image is not None]
    outcomes = iter(decoder.decode_many(images))
    decoded = []
    for sample in samples:
        sample.members = {}  # the sample outlives its shard's reader
        if sample.image is None:
            decoded.append(DecodedSample(sample))
            continue
        sample.image = None
        image = next(outcomes)
        if isinstance(image, ImageRejected):
            sample.reject(image.reason, str(image))
            decoded.append(DecodedSample(sample, None, image.width, image.height))
        else:
            size = image.width, image.height
            decoded.append(DecodedSample(sample, image.pixels, *size, image.signals))
    return decoded
