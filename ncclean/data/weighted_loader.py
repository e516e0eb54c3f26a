"""Training batches straight from the shards, joined with a selection while they stream.

Nothing is rewritten: a shard is read, the samples that the selection names are kept with their
weight and split, the others passed over. Every selected sample is seen exactly once an epoch, by
one of the ranks, in an order that depends on the seed and the epoch alone; with `drop_last`, less
what would not fill a batch on every rank. An epoch can be taken up at any step.

How the order comes about: the shards in random order form one long sequence, of which each rank
has an equal piece. The piece is read in chunks of a few thousand encoded samples, each shuffled as
a whole. To go on in the middle of an epoch only the chunk of that step is read again.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from ncclean.data.augment import TrainingDecoder
from ncclean.data.decode import ImageRejected, Preprocessing
from ncclean.data.samples import SkipReason
from ncclean.data.selection import SelectedSample, SelectionReader
from ncclean.data.shards import ShardRef, match_shards
from ncclean.data.tar import TarSamples, sample_uid
from ncclean.data.tar_count import count_samples
from ncclean.errors import InputError, ShardError

_BATCHES_AHEAD = 3
_CHUNKS_AHEAD = 1


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """`batch_size` is one rank's. Raises `InputError` for a number out of range.

    `chunk` encoded samples are shuffled together; three times as many are held.
    Without `augment` images are cropped as an estimator sees them. Without `drop_last` the last
    batch of an epoch is smaller, on all ranks alike.
    """

    batch_size: int = 256
    seed: int = 0
    chunk: int = 8192
    shuffle: bool = True
    augment: bool = True
    drop_last: bool = True
    threads: int = 2
    caption_key: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "chunk", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name.replace('_', '-')} must be at least 1")


@dataclass
class TrainBatch:
    """One rank's share of a step.

    `pixels` (B, 3, H, W) uint8, `captions` and `uids` of length B, `weights` (B,) float32,
    `is_forget` (B,) bool. `is_noisy` (B,) int8 is the truth: 1, 0 or -1 where the json has none.
    `features` are (B, d) image and text embeddings in place of the pixels, see
    `ncclean.training.feature_cache`.
    """

    pixels: torch.Tensor
    captions: list[str]
    uids: list[str]
    weights: torch.Tensor
    is_forget: torch.Tensor
    is_noisy: torch.Tensor | None = None
    features: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass
class LoaderCounts:
    """What was wrong with samples of this rank so far, by status.

    Each was replaced by a second showing of another sample of its chunk, so that all ranks go on
    with full batches; `missing` were counted or selected and are not in their shard.
    `failed_shards` were cut short, with the reason.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    failed_shards: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1) -> None:
        if count:
            self.skipped[reason] += count


@dataclass(frozen=True)
class _Piece:
    """Samples `first` to `first + count` of what is selected of a shard."""

    shard: ShardRef
    name: str
    first: int
    count: int


@dataclass
class _Raw:
    """A sample before it is decoded."""

    image: bytes
    caption: str
    chosen: SelectedSample
    is_noisy: int


@dataclass
class _Chunk:
    """Samples in the order of the shards, None where one is unusable."""

    number: int
    samples: list[_Raw | None]


