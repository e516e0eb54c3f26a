"""Decode the images of a shard: one thread reads, others decode."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from ncclean.base.progress import timed
from ncclean.data.decode import DecodedImage
from ncclean.data.images.layout import Samples
from ncclean.data.open_image import ImageRejected
from ncclean.data.read_ahead import ReadAhead
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, Sample
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

_CHUNK_IMAGES = 16
_CHUNK_SAMPLES = 256  # including those without an image
_CHUNK_BYTES = 4 << 20
_CHUNKS_AHEAD = 2


@dataclass(slots=True)
class DecodedSample:
    """A sample with its decoded image in place of the bytes; `pixels` is None if it has none."""

    sample: Sample
    pixels: torch.Tensor | None = None
    width: int | None = None
    height: int | None = None
    signals: dict[str, float | str] | None = None
    is_turned: bool = False


class DecodedSamples:
    """Iterates once over the samples of a shard, in order, and decodes ahead.

    Afterwards, `error` says why the shard broke off, and `waited` how many seconds the iteration
    waited for reading and decoding.
    """

    def __init__(
        self,
        samples: Samples,
        decode: Callable[[Sequence[Sample]], list[DecodedSample]],
        threads: int,
        keep: Callable[[Sample], bool] | None = None,
    ) -> None:
        """Set up the iteration; `keep` says which samples to decode, and the others are skipped.

        Without `threads` nothing is decoded ahead.
        """
        self.samples = samples
        self.error: ShardError | None = None
        self.waited: dict[str, float] = {}
        self._decode, self._threads, self._keep = decode, threads, keep

    def __iter__(self) -> Iterator[DecodedSample]:
        if self._threads:
            yield from self._ahead()
            return
        chunks = self._chunks(threading.Event())
        while True:
            with timed(self.waited, "store"):
                chunk = next(chunks, None)
            if chunk is None:
                return
            with timed(self.waited, "decode"):
                decoded = self._decode(chunk)
            yield from decoded

    def _ahead(self) -> Iterator[DecodedSample]:
        decoding: deque[Future[list[DecodedSample]]] = deque()
        with (
            ReadAhead(self._chunks, _CHUNKS_AHEAD) as chunks,
            # Each thread works on its own image; more threads per image would only compete.
            ThreadPoolExecutor(
                self._threads, "ncclean-decode", torch.set_num_threads, (1,)
            ) as pool,
        ):
            while True:
                with timed(self.waited, "store"):
                    chunk = next(chunks, None)
                if chunk is not None:
                    decoding.append(pool.submit(self._decode, chunk))
                while decoding and (chunk is None or len(decoding) > self._threads):
                    with timed(self.waited, "decode"):
                        decoded = decoding.popleft().result()
                    yield from decoded
                if chunk is None:
                    return

    def _chunks(self, stop: threading.Event) -> Iterator[list[Sample]]:
        chunk: list[Sample] = []
        size = images = 0
        try:
            for sample in self.samples:
                if self._keep is not None and not self._keep(sample):
                    continue
                chunk.append(sample)
                if sample.image is not None:
                    images, size = images + 1, size + len(sample.image)
                if images == _CHUNK_IMAGES or len(chunk) == _CHUNK_SAMPLES or size > _CHUNK_BYTES:
                    if stop.is_set():
                        return
                    yield chunk
                    chunk, size, images = [], 0, 0
        except ShardError as error:
            self.error = error
        except Exception as error:
            self.error = ShardError(f"cannot be read: {error!r}", self.samples.samples)
        if chunk:
            yield chunk


def decoded_shard(
    shard: ShardRef,
    decoder: Decoder,
    threads: int,
    caption_key: CaptionKeys = None,
    keep: Callable[[Sample], bool] | None = None,
) -> DecodedSamples:
    """Decode the samples of a shard of images in threads of this process."""
    decode = functools.partial(decode_samples, decoder=decoder)
    return DecodedSamples(read_samples(shard, caption_key), decode, threads, keep)


class Decoder(Protocol):
    """Decodes several images; a rejected image is replaced by its error."""

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]: ...


def decode_samples(samples: Sequence[Sample], decoder: Decoder) -> list[DecodedSample]:
    """Decode the images of samples and free their bytes; reject samples without a usable image."""
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
            decoded.append(
                DecodedSample(sample, image.pixels, *size, image.signals, image.is_turned)
            )
    return decoded
