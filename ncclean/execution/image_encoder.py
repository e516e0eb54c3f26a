"""The encoder of images and their captions, which runs shards through a CLIP model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean.base.config import ScoreOptions
from ncclean.base.progress import timed
from ncclean.columns import PairBatch
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.open_image import ImageRejected
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import ModelError, ShardError
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import BatchColumns, ColumnSources
from ncclean.execution.device_faults import BatchSize, keep_freed_memory
from ncclean.execution.encoded_shard import EncodedShard, scattered
from ncclean.execution.encoder import Encoding, OnProgress, Speed
from ncclean.execution.sample_rows import row_of
from ncclean.execution.shard_feed import AGAIN, Images, ShardFeed
from ncclean.execution.shard_reader import ReaderSettings, ShardRows
from ncclean.execution.shift import NoiseShift, noise_shift
from ncclean.models.estimator import Estimator, ModelIdentity
from ncclean.models.request import ModelRequest
from ncclean.models.tokens import TokenCache
from ncclean.models.weights import finite_embeddings
from ncclean.storage.grouping import names_in

# Batches handed to the estimator before the oldest must be done.
_BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True)
class ImageRequest:
    """A request to encode images and captions with a model, here or on a node."""

    model: ModelRequest

    @property
    def device(self) -> str:
        """The device that the model runs on."""
        return self.model.device

    def result_options(self) -> Mapping[str, Any]:
        """Return whether the image tower is compiled, which changes the last digits."""
        return {"compile": self.model.compiled}

    def open(self, options: ScoreOptions, columns: ColumnSources) -> ImageEncoder:
        """Load the model and open the image encoder. Raises `ModelError` if it cannot be loaded."""
        return ImageEncoder(self.model.load(), options, columns)

    def absolute(self) -> ImageRequest:
        """Return the request with absolute paths, for a worker with another working folder."""
        return ImageRequest(self.model.absolute())


@dataclass
class _Shard:
    """A shard being read: its images waiting for a batch, and the results of the others."""

    columns: BatchColumns
    held: list[Images] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    rejected: dict[int, ImageRejected] = field(default_factory=dict)
    batches: list[torch.Tensor] = field(default_factory=list)
    samples: int = 0
    times: dict[str, float] = field(default_factory=dict)
    error: Exception | None = None


@dataclass
class _Batch:
    """A batch that the estimator has begun."""

    shard: _Shard
    images: list[Images]
    rows: list[int]
    blocks: list[torch.Tensor]
    result: Callable[[], torch.Tensor]


class ImageEncoder:
    """Encodes images while the next are decoded, and captions when a shard's images are done.

    Raises `InputError` for a column that this model cannot provide.
    """

    blocks_at_once = 1  # the image tower keeps all cores busy

    def __init__(self, estimator: Estimator, options: ScoreOptions, columns: ColumnSources) -> None:
        self.estimator = estimator
        self._options = options
        self._columns = columns
        self.batch = BatchSize(estimator.fit_batch(options.batch_size))
        self._on_device: DeviceImageDecoder | None = None
        if options.decode_on == "device":
            preprocessing, device = estimator.preprocessing, estimator.device
            self._on_device = DeviceImageDecoder(preprocessing, device, options.max_pixels)

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the estimator's model: name, tag, fingerprint, width."""
        return dataclasses.replace(self.estimator.identity, dim=self.facts.dim)

    @property
    def device(self) -> str:
        """The device that the estimator runs on."""
        return str(self.estimator.device)

    @functools.cached_property
    def facts(self) -> EncoderFacts:
        """The facts that column sources need: the model and the width of its embeddings."""
        return EncoderFacts(
            dim=self.estimator.embed_dim, estimator=self.estimator, batch_size=self.batch.size
        )

    def encode(self, shards: Sequence[ShardRef], on_progress: OnProgress) -> Encoding:
        """Encode the images of each shard; yield a function that encodes its captions."""
        keep_freed_memory()
        feed = ShardFeed(
            self._settings(), self._options.decode_threads, self.batch.size, self.estimator.device
        )
        begun: deque[_Batch] = deque()
        open_: dict[int, _Shard] = {}
        finished, last = 0, time.perf_counter()

        def begin(shard: _Shard) -> None:
            images, shard.held = shard.held, []
            rows, blocks = self._blocks(shard, images)
            begun.append(_Batch(shard, images, rows, blocks, self._start(blocks)))
            if len(begun) > _BATCHES_IN_FLIGHT:
                self._finish(begun.popleft(), feed)

        with closing(feed.read(shards)) as parts:
            for number, part in parts:
                shard = open_.setdefault(number, _Shard(BatchColumns(self._columns)))
                if isinstance(part, Images):
                    shard.samples = part.block.samples
                    shard.held.append(part)
                    if sum(map(len, shard.held)) >= self.batch.size:
                        begin(shard)
                        on_progress(finished + sum(one.samples for one in open_.values()))
                    continue
                if part is AGAIN:
                    for images in open_.pop(number).held:
                        feed.release(images)
                    continue
                if shard.held:
                    begin(shard)
                while any(batch.shard is shard for batch in begun):
                    self._finish(begun.popleft(), feed)
                del open_[number]
                if isinstance(part, ShardRows):
                    finished += part.samples
                    on_progress(finished + sum(one.samples for one in open_.values()))
                    now = time.perf_counter()
                    times = feed.times_since_last(part.waited) | shard.times
                    seconds, last = now - last, now
                    yield (
                        number,
                        functools.partial(
                            self._complete, shards[number], shard, part, seconds, times
                        ),
                    )
                else:
                    yield number, functools.partial(_raise, part)

    def speed(self) -> Speed:
        """Measure the encoding speed on one batch of images."""
        size = self.batch.size
        return Speed(
            pairs_per_second=size / self.estimator.seconds_per_batch(size),
            device=self.device,
            precision=self.estimator.precision,
            embedding_dim=self.estimator.embed_dim,
        )

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """The estimator's mean cosine on noise, the boundary of OSA."""
        return noise_shift(self.estimator, seed, tolerance)

    def _settings(self) -> ReaderSettings:
        """The settings of readers."""
        options, tokenize = self._options, self.estimator.tokenize
        return ReaderSettings(
            preprocessing=self.estimator.preprocessing,
            tokenize=tokenize if tokenize.is_portable else None,
            max_pixels=options.max_pixels,
            signals="image" in (options.signals or ()),
            keep_jpegs=self._on_device is not None,
            draft=options.draft,
            exif=options.exif,
            caption_key=options.caption_key,
            fields=tuple(sorted(names_in(options.calibrate_by))) if options.calibrate_by else (),
            with_pairs=self._columns.wants_batches,
        )

    def _start(self, pixels: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Start a batch; waiting for it encodes it in pieces if memory does not suffice."""

        def in_pieces(size: int) -> torch.Tensor:
            pieces = torch.cat(pixels).split(size)
            return torch.cat([self.estimator.encode_image(piece) for piece in pieces])

        try:
            started = self.estimator.start_image(pixels)
        except Exception as error:  # the shard's or the device's error
            started = functools.partial(_raise, error)
        return functools.partial(self.batch.fit, in_pieces, started)

    def _finish(self, batch: _Batch, feed: ShardFeed) -> None:
        """Wait for a batch, compute the columns that need it, and release its images."""
        shard = batch.shard
        try:
            if shard.error is None:
                with timed(shard.times, "device"):
                    encoded = batch.result()
                shard.batches.append(encoded)
                shard.rows += batch.rows
                if self._columns.wants_batches:
                    shard.columns.add(*self._pair_batch(batch, encoded))
        except Exception as error:
            shard.error = error
        finally:
            for images in batch.images:
                feed.release(images)

    def _blocks(self, shard: _Shard, images: list[Images]) -> tuple[list[int], list[torch.Tensor]]:
        """The images of a batch with the numbers of their samples."""
        rows = [row for one in images for row in one.block.rows]
        blocks = [one.pixels for one in images if len(one.pixels)]
        if self._on_device is not None:
            encoded = {row: jpeg for one in images for row, jpeg in one.block.encoded.items()}
            decoded, rejected = self._on_device.decode(encoded)
            shard.rejected |= rejected
            rows += decoded
            blocks += [torch.stack(list(decoded.values()))] if decoded else []
        return rows, blocks

    def _pair_batch(self, batch: _Batch, encoded: torch.Tensor) -> tuple[list[int], PairBatch]:
        """The pairs of a batch of images, and their places."""
        number = {row: number for number, row in enumerate(batch.rows)}
        pairs = [
            (place, caption, fields)
            for one in batch.images
            for place, caption, fields in one.block.pairs or ()
            if row_of(place) in number
        ]
        captions = [caption for _, caption, _ in pairs]
        rows = torch.tensor([number[row_of(place)] for place, *_ in pairs], dtype=torch.int64)
        batch_size = self.batch.size
        made = PairBatch(
            captions,
            encoded[rows.to(encoded.device)].float(),
            torch.cat([block.cpu() for block in batch.blocks])[rows],
            [fields for *_, fields in pairs],
            functools.cache(lambda: self.estimator.encode_text(captions, batch_size).float()),
        )
        return [place for place, *_ in pairs], made

    def _complete(
        self, ref: ShardRef, shard: _Shard, rows: ShardRows, seconds: float, times: dict[str, float]
    ) -> EncodedShard:
        start = time.perf_counter()
        if shard.error is not None:
            raise shard.error
        if shard.rejected:
            rows = rows.without(shard.rejected)
        if shard.batches:
            # Samples with interleaved members come out of order; rows restore it.
            order = torch.tensor(np.argsort(shard.rows), device=self.estimator.device)
            image = _checked(torch.cat(shard.batches)[order], "images")
        else:
            image = torch.empty(0, self.estimator.embed_dim, device=self.estimator.device)
        facts = dict(rows.facts)
        ok = np.asarray(pc.equal(facts["status"], SkipReason.OK.value))
        tokens = rows.tokens
        if tokens is None:
            captions = itertools.compress(facts["text"].to_pylist(), ok)
            tokens = TokenCache(self.estimator.tokenize).of([text or "" for text in captions])
        with timed(times, "device"):
            text = self.estimator.encode_tokenized(tokens, self.batch.size)
        text = _checked(text, "captions")
        counts = [tokens.counts[place] for place in tokens.places]
        if not np.array_equal(rows.images, np.arange(len(image))):
            image = image[torch.from_numpy(rows.images).to(image.device)]
        facts["caption_tokens"] = scattered(pa.array(counts, pa.int32()), ok, pa.int32())
        return EncodedShard(
            name=ref.name,
            facts=facts,
            ok=ok,
            image=image,
            text=text,
            metadata=rows.metadata,
            images=rows.images,
            image_signals=rows.image_signals,
            values=shard.columns.in_order(),
            failures=shard.columns.failures,
            **self.estimator.cut(counts),
            further=rows.further,
            error=rows.error,
            seconds=seconds + time.perf_counter() - start,
            times=times,
        )


def _checked(embeddings: torch.Tensor, what: str) -> torch.Tensor:
    """Check a shard's embeddings; raise `ShardError`, so that other shards are still scored."""
    try:
        return finite_embeddings(embeddings, what)
    except ModelError as error:
        raise ShardError(str(error)) from error


def _raise(error: Exception) -> NoReturn:
    raise error
