"""The pairs that a run trains on: its selection, a rank's batches, features of frozen towers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch

from ncclean.data.options import Captions
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.train_batch import TrainBatch, joined, with_batch_noise
from ncclean.data.weighted_loader import ALL_ROWS, WeightedLoader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text
from ncclean.storage.tables import local_tables
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.process_group import Ranks


def open_selection(
    path: str | None, method: str, options: ObjectiveOptions, captions: Captions = "all"
) -> SelectionReader | None:
    """Open the selection to train on; None without a path.

    Raises `InputError` if the file is not a selection, or if the method would silently train as
    another one: OSA without weights, a split of the table without a marked pair, the best of
    captions that were not compared.
    """
    selection = SelectionReader(path, captions, local_tables([path])) if path is not None else None
    if captions == "best" and selection is None:
        raise InputError("--captions best needs a --selection, which says which is best")
    takes_weights = method == "osa" and options.ncu.variant == "published"
    is_siglip = method == "siglip" and options.siglip_weights == "selection"
    reads_weights = takes_weights or is_siglip
    is_weighted = reads_weights and selection is not None and selection.has_weights()
    if takes_weights and not is_weighted:
        reason = (
            "there is no --selection" if selection is None else "those of --selection are all 1"
        )
        raise InputError(
            f"--method osa needs weights, and {reason}: make one with `ncclean select SCORES "
            "--weights osa_weight`, or take them from a frozen copy of the start with --variant "
            "released"
        )
    reads_split = method in ("ncu", "gradient_ascent") and options.ncu.split == "table"
    if reads_split and not (selection and selection.has_forget_set()):
        reason = "there is no --selection" if selection is None else "--selection marks no pair"
        raise InputError(
            f"--forget-by table needs to know which pairs to forget, and {reason}: make one with "
            "`ncclean select SCORES --method ncu --with-forget`"
        )
    return selection


class BatchSource(Protocol):
    """A source of a rank's training batches: a loader, or precomputed features."""

    steps_per_epoch: int

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the training batches of an epoch, the same each time, from `first_step` on."""
        ...


class Piece(BatchSource, Protocol):
    """A source of batches of a part of the pairs; the last batch lacks `lacking` samples."""

    lacking: int


MakeBatches = Callable[[int, slice], Piece]  # of a number, and which rows of its batches


class RankBatches:
    """The training batches of a rank, joined from the pieces of the data that hold its rows.

    `batch_size` is that of all ranks together, a multiple of the numbers of ranks and of `pieces`.
    """

    def __init__(self, make: MakeBatches, batch_size: int, pieces: int, ranks: Ranks) -> None:
        of_piece, of_rank = batch_size // pieces, batch_size // ranks.size
        first, last = ranks.rank * of_rank, (ranks.rank + 1) * of_rank
        self._pieces = [
            make(piece, slice(max(first - start, 0), min(last - start, of_piece)))
            for piece in range(pieces)
            if first - of_piece < (start := piece * of_piece) < last
        ]
        self.steps_per_epoch = self._pieces[0].steps_per_epoch
        self.lacking = pieces * self._pieces[0].lacking

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the training batches of an epoch, from `first_step` on."""
        for batches in zip(
            *(source.epoch(epoch, first_step) for source in self._pieces), strict=True
        ):
            yield joined(batches)


class CachedFeatures:
    """Training batches of features that frozen towers computed once, in place of a loader's images.

    Shuffles the pairs of the loader, which should not augment, shuffle, drop the last batch, or add
    noise: `batch_noise` is drawn here, anew in each epoch. `rows` are this rank's rows of each
    batch.
    """

    lacking = 0

    def __init__(
        self,
        estimator: Estimator,
        loader: WeightedLoader,
        batch_size: int,
        seed: int = 0,
        batch_noise: float = 0.0,
        rows: slice = ALL_ROWS,
    ) -> None:
        # Pairs repeated instead of broken ones are kept, so that ranks stay in step.
        self._all = joined(list(_encoded(estimator, loader)))
        # Without a number, a name is that of the first caption.
        self.has_several_captions = (self._all.pair_names or self._all.uids) != self._all.uids
        self._mine = rows
        self._batch_size, self._seed, self._batch_noise = batch_size, seed, batch_noise
        self.samples = len(self._all.uids)
        self.steps_per_epoch = self.samples // batch_size
        if not self.steps_per_epoch:
            raise InputError(
                f"{self.samples:,} samples are too few for --batch-size {batch_size}: lower it"
            )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the batches of features of an epoch, from `first_step` on."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(self.samples)
        seeds = rng.integers(1 << 62, size=self.steps_per_epoch).tolist()
        for step in range(first_step, self.steps_per_epoch):
            rows = order[step * self._batch_size : (step + 1) * self._batch_size][self._mine]
            yield with_batch_noise(_rows(self._all, rows), self._batch_noise, seeds[step])


@torch.no_grad()
def encode_features(
    estimator: Estimator, pixels: torch.Tensor, captions: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode (B, 3, H, W) uint8 images and B captions to (B, d) float32, not normalised."""
    tokens = estimator.batch_tokens(captions)
    with estimator.autocast():
        image = estimator.model.encode_image(estimator.normalized(pixels))  # type: ignore[operator]
        text = encode_text(estimator.model, tokens.to(estimator.device), normalize=False)
    return image.float(), text.float()


def _encoded(estimator: Estimator, loader: WeightedLoader) -> Iterator[TrainBatch]:
    for batch in loader.epoch(0):
        image, text = encode_features(estimator, batch.pixels, batch.captions)
        batch.features = image.half().cpu(), text.half().cpu()
        batch.pixels = torch.empty(0)
        yield batch


def _rows(whole: TrainBatch, rows: np.ndarray) -> TrainBatch:
    index = torch.from_numpy(rows)
    assert whole.features is not None
    image, text = whole.features
    return TrainBatch(
        pixels=whole.pixels,
        captions=[whole.captions[row] for row in rows],
        uids=[whole.uids[row] for row in rows],
        weights=whole.weights[index],
        is_forget=whole.is_forget[index],
        is_noisy=None if whole.is_noisy is None else whole.is_noisy[index],
        features=(image[index].float(), text[index].float()),
        unusable={
            place: whole.unusable[row] for place, row in enumerate(rows) if row in whole.unusable
        },
    )
