"""A batch of training pairs, and noise that is drawn for it alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from ncclean.data.noise import noise_count

_PURPOSE = 1  # of the random numbers, among others that a batch's seed serves


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


def with_batch_noise(batch: TrainBatch, share: float, seed: int) -> TrainBatch:
    """The batch with the captions of floor(share B) pairs permuted among themselves.

    The noise of "Bayesian contrastive learning": drawn for each batch, so that a pair is mismatched
    in one epoch and matched in the next. `is_noisy` says which; a pair that the permutation leaves
    in place is as clean as it was.
    """
    pairs = len(batch.captions)
    count = noise_count(share, pairs)
    if not count:
        return batch
    rng = np.random.default_rng([seed, _PURPOSE])
    chosen = np.sort(rng.permutation(pairs)[:count])
    source = np.arange(pairs)
    source[chosen] = rng.permutation(chosen)
    rows = torch.from_numpy(source)
    truth = batch.is_noisy
    if truth is None:
        truth = torch.full((pairs,), -1, dtype=torch.int8)
    moved = rows != torch.arange(pairs)
    return dataclasses.replace(
        batch,
        captions=[batch.captions[row] for row in source],
        is_noisy=torch.where(moved, torch.ones_like(truth), truth),
        features=batch.features and (batch.features[0], batch.features[1][rows]),
    )
