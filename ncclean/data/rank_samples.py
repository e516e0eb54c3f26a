"""Read the encoded samples that one rank trains on in an epoch, in the order of the shards."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.data.counting import count_samples
from ncclean.data.member_samples import sample_uid, uid_among
from ncclean.data.options import Captions
from ncclean.data.reader import read_samples
from ncclean.data.samples import OF_CAPTIONS, CaptionKeys, Sample, SkipReason, noise_of
from ncclean.data.selection import SelectedSample, Selection
from ncclean.data.shards import ShardRef, match_shards
from ncclean.errors import ShardError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unusable:
    """Why a sample cannot be used for training; another one of its chunk is used twice instead.

    `missing` samples were counted or selected but are not in their shard; those of a `shard_error`
    come after the point where `error` cut `shard` short.
    """

    reason: str
    shard: str = ""
    error: str = ""


REASONS = (*(status.value for status in SkipReason), "missing", "shard_error")


@dataclass
class RawSample:
    """A training sample with its image still encoded.

    `is_of_other_image` tells that the image has another size than the scored one.
    """

    image: bytes
    caption: str
    chosen: SelectedSample
    is_noisy: int
    is_of_other_image: bool = False


class ImageCheck:
    """Logs a warning at the first image that is not the scored one.

    Files that a table names change without the table.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def __call__(self, uids: Sequence[str]) -> None:
        """Check `uids`, those of pairs whose images have another size than the scored ones."""
        if uids and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "images have another size than when they were scored (first: uid %s): the scores "
                "are of what was there",
                uids[0],
            )


@dataclass(frozen=True)
class _Piece:
    """Samples `first` to `first + count` of those selected from a shard."""

    shard: ShardRef
    name: str
    first: int
    count: int


