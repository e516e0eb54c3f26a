"""Hold a batch of training pairs, and draw noise for a single batch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ncclean.data.noise import plan_noise
from ncclean.data.rank_samples import Unusable

_STREAM = 2  # of random numbers: a batch's seed is used elsewhere, and for a corpus of its size


@dataclass
class TrainBatch:
    """A rank's share of the batch of one training step: B samples.

    `pixels` (B, 3, H, W) uint8, `captions` and `uids` of length B, `weights` (B,) float32,
    `is_forget` (B,) bool. `is_noisy` (B,) int8 is the ground truth: 1, 0 or -1 where the json has
    none. `features` are (B, d) image and text embeddings instead of the pixels, see
    `ncclean.training.batches`. `tokens` are (B, L) ids of the captions, if the loader tokenizes.
    `pair_names` identify pairs if images have several captions; otherwise the uids do. `unusable`
    are the rows whose own sample could not be used, with the reason. `of_other_images` are the uids
    of pairs whose images have another size than when they were scored.
    """

    pixels: torch.Tensor
    captions: list[str]
    uids: list[str]
    weights: torch.Tensor
    is_forget: torch.Tensor
    is_noisy: torch.Tensor | None = None
    features: tuple[torch.Tensor, torch.Tensor] | None = None
    pair_names: list[str] | None = None
    tokens: torch.Tensor | None = None
    unusable: dict[int, Unusable] = field(default_factory=dict)
    of_other_images: list[str] = field(default_factory=list)


def joined(batches: Sequence[TrainBatch]) -> TrainBatch:
    """Join several training batches, in order; truth and features stay if all batches have them.

    The result has no tokens: batches may be padded to different lengths.
    """
    if len(batches) == 1:
        return batches[0]
    truth = [batch.is_noisy for batch in batches if batch.is_noisy is not None]
    starts = itertools.accumulate((len(batch.uids) for batch in batches), initial=0)
    features = [batch.features for batch in batches if batch.features is not None]
    names = [batch.pair_names for batch in batches if batch.pair_names is not None]
    return TrainBatch(
        pixels=torch.cat([batch.pixels for batch in batches]),
        captions=[caption for batch in batches for caption in batch.captions],
        uids=[uid for batch in batches for uid in batch.uids],
        weights=torch.cat([batch.weights for batch in batches]),
        is_forget=torch.cat([batch.is_forget for batch in batches]),
        is_noisy=torch.cat(truth) if len(truth) == len(batches) else None,
        features=(torch.cat([f[0] for f in features]), torch.cat([f[1] for f in features]))
        if len(features) == len(batches)
        else None,
        pair_names=[name for several in names for name in several]
        if len(names) == len(batches)
        else None,
        unusable={
            start + row: reason
            for start, batch in zip(starts, batches, strict=False)
            for row, reason in batch.unusable.items()
        },
    )


def with_batch_noise(batch: TrainBatch, share: float, seed: int) -> TrainBatch:
    """Return a batch with the captions of floor(share B) of its B pairs permuted among these.

    This is the noise of "Bayesian contrastive learning", drawn for each batch, so a pair is
    mismatched in one epoch and matched in the next. `is_noisy` says which. With an equal text, a
    pair keeps its truth; with another caption of its own image, it has that caption's.
    """
    plan = plan_noise(len(batch.captions), {"ncr": share}, seed, stream=_STREAM)
    if not plan.is_noisy.any():
        return batch
    rows, captions, uids = torch.from_numpy(plan.caption_source), batch.captions, batch.uids
    truth = batch.is_noisy
    if truth is None:
        truth = torch.full(rows.shape, -1, dtype=torch.int8)
    origins = list(enumerate(rows.tolist()))
    same_text = torch.tensor([captions[row] == captions[origin] for row, origin in origins])
    same_image = torch.tensor([uids[row] == uids[origin] for row, origin in origins])
    mismatched = torch.where(same_image, truth[rows], 1)
    return dataclasses.replace(
        batch,
        captions=[captions[row] for row in rows],
        tokens=None if batch.tokens is None else batch.tokens[rows],
        is_noisy=torch.where(same_text, truth, mismatched),
        features=batch.features and (batch.features[0], batch.features[1][rows]),
    )
