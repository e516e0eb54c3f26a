"""Stream training batches from the shards, joined with a selection on the way.

Nothing is rewritten: the selected samples of a shard are kept with their weight and split, the
others skipped. Every selected sample is seen exactly once an epoch, by one of the ranks, in an
order that depends only on the seed and the epoch, except, with `drop_last`, those that would not
fill a batch on every rank. An epoch can resume at any step.

The order is made as follows: the shards in random order form one long sequence, of which each rank
has an equal piece. The piece is read in chunks of a few thousand encoded samples, each shuffled as
a whole. To resume within an epoch, only the chunk of that step is read again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from ncclean.data.augment import TrainingDecoder
from ncclean.data.decode import DecodedImage, Preprocessing
from ncclean.data.open_image import ImageRejected
from ncclean.data.options import LoaderOptions
from ncclean.data.rank_samples import ImageCheck, RankSamples, RawSample, Unusable
from ncclean.data.read_ahead import ReadAhead
from ncclean.data.samples import SkipReason
from ncclean.data.selection import Selection
from ncclean.data.shards import ShardRef
from ncclean.data.train_batch import TrainBatch as TrainBatch
from ncclean.data.train_batch import with_batch_noise
from ncclean.errors import InputError
from ncclean.workers.call import Limits, WorkerFailed, contained
from ncclean.workers.worker import MEMORY_BYTES, WorkerDied, in_a_fork, progress

T = TypeVar("T")
_Decoded: TypeAlias = tuple[RawSample, torch.Tensor]

logger = logging.getLogger(__name__)

ALL_ROWS = slice(None)
_BATCHES_AHEAD = 3
_CHUNKS_AHEAD = 1
_IMAGE_BYTES = 1 << 20  # of an encoded photograph, at most, on average
_SECONDS = 6.0  # of CPU time, per image


@dataclass
class _Chunk:
    """Samples in the order of the shards."""

    number: int
    samples: list[RawSample | Unusable | None]


class WeightedLoader:
    """Iterates over the training batches of a rank.

    Raises `InputError` if the selection names shards that are not given, or a rank would get no
    whole batch.
    """

    def __init__(
        self,
        shards: Sequence[ShardRef],
        selection: Selection | None,
        preprocessing: Preprocessing,
        options: LoaderOptions,
        *,
        rank: int = 0,
        world_size: int = 1,
        rows: slice = ALL_ROWS,
        counts: Mapping[str, int] | None = None,
        tokenize: Callable[[Sequence[str]], torch.Tensor] | None = None,
    ) -> None:
        """Set up the loader; `rows` of each batch are made, and `counts` are as in `RankSamples`.

        With `tokenize`, which is sent to another process, batches have their captions' tokens.
        """
        self.options = options
        self._tokenize = tokenize
        self._rows = range(*rows.indices(options.batch_size))
        self._reserve: tuple[int, list[RawSample]] | None = None
        self._check_images = ImageCheck()
        self.preprocessing = preprocessing
        self._decoder: TrainingDecoder
        self._source = RankSamples(
            shards,
            selection,
            caption_key=options.caption_key,
            captions=options.captions,
            shuffle=options.shuffle,
            drop_last=options.drop_last,
            seed=options.seed,
            rank=rank,
            world_size=world_size,
            counts=counts,
        )
        self.samples, share = self._source.samples, self._source.length
        whole, rest = divmod(share, options.batch_size)
        self.steps_per_epoch = whole if options.drop_last or not rest else whole + 1
        # How many samples the last batch of an epoch lacks.
        self.lacking = max(0, self.steps_per_epoch * options.batch_size - share)
        if not self.samples:
            what = "the shards hold no image" if selection is None else "the selection is empty"
            raise InputError(f"nothing to train on: {what}")
        if not self.steps_per_epoch:
            of_each = f" on each of {world_size} ranks" if world_size > 1 else ""
            raise InputError(
                f"{self.samples:,} samples are too few for a batch of {options.batch_size}"
                f"{of_each}: use a smaller --batch-size"
            )
        per_chunk = max(1, options.chunk // options.batch_size)
        self._chunk = per_chunk * options.batch_size

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the training batches of an epoch, from `first_step` on.

        A separate process reads and decodes them. If an image kills it, another process resumes at
        that step, and decodes each image of this and the next steps in a fork.
        """
        step, last_careful = first_step, -1
        while step < self.steps_per_epoch:
            is_careful = step <= last_careful
            try:
                for fields in contained(
                    _batches, self, epoch, step, is_careful, limits=self._limits
                ):
                    arrays = {n: v for n, v in fields.items() if isinstance(v, np.ndarray)}
                    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
                    batch = TrainBatch(**fields | tensors)
                    self._check_images(batch.of_other_images)
                    yield batch
                    step += 1
                    if is_careful and step > last_careful:
                        break
                else:
                    return
            except WorkerFailed as error:
                if is_careful:
                    raise
                last_careful = step + _BATCHES_AHEAD
                logger.warning("step %d of epoch %d is made again: %s", step, epoch, error)

    @property
    def _limits(self) -> Limits:
        """Return memory for the chunks of encoded samples, and time for an image in each thread.

        An ordinary photograph takes less than `_IMAGE_BYTES`; each image counts as progress.
        """
        chunks = (1 + _CHUNKS_AHEAD) * self._chunk * _IMAGE_BYTES
        return Limits(MEMORY_BYTES + chunks, _SECONDS * (self.options.decode_threads + 1))

    def batches(
        self, epoch: int, first_step: int, decoder: TrainingDecoder
    ) -> Iterator[TrainBatch]:
        """Yield the training batches of an epoch, read and decoded in threads of this process."""
        self._decoder = decoder
        first_chunk, skipped = divmod(first_step * self.options.batch_size, self._chunk)
        ahead: deque[Callable[[], TrainBatch]] = deque()
        step = first_step
        with (
            ReadAhead(partial(self._chunks, epoch, first_chunk), _CHUNKS_AHEAD) as chunks,
            ThreadPoolExecutor(
                self.options.decode_threads, "ncclean-train", torch.set_num_threads, (1,)
            ) as pool,
        ):
            for chunk in chunks:
                for batch in self._begin(epoch, chunk, pool, skipped):
                    if step == self.steps_per_epoch:
                        break
                    step += 1
                    ahead.append(batch)
                    if len(ahead) > _BATCHES_AHEAD:
                        yield ahead.popleft()()
                skipped = 0
            for batch in ahead:
                yield batch()

    def _begin(
        self, epoch: int, chunk: _Chunk, pool: ThreadPoolExecutor, skipped: int
    ) -> Iterator[Callable[[], TrainBatch]]:
        """Queue the decoding of each batch of a chunk; the yielded calls wait for one."""
        places = np.arange(len(chunk.samples))
        if self.options.shuffle:
            places = self._source.rng(epoch, 1, chunk.number).permutation(places)
        usable = [int(index) for index in places if isinstance(chunk.samples[index], RawSample)]
        size = self.options.batch_size
        for start in range(skipped, len(places), size):
            spares = self._source.rng(epoch, 2, chunk.number, start).permutation(usable)
            seeds = self._source.rng(epoch, 3, chunk.number, start).integers(1 << 62, size=size)
            of_batch = places[start : start + size]
            own_rows = self._mine(len(of_batch))
            futures = [
                pool.submit(self._decode, chunk.samples[index], int(seed))
                for index, seed in zip(of_batch[own_rows], seeds[own_rows], strict=False)
            ]

            def collect(
                futures: list[Future[_Decoded | Unusable | None]] = futures,
                first: int = own_rows.start,
                spares: np.ndarray = spares,
                seed: int = int(seeds[0]),
            ) -> TrainBatch:
                decoded = [future.result() for future in futures]
                good, unusable = [], {}
                for row, sample in enumerate(decoded):
                    if isinstance(sample, Unusable):
                        unusable[row] = sample
                    if not isinstance(sample, tuple):
                        place = first + row
                        sample = self._replacement(epoch, chunk, spares[place::size], seed, place)
                    good.append(sample)
                return dataclasses.replace(self._batch(good, seed), unusable=unusable)

            yield collect

    def _mine(self, count: int) -> slice:
        """Return the rows to make of a batch of `count`; ranks share incomplete batches equally."""
        first, share = self._rows.start, len(self._rows)
        if count < self.options.batch_size:
            share = -(-count * share // self.options.batch_size)
            first = min(first * count // self.options.batch_size, count - share)
        return slice(first, first + share)

    def _batch(self, good: list[_Decoded], seed: int) -> TrainBatch:
        captions = [raw.caption for raw, _ in good]
        batch = TrainBatch(
            pixels=torch.stack([pixels for _, pixels in good]),
            captions=captions,
            tokens=self._tokenize(captions) if self._tokenize is not None else None,
            uids=[raw.chosen.uid for raw, _ in good],
            weights=torch.tensor([raw.chosen.weight for raw, _ in good], dtype=torch.float32),
            is_forget=torch.tensor([raw.chosen.is_forget for raw, _ in good]),
            is_noisy=torch.tensor([raw.is_noisy for raw, _ in good], dtype=torch.int8),
            pair_names=[raw.chosen.pair_name for raw, _ in good],
            of_other_images=[raw.chosen.uid for raw, _ in good if raw.is_of_other_image],
        )
        return with_batch_noise(batch, self.options.batch_noise, seed)

    def _replacement(
        self, epoch: int, chunk: _Chunk, spares: np.ndarray, seed: int, row: int
    ) -> _Decoded:
        """Return a sample of the chunk that replaces an unusable one, else one of the reserve.

        It depends only on the batch's row, not on which others this rank makes.
        """
        crop = int(np.random.default_rng([seed, row]).integers(1 << 62))
        for index in spares:
            sample = self._decode(chunk.samples[index], crop)
            if isinstance(sample, tuple):
                return sample
        reserve = self._reserve_of(epoch)
        order = np.random.default_rng(seed).permutation(len(reserve))
        sample = self._decode(reserve[order[row % len(order)]], crop)
        assert isinstance(sample, tuple), "it could be decoded before"
        return sample

    def _reserve_of(self, epoch: int) -> list[RawSample]:
        """Return the epoch's first readable samples, for chunks that have none.

        They depend only on the epoch, so a resumed run takes the same ones. Raises `InputError` if
        there are none.
        """
        if self._reserve is None or self._reserve[0] != epoch:
            readable = []
            for raw in self._source.sequence(epoch, 0):
                if isinstance(raw, RawSample) and isinstance(self._decode(raw, 0), tuple):
                    readable.append(raw)
                if len(readable) == self.options.batch_size:
                    break
            if not readable:
                raise InputError("none of the selected samples can be read")
            self._reserve = epoch, readable
        return self._reserve[1]

    def _decode(self, raw: RawSample | Unusable | None, seed: int) -> _Decoded | Unusable | None:
        """Return the sample and its pixels, or why it has none."""
        progress()
        if not isinstance(raw, RawSample):
            return raw
        try:
            if self.options.augment:
                return raw, self._decoder.crop(raw.image, seed)
            return raw, self._decoder(raw.image).pixels
        except ImageRejected as rejected:
            return Unusable(rejected.reason.value)

    def _chunks(self, epoch: int, first: int, stop: threading.Event) -> Iterator[_Chunk]:
        """Yield the chunks of an epoch from number `first` on, until `stop` is set."""
        number, held = first, []
        for sample in self._source.sequence(epoch, first * self._chunk):
            held.append(sample)
            progress()
            if len(held) == self._chunk:
                yield _Chunk(number, held)
                number, held = number + 1, []
            if stop.is_set():
                return
        if held:
            yield _Chunk(number, held)


class _ForkingDecoder(TrainingDecoder):
    """Decodes each image in a fork, so a crash affects only this image; for one thread."""

    def __call__(self, data: bytes) -> DecodedImage:
        return self._forked(lambda: super(_ForkingDecoder, self).__call__(data))

    def crop(self, data: bytes, seed: int) -> torch.Tensor:
        return self._forked(lambda: super(_ForkingDecoder, self).crop(data, seed))

    def _forked(self, work: Callable[[], T]) -> T:
        try:
            return in_a_fork(work, _SECONDS)
        except WorkerDied as died:
            raise ImageRejected(SkipReason.IMAGE_CORRUPT, f"its decoder {died}") from died


def _batches(
    loader: WeightedLoader, epoch: int, first_step: int, is_careful: bool
) -> Iterator[dict[str, Any]]:
    """Yield the batches of an epoch as fields, their tensors as arrays."""
    kind = _ForkingDecoder if is_careful else TrainingDecoder
    if is_careful:
        loader.options = dataclasses.replace(loader.options, decode_threads=1)
    for batch in loader.batches(epoch, first_step, kind(loader.preprocessing)):
        values = vars(batch)
        tensors = {name: v.numpy() for name, v in values.items() if isinstance(v, torch.Tensor)}
        yield values | tensors