class RankSamples:
    """The training samples of all ranks: shards in random order, in equal pieces for the ranks.

    `samples` counts those of all ranks, `length` is each rank's piece. `counts` are the samples of
    each shard, counted here if not given; `failed_shards` are then those whose count ended with an
    error. Raises `InputError` if the selection names shards that are not given.
    """

    def __init__(
        self,
        shards: Sequence[ShardRef],
        selection: Selection | None,
        *,
        caption_key: CaptionKeys,
        captions: Captions,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int,
        world_size: int,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self._selection, self._caption_key = selection, caption_key
        self._captions = captions if selection is None else selection.captions
        self._shuffle, self._seed, self._rank = shuffle, seed, rank
        self.failed_shards: dict[str, str] = {}
        if selection is not None:
            counts = selection.counts()
        elif counts is None:
            counts, self.failed_shards = count_samples(shards, caption_key)
        self._refs = match_shards(list(counts), shards)
        self._sizes = {name: count for name, count in sorted(counts.items()) if count}
        self.samples = sum(self._sizes.values())
        self.length = self.samples // world_size if drop_last else -(-self.samples // world_size)

    def sequence(self, epoch: int, start: int) -> Iterator[RawSample | Unusable | None]:
        """Yield the samples of one rank in an epoch, from `start` on.

        The sequence ends with None if this rank has one sample less than others.
        """
        yielded = 0
        low = self._rank * self.length + start
        high = min((self._rank + 1) * self.length, self.samples)
        for piece in self._pieces(epoch, low, high):
            for sample in self._piece(piece, epoch):
                yielded += 1
                yield sample
        lacking = self.length - start - yielded
        yield from [None] * lacking

    def readable(self, epoch: int) -> Iterator[RawSample]:
        """Yield the readable samples of all ranks in an epoch."""
        for piece in self._pieces(epoch, 0, self.samples):
            yield from (raw for raw in self._piece(piece, epoch) if isinstance(raw, RawSample))

    def _pieces(self, epoch: int, low: int, high: int) -> Iterator[_Piece]:
        """Yield the pieces of shards that hold the samples `low` to `high` of an epoch."""
        names = list(self._sizes)
        if self._shuffle:
            names = [names[index] for index in self.rng(epoch, 0).permutation(len(names))]
        position = 0
        for name in names:
            size = self._sizes[name]
            first, last = max(low - position, 0), min(high - position, size)
            if first < last:
                yield _Piece(self._refs[name], name, first, last - first)
            position += size

    def _piece(self, piece: _Piece, epoch: int) -> Iterator[RawSample | Unusable]:
        chosen = self._selection.samples(piece.name) if self._selection is not None else None
        number = yielded = 0
        lacking = Unusable("missing")
        uncaptioned: list[Unusable] = []  # the headers of a tar count them as pairs
        samples = read_samples(piece.shard, self._caption_key, wanted=chosen)
        try:
            for sample in samples:
                if chosen is None and sample.status in OF_CAPTIONS:
                    uncaptioned.append(Unusable(sample.status.value))
                for selected in self._chosen(chosen, sample, piece.name, epoch):
                    number += 1
                    if number <= piece.first:
                        continue
                    if yielded == piece.count:
                        return
                    yielded += 1
                    raw = raw_sample(sample, selected)
                    yield Unusable(raw.value) if isinstance(raw, SkipReason) else raw
        except ShardError as error:
            lacking = Unusable("shard_error", piece.name, str(error))
        unfilled = piece.count - yielded
        yield from [*uncaptioned, *[lacking] * unfilled][:unfilled]

    def _chosen(
        self,
        chosen: Mapping[str, list[SelectedSample]] | None,
        sample: Sample,
        shard: str,
        epoch: int,
    ) -> Sequence[SelectedSample]:
        """Return the captions of a sample to show in an epoch: none, one, or several."""
        if chosen is not None:
            if sample.status is SkipReason.DUPLICATE_KEY:
                return ()
            selected = selected_of(chosen.get(sample.key, ()), sample, shard)
            if self._captions != "sample" or len(selected) < 2:
                return selected
            several = list({row.caption: row for row in selected}.values())
            times = sum(row.caption == selected[0].caption for row in selected)  # it was drawn
            names = [sample.key, *(f"{sample.key}/{time}" for time in range(1, times))]
            return [several[self._draw(epoch, shard, name, len(several))] for name in names]
        if sample.status is not SkipReason.OK:
            return ()
        usable = [caption.number for caption in sample.captions if caption.text is not None]
        number = usable[self._draw(epoch, shard, sample.key, len(usable))]
        uid = sample_uid(sample.metadata, shard, sample.key)
        return [SelectedSample(uid, 1.0, False, number)]

    def _draw(self, epoch: int, shard: str, key: str, count: int) -> int:
        """Draw a number below `count` from epoch and sample only: an epoch can resume anywhere."""
        if count < 2:
            return 0
        name = f"{self._seed}/{epoch}/{shard}/{key}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") % count

    def rng(self, *stream: int) -> np.random.Generator:
        """Return a random generator for one purpose of an epoch, such as the order of shards.

        All ranks have the same one for that order.
        """
        epoch, purpose, *rest = stream
        rank = 0 if purpose == 0 else self._rank
        return np.random.default_rng([self._seed, epoch, purpose, rank, *rest])


def selected_of(
    selected: Sequence[SelectedSample], sample: Sample, shard: str
) -> Sequence[SelectedSample]:
    """Return the selected pairs under a sample's key that belong to this sample."""
    if not selected:
        return ()
    uid = uid_among({one.uid for one in selected}, sample.metadata, shard, sample.key)
    return [one for one in selected if one.uid == uid]


def raw_sample(sample: Sample, selected: SelectedSample) -> RawSample | SkipReason:
    """Return the training sample of a pair, or why it cannot be used."""
    if sample.status is not SkipReason.OK or not sample.image:
        return sample.status
    usable = (caption for caption in sample.captions if caption.text is not None)
    if selected.caption is not None:
        usable = (caption for caption in usable if caption.number == selected.caption)
    caption = next(usable, None)
    if caption is None or caption.text is None:
        return SkipReason.CAPTION_MISSING
    truth = noise_of(sample.metadata, caption.number)
    text = caption.text if selected.text is None else selected.text
    sizes = {selected.image_size, sample.place.image_size} - {None}
    is_noisy = -1 if truth is None else int(truth)
    return RawSample(sample.image, text, selected, is_noisy, len(sizes) > 1)
