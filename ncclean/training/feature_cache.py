"""Training on the outputs of frozen towers: each pair is encoded once, then held in memory.

In float16, a pair takes 4 d bytes: three million pairs of a 512-dimensional model take 6 GB.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ncclean.data.train_batch import TrainBatch, joined, with_batch_noise
from ncclean.data.weighted_loader import ALL_ROWS, LoaderCounts, WeightedLoader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text


class CachedFeatures:
    """Replaces a loader: its pairs as batches of features.

    Pairs are shuffled among those of the loader, which should neither augment nor shuffle nor drop
    the last batch, nor bring noise: `batch_noise` is drawn here, anew in each epoch. `rows` are
    those that are made of each batch.
    """

    def __init__(
        self,
        estimator: Estimator,
        loader: WeightedLoader,
        batch_size: int,
        seed: int = 0,
        batch_noise: float = 0.0,
        rows: slice = ALL_ROWS,
    ) -> None:
        self.counts: LoaderCounts = loader.counts
        # Pairs repeated in place of broken ones stay, so that ranks keep in step.
        self._all = joined(list(_encoded(estimator, loader)))
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
    """Encode (B, 3, H, W) uint8 images and B captions -> (B, d) float32, not normalised."""
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
    )
