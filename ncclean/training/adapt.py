"""OSA's domain adaptation: a few steps of CLIP training on strictly clean pairs.

The estimator is frozen while it scores; before that it may adapt to the domain. Paper, section
"Domain adaptation": a Gaussian mixture with a strict threshold selects the pairs, and a warm-up of
a few steps follows. The authors find it unnecessary for CLIP on common domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from ncclean.base.progress import SILENT, Progress
from ncclean.data.options import Captions, LoaderOptions
from ncclean.data.samples import CaptionKeys
from ncclean.data.selection import SelectedSample
from ncclean.data.shards import ShardRef
from ncclean.data.weighted_loader import TrainBatch, WeightedLoader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest, write_model
from ncclean.storage.catalog import connect
from ncclean.storage.run_folder import finished, open_record, written_aside
from ncclean.storage.same_corpus import as_scored, captions_as_scored
from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.clip import Clip
from ncclean.training.options import AdaptOptions, TrainOptions
from ncclean.training.trainer import StepReport, Trainer


class Chosen(NamedTuple):
    """A chosen pair: number of its caption, None if there is only one, and bytes of its image."""

    key: str
    uid: str
    caption_number: int | None
    image_size: int | None = None


@dataclass(frozen=True)
class AdaptSummary:
    """The result of adapting a model: `pairs` of `scored` passed the threshold and were trained on.

    The losses are means over the first and the last tenth of the steps. `skipped` counts, by
    reason, the samples that could not be used, each time; `failed_shards` could not be read to
    their end.
    """

    pairs: int
    scored: int
    steps: int
    first_loss: float
    last_loss: float
    out: str
    skipped: dict[str, int] = field(default_factory=dict)
    failed_shards: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Adaptation:
    """The loss of each step of an adaptation, and the samples and shards that could not be used.

    See `Trainer`.
    """

    losses: list[float]
    skipped: dict[str, int]
    failed_shards: dict[str, str]


def adapt_model(
    model: ModelRequest,
    scores: Sequence[str],
    shards: list[ShardRef],
    out: str,
    options: AdaptOptions,
    *,
    threshold: float,
    run: dict[str, Any],
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> AdaptSummary:
    """Train on the pairs above a threshold and save the adapted model as a folder.

    An interrupted adaptation restarts: it takes minutes. Raises `InputError` if the table has no
    `clean_posterior`, too few pairs pass, or the folder holds something else, `ResumeError` if it
    holds another adaptation. `run` is the identity of the run.
    """
    folder = Path(out)
    if folder.exists():  # before minutes of training
        with open_record(folder, "adapt", run, overwrite=overwrite) as record:
            done = finished(record)
        if done is not None:
            progress.say(f"{out} holds this adaptation already")
            return AdaptSummary(**done["summary"])
    shards = as_scored(scores, shards, progress.say)
    keys, scored = _strictly_clean(scores, threshold)
    pairs = sum(map(len, keys.values()))
    if pairs < options.batch_size:
        raise InputError(
            f"{pairs:,} of {scored:,} pairs have a clean_posterior above {threshold:.15g}, "
            f"fewer than --batch-size {options.batch_size}: lower --threshold or --batch-size"
        )
    unknown = set(keys) - {shard.name for shard in shards}
    if unknown:
        raise InputError(f"shard {sorted(unknown)[0]} of the table is not among --shards: give all")
    progress.say(f"loading {model.model}")
    estimator = model.load()
    progress.say(f"adapting to {pairs:,} strictly clean pairs")
    adaptation = adapt(
        estimator,
        shards,
        keys,
        options,
        lambda step, loss: progress.advance(step, options.steps, "steps", loss=loss),
        captions_as_scored(scores),
    )
    losses = adaptation.losses
    tenth = max(1, len(losses) // 10)
    summary = AdaptSummary(
        pairs=pairs,
        scored=scored,
        steps=len(losses),
        first_loss=sum(losses[:tenth]) / tenth,
        last_loss=sum(losses[-tenth:]) / tenth,
        out=out,
        skipped=adaptation.skipped,
        failed_shards=adaptation.failed_shards,
    )
    with open_record(folder, "adapt", run, overwrite=True) as record:
        with written_aside(folder, record.made) as aside:
            write_model(estimator, aside)
        record.append("done", summary=asdict(summary))
    return summary


def _strictly_clean(scores: Sequence[str], threshold: float) -> tuple[dict[str, set[Chosen]], int]:
    """The pairs above the threshold by shard, and the number of scored pairs."""
    connection = connect(scores)
    columns = {row[0] for row in connection.execute("DESCRIBE SELECT * FROM scores").fetchall()}
    if "clean_posterior" not in columns:
        raise InputError("the table has no column clean_posterior: score again with this version")
    optional = (name if name in columns else "NULL" for name in ("caption_number", "image_size"))
    told = "status = 'ok' AND NOT isnan(clean_posterior)"  # for DuckDB, NaN is above any threshold
    counted = connection.execute(f"SELECT count(*) FROM scores WHERE {told}").fetchall()
    rows = connection.execute(
        f"SELECT shard, list((key, uid, {', '.join(optional)})) FROM scores WHERE {told} AND "
        "clean_posterior > ? GROUP BY shard",
        [threshold],
    ).fetchall()
    return {shard: set(starmap(Chosen, pairs)) for shard, pairs in rows}, counted[0][0]


@dataclass(frozen=True)
class ChosenKeys:
    """A selection in memory: the chosen pairs of each shard, all of the same weight."""

    keys: Mapping[str, Set[Chosen]]

    captions: Captions = "all"

    def counts(self) -> dict[str, int]:
        """Return the number of chosen samples by shard."""
        return {shard: len(keys) for shard, keys in self.keys.items()}

    def samples(self, shard: str) -> dict[str, list[SelectedSample]]:
        """Return the chosen samples of one shard, by key."""
        samples: dict[str, list[SelectedSample]] = {}
        for key, uid, number, size in sorted(self.keys.get(shard, ())):
            chosen = SelectedSample(uid, 1.0, False, number, image_size=size)
            samples.setdefault(key, []).append(chosen)
        return samples


def adapt(
    estimator: Estimator,
    shards: list[ShardRef],
    chosen: Mapping[str, Set[Chosen]],
    options: AdaptOptions,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    caption_key: CaptionKeys = None,
) -> Adaptation:
    """Train the model on the chosen pairs of each shard.

    Changes `estimator.model` in place; to score with it, build a new estimator. Images are seen as
    the estimator sees them, without augmentation. Raises `InputError` if fewer pairs than a batch
    are readable, `TrainingError` if the loss or a gradient is not finite.
    """
    settings = LoaderOptions(
        batch_size=options.batch_size,
        seed=options.seed,
        augment=False,
        decode_threads=options.decode_threads,
        caption_key=caption_key,
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

    trainer.run(on_step=record)
    batches.check()
    return Adaptation(losses, trainer.skipped, trainer.failed_shards)


class _EnoughPairs:
    """The batches of a loader, as long as the readable pairs fill one.

    The loader replaces unreadable pairs by repeating others. If fewer pairs than a batch are
    readable, every batch would hold copies of a pair as each other's negatives. `whole` shows every
    pair once; it is read only in doubtful cases.
    """

    def __init__(self, loader: WeightedLoader, whole: WeightedLoader) -> None:
        self._loader, self._whole = loader, whole
        self.steps_per_epoch = loader.steps_per_epoch
        self._seen: set[tuple[str, str]] = set()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        """Yield the batches of the loader.

        Raises `InputError` after an epoch with too few pairs.
        """
        for batch in self._loader.epoch(epoch, first_step):
            self._seen.update(zip(batch.uids, batch.captions, strict=True))
            yield batch
        self.check()

    def check(self) -> None:
        """Raise `InputError` if fewer pairs than a batch are readable."""
        size = self._loader.options.batch_size
        if len(self._seen) < size:
            for batch in self._whole.epoch(0):
                self._seen.update(zip(batch.uids, batch.captions, strict=True))
        if len(self._seen) < size:
            raise InputError(
                f"only {len(self._seen)} of the chosen pairs could be read, fewer than "
                f"--batch-size {size}"
            )