class WeightedLoader:
    """Iterates over the training batches of a rank.

    Raises `InputError` if the selection names shards that are not given, or a rank would have no
    whole batch.
    """

    def __init__(
        self,
        shards: Sequence[ShardRef],
        selection: SelectionReader | None,
        preprocessing: Preprocessing,
        options: LoaderOptions,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.options = options
        self._reserve: tuple[int, list[_Raw]] | None = None
        self.counts = LoaderCounts()
        self._selection = selection
        self._rank, self._world = rank, world_size
        self._decoder = TrainingDecoder(preprocessing)
        counts = selection.counts() if selection is not None else count_samples(shards)
        self._refs = match_shards(list(counts), shards)
        self._sizes = {name: count for name, count in sorted(counts.items()) if count}
        self.samples = sum(self._sizes.values())
        share = self.samples // world_size if options.drop_last else -(-self.samples // world_size)
        whole, rest = divmod(share, options.batch_size)
        self.steps_per_epoch = whole if options.drop_last or not rest else whole + 1
        if not self.steps_per_epoch:
            raise InputError(
                f"{self.samples:,} samples make no batch of {options.batch_size} on each of "
                f"{world_size} ranks"
            )
        per_chunk = max(1, options.chunk // options.batch_size)
        self._chunk = per_chunk * options.batch_size

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch from `first_step` on."""
        first_chunk, skipped = divmod(first_step * self.options.batch_size, self._chunk)
        chunks: queue.Queue[_Chunk | BaseException | None] = queue.Queue(_CHUNKS_AHEAD)
        stop = threading.Event()
        reader = threading.Thread(
            target=self._read, args=(epoch, first_chunk, chunks, stop), daemon=True
        )
        reader.start()
        with ThreadPoolExecutor(
            self.options.threads, "ncclean-train", torch.set_num_threads, (1,)
        ) as pool:
            try:
                ahead: deque[Callable[[], TrainBatch]] = deque()
                step = first_step
                for chunk in _received(chunks):
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
            finally:
                stop.set()
                _emptied(chunks)
                reader.join(10)

    def _begin(
        self, epoch: int, chunk: _Chunk, pool: ThreadPoolExecutor, skipped: int
    ) -> Iterator[Callable[[], TrainBatch]]:
        """Queue the decoding of each batch of a chunk; the returned calls wait for one."""
        places = np.arange(len(chunk.samples))
        if self.options.shuffle:
            places = self._rng(epoch, 1, chunk.number).permutation(places)
        usable = [int(place) for place in places if chunk.samples[place] is not None]
        size = self.options.batch_size
        for start in range(skipped, len(places), size):
            spare = _spares(usable, self._rng(epoch, 2, chunk.number, start))
            seeds = self._rng(epoch, 3, chunk.number, start).integers(1 << 62, size=size)
            futures = [
                pool.submit(self._decode, chunk.samples[place], int(seed))
                for place, seed in zip(places[start : start + size], seeds, strict=False)
            ]

            def collect(
                futures: list[Future[tuple[_Raw, torch.Tensor] | str]] = futures,
                spare: Iterator[int] = spare,
                seed: int = int(seeds[0]),
            ) -> TrainBatch:
                decoded = [future.result() for future in futures]
                return self._batch(decoded, epoch, chunk, spare, seed)

            yield collect

    def _batch(
        self,
        decoded: list[tuple[_Raw, torch.Tensor] | str],
        epoch: int,
        chunk: _Chunk,
        spare: Iterator[int],
        seed: int,
    ) -> TrainBatch:
        good: list[tuple[_Raw, torch.Tensor]] = []
        replacements = self._replacements(epoch, chunk, spare, seed)
        for sample in decoded:
            if isinstance(sample, str):
                if sample:
                    self.counts.add(sample)
                good.append(next(replacements))
            else:
                good.append(sample)
        return TrainBatch(
            pixels=torch.stack([pixels for _, pixels in good]),
            captions=[raw.caption for raw, _ in good],
            uids=[raw.chosen.uid for raw, _ in good],
            weights=torch.tensor([raw.chosen.weight for raw, _ in good], dtype=torch.float32),
            is_forget=torch.tensor([raw.chosen.is_forget for raw, _ in good]),
            is_noisy=torch.tensor([raw.is_noisy for raw, _ in good], dtype=torch.int8),
        )

    def _replacements(
        self, epoch: int, chunk: _Chunk, spare: Iterator[int], seed: int
    ) -> Iterator[tuple[_Raw, torch.Tensor]]:
        """Other samples of the chunk, each once, and then those of the reserve."""
        for place in spare:
            sample = self._decode(chunk.samples[place], seed)
            if not isinstance(sample, str):
                yield sample
        reserve = self._reserve_of(epoch)
        order = np.random.default_rng(seed).permutation(len(reserve))
        for index in itertools.cycle(order):
            sample = self._decode(reserve[index], seed)
            assert not isinstance(sample, str), "it could be decoded before"
            yield sample

    def _reserve_of(self, epoch: int) -> list[_Raw]:
        """The first samples of the epoch that can be read: for chunks of which none can.

        They depend on the epoch alone, so that a resumed run takes the same ones. Raises
        `InputError` if there are none.
        """
        if self._reserve is None or self._reserve[0] != epoch:
            readable = []
            for raw in self._sequence(epoch, 0, threading.Event(), LoaderCounts()):
                if raw is not None and not isinstance(self._decode(raw, 0), str):
                    readable.append(raw)
                if len(readable) == self.options.batch_size:
                    break
            if not readable:
                raise InputError("none of the selected samples can be read")
            self._reserve = epoch, readable
        return self._reserve[1]

    def _decode(self, raw: _Raw | None, seed: int) -> tuple[_Raw, torch.Tensor] | str:
        """The sample and its pixels, or why it is skipped; "" if that was counted before."""
        if raw is None:
            return ""
        try:
            if self.options.augment:
                return raw, self._decoder.crop(raw.image, seed)
            return raw, self._decoder(raw.image).pixels
        except ImageRejected as rejected:
            return rejected.reason.value

    def _read(
        self,
        epoch: int,
        first_chunk: int,
        chunks: queue.Queue[_Chunk | BaseException | None],
        stop: threading.Event,
    ) -> None:
        try:
            number, held = first_chunk, []
            for sample in self._sequence(epoch, first_chunk * self._chunk, stop, self.counts):
                held.append(sample)
                if len(held) == self._chunk:
                    _put(chunks, _Chunk(number, held), stop)
                    number, held = number + 1, []
                if stop.is_set():
                    return
            if held:
                _put(chunks, _Chunk(number, held), stop)
            _put(chunks, None, stop)
        except BaseException as error:  # must reach the caller, who would wait for ever
            _put(chunks, error, stop)

    def _sequence(
        self, epoch: int, start: int, stop: threading.Event, counts: LoaderCounts
    ) -> Iterator[_Raw | None]:
        """This rank's samples of an epoch from `start` on, None for what cannot be used."""
        yielded = 0
        for piece in self._pieces(epoch, start):
            for sample in self._piece(piece, counts):
                yielded += 1
                yield sample
            if stop.is_set():
                return
        lacking = self._length() - start - yielded
        yield from [None] * lacking  # ranks of a sample less than the others

    def _length(self) -> int:
        share = self.samples // self._world
        return share if self.options.drop_last else -(-self.samples // self._world)

    def _pieces(self, epoch: int, start: int) -> Iterator[_Piece]:
        """What this rank reads of which shards, from its sample `start` on."""
        names = list(self._sizes)
        if self.options.shuffle:
            names = [names[index] for index in self._rng(epoch, 0).permutation(len(names))]
        length = self._length()
        low = self._rank * length + start
        high = min((self._rank + 1) * length, self.samples)
        position = 0
        for name in names:
            size = self._sizes[name]
            first, last = max(low - position, 0), min(high - position, size)
            if first < last:
                yield _Piece(self._refs[name], name, first, last - first)
            position += size

    def _piece(self, piece: _Piece, counts: LoaderCounts) -> Iterator[_Raw | None]:
        chosen = self._selection.samples(piece.name) if self._selection is not None else None
        place = yielded = 0
        samples = TarSamples(piece.shard, self.options.caption_key)
        try:
            for sample in samples:
                if chosen is not None:
                    selected = chosen.get(sample.key)
                    if selected is None or sample.status is SkipReason.DUPLICATE_KEY:
                        continue
                elif sample.status is not SkipReason.OK:
                    continue
                else:
                    uid = sample_uid(sample.metadata, piece.name, sample.key)
                    selected = SelectedSample(uid, 1.0, False)
                place += 1
                if place <= piece.first:
                    continue
                if yielded == piece.count:
                    break
                yielded += 1
                if sample.status is not SkipReason.OK or not sample.image:
                    counts.add(sample.status.value)
                    yield None
                else:
                    truth = sample.metadata.get("is_noisy")
                    is_noisy = int(truth) if truth in (0, 1) else -1
                    yield _Raw(sample.image, sample.caption or "", selected, is_noisy)
        except ShardError as error:
            counts.add("shard_error")
            counts.failed_shards[piece.name] = str(error)
        counts.add("missing", piece.count - yielded)
        yield from [None] * (piece.count - yielded)

    def _rng(self, *stream: int) -> np.random.Generator:
        """Random numbers of one purpose; the first purpose, the order of shards, has no rank."""
        epoch, purpose, *rest = stream
        rank = 0 if purpose == 0 else self._rank
        return np.random.default_rng([self.options.seed, epoch, purpose, rank, *rest])


def _spares(usable: list[int], rng: np.random.Generator) -> Iterator[int]:
    """Places of usable samples in random order, each once."""
    if usable:
        for index in rng.permutation(len(usable)):
            yield int(usable[index])


def _received(chunks: queue.Queue[_Chunk | BaseException | None]) -> Iterator[_Chunk]:
    while (chunk := chunks.get()) is not None:
        if isinstance(chunk, BaseException):
            raise chunk
        yield chunk


def _put(
    chunks: queue.Queue[_Chunk | BaseException | None],
    chunk: _Chunk | BaseException | None,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        try:
            chunks.put(chunk, timeout=0.5)
            return
        except queue.Full:
            continue


def _emptied(chunks: queue.Queue[_Chunk | BaseException | None]) -> None:
    while not chunks.empty():
        chunks.get_nowait()
