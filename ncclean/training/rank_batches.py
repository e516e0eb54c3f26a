"""A rank's share of each step, where the samples were divided among another number of ranks.

The order of an epoch is that of the run's first start: each of its ranks had a piece of the
samples, and a step takes as many from every piece. A run that goes on with more or fewer processes
keeps these pieces, and a rank takes its rows of each step from the one or several that hold them.
So a step has the same samples whatever the number of processes, and an epoch each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclean.data.rank_samples import LoaderCounts
from ncclean.data.train_batch import TrainBatch, joined
from ncclean.training.process_group import Ranks
from ncclean.training.trainer import BatchSource

MakeBatches = Callable[[int, slice], BatchSource]  # of a piece, and which rows of its batches


class RankBatches:
    """The batches of a rank from the pieces that hold its rows.

    `batch_size` is that of all ranks together, a multiple of their number and of that of `pieces`.
    """

    def __init__(self, make: MakeBatches, batch_size: int, pieces: int, ranks: Ranks) -> None:
        of_piece, of_rank = batch_size // pieces, batch_size // ranks.size
        first, last = ranks.rank * of_rank, (ranks.rank + 1) * of_rank
        self._pieces = [
            make(piece, slice(max(first - begin, 0), min(last - begin, of_piece)))
            for piece in range(pieces)
            if first - of_piece < (begin := piece * of_piece) < last
        ]
        self.steps_per_epoch = self._pieces[0].steps_per_epoch

    @property
    def counts(self) -> LoaderCounts:
        """Counts of the unusable samples of all pieces."""
        total = LoaderCounts()
        for piece in self._pieces:
            total.skipped.update(piece.counts.skipped)
            total.failed_shards |= piece.counts.failed_shards
        return total

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the training batches of an epoch, from `first_step` on."""
        for batches in zip(*(one.epoch(epoch, first_step) for one in self._pieces), strict=True):
            yield joined(batches)
