"""OSA's domain adaptation: a few steps of CLIP training on pairs that are clean beyond doubt.

The estimator is frozen while it scores; before that it may get to know the domain. Paper, section
"Domain adaptation": a Gaussian mixture with a strict threshold picks the pairs, a warm-up of a
few steps follows. The authors find it unnecessary for CLIP on common domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from ncclean.data.options import Captions, LoaderOptions
from ncclean.data.selection import SelectedSample
from ncclean.data.shards import ShardRef
from ncclean.data.weighted_loader import TrainBatch, WeightedLoader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.registry import Clip
from ncclean.training.options import AdaptOptions, TrainOptions
from ncclean.training.trainer import StepReport, Trainer


@dataclass(frozen=True)
class ChosenKeys:
    """A selection in memory: keys by shard, all of the same weight."""

    keys: Mapping[str, Set[str]]

    captions: Captions = "all"

    def counts(self) -> dict[str, int]:
        """Number of chosen samples by shard."""
        return {shard: len(keys) for shard, keys in self.keys.items()}

    def samples(self, shard: str) -> dict[str, list[SelectedSample]]:
        """The chosen samples of one shard by key."""
        keys = self.keys.get(shard, frozenset())
        return {key: [SelectedSample(f"{shard}/{key}", 1.0, False)] for key in keys}


def adapt(
    estimator: Estimator,
    shards: list[ShardRef],
    chosen: Mapping[str, Set[str]],
    options: AdaptOptions,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    failed: dict[str, str] | None = None,
) -> list[float]:
    """Train the estimator's model on the chosen keys of each shard; returns the loss of each step.

    `estimator.model` is changed in place; to score with it, build an estimator anew. Images are
    seen as the estimator sees them, without augmentation. `failed` receives the shards that break
    off, with the reason. Raises `InputError` if the pairs that can be read are fewer than a batch,
    `TrainingError` if the loss or a gradient is not finite.
    """
    settings = LoaderOptions(
        batch_size=options.batch_size,
        seed=options.seed,
        augment=False,
        decode_threads=options.decode_threads,
    )
    tokenize = estimator.portable_batch_tokens
    loader, whole = (
        WeightedLoader(
            shards, ChosenKeys(chosen), estimator.preprocessing, variant, tokenize=tokenize
        )
        for variant in (settings, replace(settings, shuffle=False, drop_last=False))
    )
    rates = dict.fromkeys(("image", "text", "scale"), options.learning_rate)
    phase = Phase(
        name="adapt",
        epochs=-(-options.steps // loader.steps_per_epoch),
        steps=options.steps,
        learning_rates=rates,
        warmup=options.warmup,
    )
    batches = _EnoughPairs(loader, whole)
    trainer = Trainer(estimator, Clip((phase,)), batches, TrainOptions(seed=options.seed), None)
    losses: list[float] = []

    def record(report: StepReport) -> None:
        losses.append(report.loss)
        on_step(report.step, report.loss)

    try:
        trainer.run(on_step=record)
        batches.check()
    finally:
        if failed is not None:
            failed.update(loader.counts.failed_shards)
    return losses


class _EnoughPairs:
    """The batches of a loader, as long as the pairs that can be read fill one.

    The loader shows other pairs twice in place of unreadable ones. Where fewer pairs than a batch
    can be read, every batch would hold copies of a pair as each other's negatives. `whole` shows
    every pair once; it is read only where that is in doubt.
    """

    def __init__(self, loader: WeightedLoader, whole: WeightedLoader) -> None:
        self._loader, self._whole = loader, whole
        self.counts, self.steps_per_epoch = loader.counts, loader.steps_per_epoch
        self._uids: set[str] = set()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """The batches of the loader. Raises `InputError` after an epoch with too few pairs."""
        for batch in self._loader.epoch(epoch, first_step):
            self._uids.update(batch.uids)
            yield batch
        self.check()

    def check(self) -> None:
        """Raise `InputError` if fewer pairs than a batch can be read."""
        size = self._loader.options.batch_size
        if len(self._uids) < size:
            for batch in self._whole.epoch(0):
                self._uids.update(batch.uids)
        if len(self._uids) < size:
            raise InputError(
                f"only {len(self._uids)} of the chosen pairs could be read, fewer than "
                f"--batch-size {size}"
            )
