"""The encoded samples that one rank trains on in an epoch, in the order of the shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import SkipReason
from ncclean.data.selection import SelectedSample, Selection
from ncclean.data.shards import ShardRef, match_shards
from ncclean.data.tar_count import count_samples
from ncclean.errors import ShardError


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


@dataclass
class RawSample:
    """A sample before it is decoded."""

    image: bytes
    caption: str
    chosen: SelectedSample
    is_noisy: int


@dataclass(frozen=True)
class _Piece:
    """Samples `first` to `first + count` of what is selected of a shard."""

    shard: ShardRef
    name: str
    first: int
    count: int


class RankSamples:
    """The shards in random order form one long sequence, of which each rank has an equal piece.

    `samples` counts those of all ranks, `length` is the piece of each. Raises `InputError` if the
    selection names shards that are not given.
    """

    def __init__(
        self,
        shards: Sequence[ShardRef],
        selection: Selection | None,
        *,
        caption_key: str | None,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._selection, self._caption_key = selection, caption_key
        self._shuffle, self._seed, self._rank = shuffle, seed, rank
        counts = selection.counts() if selection is not None else count_samples(shards)
        self._refs = match_shards(list(counts), shards)
        self._sizes = {name: count for name, count in sorted(counts.items()) if count}
        self.samples = sum(self._sizes.values())
        self.length = self.samples // world_size if drop_last else -(-self.samples // world_size)

    def sequence(self, epoch: int, start: int, counts: LoaderCounts) -> Iterator[RawSample | None]:
        """This rank's samples of an epoch from `start` on, None for what cannot be used."""
        yielded = 0
        for piece in self._pieces(epoch, start):
            for sample in self._piece(piece, counts):
                yielded += 1
                yield sample
        lacking = self.length - start - yielded
        yield from [None] * lacking  # ranks of a sample less than the others

    def _pieces(self, epoch: int, start: int) -> Iterator[_Piece]:
        """What this rank reads of which shards, from its sample `start` on."""
        names = list(self._sizes)
        if self._shuffle:
            names = [names[index] for index in self.rng(epoch, 0).permutation(len(names))]
        low = self._rank * self.length + start
        high = min((self._rank + 1) * self.length, self.samples)
        position = 0
        for name in names:
            size = self._sizes[name]
            first, last = max(low - position, 0), min(high - position, size)
            if first < last:
                yield _Piece(self._refs[name], name, first, last - first)
            position += size

    def _piece(self, piece: _Piece, counts: LoaderCounts) -> Iterator[RawSample | None]:
        chosen = self._selection.samples(piece.name) if self._selection is not None else None
        place = yielded = 0
        samples = read_samples(piece.shard, self._caption_key)
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
                    yield RawSample(sample.image, sample.caption or "", selected, is_noisy)
        except ShardError as error:
            counts.add("shard_error")
            counts.failed_shards[piece.name] = str(error)
        counts.add("missing", piece.count - yielded)
        yield from [None] * (piece.count - yielded)

    def rng(self, *stream: int) -> np.random.Generator:
        """Random numbers of one purpose; the first purpose, the order of shards, has no rank."""
        epoch, purpose, *rest = stream
        rank = 0 if purpose == 0 else self._rank
        return np.random.default_rng([self._seed, epoch, purpose, rank, *rest])
