"""The encoder of images and their captions: shards through a CLIP model."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean.columns import PairBatch
from ncclean.config import ScoreOptions
from ncclean.data.decode import ImageDecoder
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.data.stream import DecodedSample, ShardStream, StreamReader
from ncclean.errors import ModelError, ShardError
from ncclean.execution.allocator import keep_freed_memory
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import BatchColumns, ColumnSources, slices
from ncclean.execution.device_faults import BatchSize
from ncclean.execution.encoded_shard import EncodedShard, scattered
from ncclean.execution.encoder import Completion, Encoding, OnProgress, Speed
from ncclean.execution.sample_rows import (
    Row,
    captions_of,
    check_places,
    facts_of_rows,
    images_of_rows,
    place_of,
    repeated,
)
from ncclean.execution.shift import noise_shift
from ncclean.models.estimator import Estimator, ModelIdentity
from ncclean.models.request import ModelRequest
from ncclean.models.weights import finite_embeddings
from ncclean.progress import timed
from ncclean.storage.grouping import of_fields

# Batches handed to the estimator before the oldest must be done.
_BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True)
class ImageRequest:
    """Images and captions, to be encoded by a model."""

    model: ModelRequest

    @property
    def device(self) -> str:
        """The device that the model runs on."""
        return self.model.device

    def result_options(self) -> Mapping[str, Any]:
        """Whether the image tower is compiled, which changes the last digits."""
        return {"compile": self.model.compiled}

    def open(self, options: ScoreOptions, columns: ColumnSources) -> ImageEncoder:
        """Load the model and open the image encoder. Raises `ModelError` if it cannot be loaded."""
        return ImageEncoder(self.model.load(), options, columns)

    def absolute(self) -> ImageRequest:
        """The request with absolute paths, for a worker whose working folder is another one."""
        return ImageRequest(self.model.absolute())


@dataclass
class _Images:
    """All samples of a shard in input order, (n, d) embeddings of the images of the usable ones."""

    stream: ShardStream
    samples: list[DecodedSample]
    count: int  # of samples, with those that some stand for
    image: torch.Tensor
    columns: BatchColumns
    seconds: float
    times: dict[str, float]


class ImageEncoder:
    """Encodes images while the next ones are decoded, and captions when a shard's images are done.

    Raises `InputError` for a column that this model cannot give.
    """

    blocks_at_once = 1  # the image tower keeps all cores busy

    def __init__(self, estimator: Estimator, options: ScoreOptions, columns: ColumnSources) -> None:
        self.estimator = estimator
        self._options = options
        self._columns = columns
        self.batch = BatchSize(estimator.fit_batch(options.batch_size))
        self.decoder = self._decoder()

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the estimator's model: name, tag, fingerprint."""
        return self.estimator.identity

    @property
    def device(self) -> str:
        """The device that the estimator runs on."""
        return str(self.estimator.device)

    @functools.cached_property
    def facts(self) -> EncoderFacts:
        """The width of the embeddings and the model, for the column sources."""
        return EncoderFacts(
            dim=self.estimator.embed_dim, estimator=self.estimator, batch_size=self.batch.size
        )

    def encode(self, shards: Sequence[ShardRef], on_progress: OnProgress) -> Encoding:
        """Encode the images of each shard; yields a function that encodes its captions."""
        keep_freed_memory()
        finished = 0
        with StreamReader(
            shards,
            self.decoder,
            threads=self._options.decode_threads,
            prefetch=2 * self.batch.size,
            caption_key=self._options.caption_key,
            together=True,
        ) as streams:
            for stream in streams:
                completion: Completion
                try:
                    images = self._encode_images(stream, finished, on_progress)
                except Exception as error:
                    completion = functools.partial(_raise, error)
                else:
                    finished += images.count
                    completion = functools.partial(self._complete, images)
                for _ in stream:  # what was read ahead of a failure must not block the reader
                    pass
                yield completion

    def speed(self) -> Speed:
        """Measure the encoding speed on one batch of images."""
        size = self.batch.size
        return Speed(
            pairs_per_second=size / self.estimator.seconds_per_batch(size),
            device=self.device,
            precision=self.estimator.precision,
            embedding_dim=self.estimator.embed_dim,
        )

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The estimator's mean cosine on noise, the boundary of OSA."""
        return noise_shift(self.estimator, seed, tolerance)

    def _decoder(self) -> ImageDecoder:
        preprocessing, device = self.estimator.preprocessing, self.estimator.device
        if self._options.decode_on == "device":
            return DeviceImageDecoder(preprocessing, device, self._options.max_pixels)
        return ImageDecoder(
            preprocessing,
            self._options.max_pixels,
            signals="image" in (self._options.signals or ()),
            draft=self._options.draft,
        )

    def _encode_images(
        self, stream: ShardStream, finished: int, on_progress: OnProgress
    ) -> _Images:
        start = time.perf_counter()
        times: dict[str, float] = {}
        samples: list[DecodedSample] = []
        count = 0
        rows: list[int] = []
        held: list[DecodedSample] = []
        begun: deque[tuple[Callable[[], torch.Tensor], list[DecodedSample], list[torch.Tensor]]]
        begun = deque()
        batches: list[torch.Tensor] = []
        columns = BatchColumns(self._columns)

        def begin() -> None:
            pixels = [decoded.pixels for decoded in held if decoded.pixels is not None]
            begun.append((self._start(pixels), list(held), pixels))
            for decoded in held:
                decoded.pixels = None  # the batch holds them; the sample outlives the batch
            held.clear()

        def finish() -> None:
            result, of_batch, pixels = begun.popleft()
            with timed(times, "device"):
                batches.append(result())
            if self._columns.wants_batches:
                columns.add(*self._pair_batch(of_batch, pixels, batches[-1]))

        for decoded in stream:
            samples.append(decoded)
            count += 1 + len(decoded.sample.alike)
            if decoded.pixels is not None:
                rows.append(decoded.sample.row)
                held.append(decoded)
            if len(held) >= self.batch.size:
                begin()
                if len(begun) > _BATCHES_IN_FLIGHT:
                    finish()
                on_progress(finished + count)
        if held:
            begin()
        while begun:
            finish()
        on_progress(finished + count)
        samples.sort(key=lambda decoded: decoded.sample.row)
        if batches:
            # Samples whose members were interleaved come out of order; rows restore it.
            order = torch.tensor(np.argsort(rows), device=self.estimator.device)
            image = _checked(torch.cat(batches)[order], "images")
        else:
            image = torch.empty(0, self.estimator.embed_dim, device=self.estimator.device)
        seconds = time.perf_counter() - start
        return _Images(stream, samples, count, image, columns, seconds, times)

    def _start(self, pixels: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Start a batch; waiting for it encodes it in pieces if memory does not suffice."""

        def in_pieces(size: int) -> torch.Tensor:
            pieces = [torch.stack(pixels[rows]) for rows in slices(len(pixels), size)]
            return torch.cat([self.estimator.encode_image(piece) for piece in pieces])

        try:
            started = self.estimator.start_image(pixels)
        except torch.OutOfMemoryError as error:
            started = functools.partial(_raise, error)
        return functools.partial(self.batch.fit, in_pieces, started)

    def _pair_batch(
        self, samples: list[DecodedSample], pixels: list[torch.Tensor], image: torch.Tensor
    ) -> tuple[list[int], PairBatch]:
        """The pairs of a batch of images, and their places."""
        usable = [
            (number, decoded.sample, caption)
            for number, decoded in enumerate(samples)
            for caption in decoded.sample.captions
            if caption.text is not None
        ]
        captions = [caption.text or "" for _, _, caption in usable]
        batch_size = self.batch.size
        batch = PairBatch(
            captions,
            image[torch.tensor([number for number, _, _ in usable], device=image.device)].float(),
            torch.stack([pixels[number] for number, _, _ in usable]),
            [sample.metadata for _, sample, _ in usable],
            functools.cache(lambda: self.estimator.encode_text(captions, batch_size).float()),
        )
        return [place_of(sample.row, caption.number) for _, sample, caption in usable], batch

    def _complete(self, images: _Images) -> EncodedShard:
        start = time.perf_counter()
        stream, samples, image = images.stream, images.samples, images.image
        rows = [Row(one, caption) for one in samples for caption in captions_of(one.sample)]
        scorable = [row for row in rows if row.status is SkipReason.OK]
        captions = [row.caption.text or "" for row in scorable]
        times = {**images.times, **stream.waited}
        with timed(times, "device"):
            text, tokens = self.estimator.encode_captions(captions, self.batch.size)
        text = _checked(text, "captions")
        numbers = images_of_rows(scorable)
        if len(scorable) > len(image):
            image = image[torch.from_numpy(numbers).to(image.device)]
        facts = facts_of_rows(stream, samples, rows)
        check_places(facts, images.count)
        ok = np.asarray(pc.equal(facts["status"], SkipReason.OK.value))
        facts["caption_tokens"] = scattered(pa.array(tokens, pa.int32()), ok, pa.int32())
        sql = self._options.calibrate_by
        metadata = pa.table({})
        if sql is not None:
            fields = of_fields([row.sample.metadata for row in rows], sql)
            metadata = pa.table(fields).take(repeated(rows)[0])
        return EncodedShard(
            name=stream.shard.name,
            facts=facts,
            ok=ok,
            image=image,
            text=text,
            metadata=metadata,
            images=numbers,
            image_signals=[row.decoded.signals for row in scorable],
            values=images.columns.in_order(),
            failures=images.columns.failures,
            **self.estimator.cut(tokens),
            further=stream.further,
            error=str(stream.error) if stream.error is not None else None,
            seconds=images.seconds + time.perf_counter() - start,
            times=times,
        )


def _checked(embeddings: torch.Tensor, what: str) -> torch.Tensor:
    """Embeddings of a shard; raises `ShardError`, so that those of others are still scored."""
    try:
        return finite_embeddings(embeddings, what)
    except ModelError as error:
        raise ShardError(str(error)) from error


def _raise(error: Exception) -> NoReturn:
    raise error
