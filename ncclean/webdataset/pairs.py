"""The pairs of a selection as a PyTorch IterableDataset, from any layout that ncclean reads."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from ncclean.base.formats import by_name
from ncclean.data.options import SourceOptions
from ncclean.data.rank_samples import ImageCheck, RankSamples, RawSample, Unusable
from ncclean.data.samples import CaptionKeys
from ncclean.data.sources import resolve_sources
from ncclean.errors import InputError
from ncclean.storage.same_corpus import as_scored, captions_as_scored
from ncclean.webdataset.stage import open_selection

logger = logging.getLogger(__name__)


class SelectedPairs(IterableDataset[dict[str, Any]]):
    """Iterates over selected pairs of tars, folders, tables or Parquet, in webdataset's form.

    Each is a dict of `__key__` (the uid of the pair), `jpg` (the bytes of the image file, whatever
    format it has), `txt` (the caption in UTF-8) and `weight` (a float): `wds.DataPipeline` takes
    this as its first stage. Without `selection`, all usable samples have the weight 1, and
    one of several captions is drawn in each epoch.

    The shards in random order form one sequence, of which each of `world_size` ranks has an equal
    piece, the same as in `finetune` with this `seed`; order within a shard is kept, so shuffle the
    output. `rank` and `world_size` default to those of `torch.distributed`. The workers of a
    DataLoader share the piece of their rank. An unreadable pair is replaced by showing another one
    twice, so that ranks stay equally long, and the log says so. Iterating raises `InputError` if no
    pair can be read.

    `source` are options of the sources: `image_root`, `image_key`, `split`, `class_template`.
    `caption_key` and `image_key` are those with which a selection was scored. Raises `InputError`
    for missing sources, a selection of other shards, captions or images, and `captions="best"`
    without one.
    """

    def __init__(
        self,
        sources: str | list[str],
        selection: str | None = None,
        *,
        captions: Literal["all", "best"] = "all",
        caption_key: CaptionKeys = None,
        shuffle: bool = True,
        drop_last: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        **source: Any,
    ) -> None:
        is_spread = distributed.is_available() and distributed.is_initialized()
        here, everywhere = (
            (distributed.get_rank(), distributed.get_world_size()) if is_spread else (0, 1)
        )
        if captions == "best" and selection is None:
            raise InputError("the best captions need a selection, which says which are best")
        named = [sources] if isinstance(sources, str) else sources
        shards = resolve_sources(named, options=SourceOptions(**source))
        if selection is not None:
            shards = as_scored([selection], shards)
            caption_key = captions_as_scored([selection], caption_key)
        self._source = RankSamples(
            shards,
            None if selection is None else open_selection(selection, captions),
            caption_key=caption_key,
            captions=captions,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            rank=rank if rank is not None else here,
            world_size=world_size or everywhere,
        )
        self._check_images = ImageCheck()
        # Epoch, batches and batch size; shared, since persistent workers keep their copy of this.
        self._next = torch.tensor([0, 0, 1]).share_memory_()

    def __len__(self) -> int:
        """Pairs of this rank in an epoch, of all workers together."""
        return self._source.length

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int = 1) -> None:
        """Choose the next epoch to iterate over, skipping `batches` of it already seen.

        `batch_size` is that of the DataLoader: its workers take turns with whole batches.
        """
        self._next.copy_(torch.tensor([epoch, batches, batch_size]))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._pairs(*self._next.tolist())

    def _pairs(self, epoch: int, batches: int, batch_size: int) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        place, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        number = (place + batches) % workers  # a DataLoader asks its first worker first
        # No worker has more batches than one before it, so that they end in the order of turns.
        first, last = (
            n * (len(self) // workers) + min(n, len(self) % workers) for n in (number, number + 1)
        )
        seen = -(-(batches - number) // workers) * batch_size
        unusable: list[Unusable] = []
        pairs = self._source.sequence(epoch, min(first + seen, last))
        mine = itertools.islice(pairs, max(last - first - seen, 0))
        for pair in _without_gaps(mine, self._others(epoch), unusable.append):
            self._check_images([pair.chosen.uid] if pair.is_of_other_image else [])
            yield _fields(pair)
        failed = {gap.shard: gap.error for gap in unusable if gap.shard}
        for name, error in (self._source.failed_shards | failed).items():
            logger.warning("%s could not be read to its end: %s", name, error)
        if unusable:
            counts = Counter(gap.reason for gap in unusable)
            logger.warning("pairs that others stood in for: %s", by_name(counts))

    def _others(self, epoch: int) -> Iterator[RawSample]:
        """Yield readable pairs of all ranks, again and again, for a worker that has none."""
        while True:
            readable = self._source.readable(epoch)
            pair = next(readable, None)
            if pair is None:
                raise InputError("none of the selected pairs can be read")
            yield pair
            yield from readable


def _without_gaps(
    pairs: Iterator[RawSample | Unusable | None],
    others: Iterator[RawSample],
    on_unusable: Callable[[Unusable], None],
) -> Iterator[RawSample]:
    """Yield the pairs, replacing each missing one by the next, the previous, or `others`."""
    gaps = 0
    filler: RawSample | None = None
    for pair in pairs:
        if not isinstance(pair, RawSample):
            gaps += 1
            if pair is not None:
                on_unusable(pair)
            continue
        yield from itertools.repeat(pair, 1 + gaps)
        gaps, filler = 0, pair
    yield from itertools.islice(others if filler is None else itertools.repeat(filler), gaps)


def _fields(pair: RawSample) -> dict[str, Any]:
    return {
        "__key__": pair.chosen.pair_name,
        "jpg": pair.image,
        "txt": pair.caption.encode(),
        "weight": float(pair.chosen.weight),
    }
