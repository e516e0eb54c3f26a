"""Fine-tune: claim the run folder, run a trainer on every rank, write the model."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from upath import UPath

import ncclean
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.config import ClusterOptions
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.progress import SILENT, Progress
from ncclean.base.stores import absolute
from ncclean.data.counting import SampleCounts, count_samples
from ncclean.data.options import LoaderOptions, SourceOptions
from ncclean.data.samples import CaptionKeys
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import WEBDATASET, ShardRef, expand, places
from ncclean.data.sources import resolve_pairs
from ncclean.data.weighted_loader import ALL_ROWS, WeightedLoader
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest, write_model
from ncclean.storage.run_folder import open_record, written_aside
from ncclean.storage.run_record import RUN, RunRecord
from ncclean.storage.same_corpus import as_scored, captions_as_scored
from ncclean.training.batches import CachedFeatures, Piece, RankBatches, open_selection
from ncclean.training.objectives.base import Objective
from ncclean.training.objectives.options import Method, ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.process_group import (
    Ranks,
    check_same_start,
    gathered,
    joined_ranks,
    rank_device,
    said_by_first,
    wait_for_all,
)
from ncclean.training.run_files import RunFiles, read_results
from ncclean.training.trainer import StepReport, Trainer

logger = logging.getLogger(__name__)

_COMMAND = "finetune"
_PIECES, _COUNTS = "pieces", "counts"
PARAMS = "params.yaml"
RAY_FOLDER = "ray_train"  # Ray Train's notes on a run
OnStep = Callable[[StepReport], None]


@dataclass(frozen=True)
class FinetuneSummary:
    """The result of training: steps, losses, and what could not be used.

    Losses are the first and the last logged one of the last phase: other phases sum other terms.
    `skipped` counts, by reason, the samples that could not be used, for all processes since the
    start of the run; `failed_shards` are those that could not be read to their end, and why.
    """

    method: str
    samples: int
    steps: int
    first_loss: float | None
    last_loss: float | None
    skipped: dict[str, int]
    out: str
    failed_shards: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """A training run: a model, its pairs and objective, and its folder.

    `sources` hold the pairs, `selection` is the file that selects among them; `identity` is the
    run's, recorded in its folder. With `is_frozen` only the heads of DisNCL are trained, on
    features computed once.
    """

    method: Method
    model: ModelRequest
    sources: Sequence[str]
    out: str
    identity: dict[str, Any]
    source_options: SourceOptions = field(default_factory=SourceOptions)
    selection: str | None = None
    batch_size: int = 256
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    training: TrainOptions = field(default_factory=TrainOptions)
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    is_frozen: bool = False
    overwrite: bool = False
    seed: int = 0

    def run(
        self, progress: Progress = SILENT, cluster: ClusterOptions | None = None
    ) -> FinetuneSummary:
        """Train, or resume from the newest checkpoint, and write the model into the run folder.

        Under torchrun every process calls this; the first one writes. On a Ray cluster the ranks
        are Ray's, and all nodes must share the file system of `out`. Raises `InputError` or
        `ResumeError` before training, `TrainingError` if a loss is not finite.
        """
        progress.say(f"training {self.model.model} with {self.method}")
        if self.method == "osa" and self.objective.ncu.variant == "released":
            progress.say("the weights of each batch come from a frozen copy of the start")

        def on_step(report: StepReport) -> None:
            speed = f"{report.samples_per_second:,.0f} samples/s"
            progress.advance(report.step, report.steps, "steps", **report.terms, speed=speed)

        if cluster is None:
            return self.train_as_rank(on_step, progress)
        return self._on_cluster(cluster, on_step, progress)

    def train_as_rank(self, on_step: OnStep, progress: Progress = SILENT) -> FinetuneSummary:
        """Train as one rank of the run, in its own process."""
        shards, selection, captions = self._inputs(progress)
        estimator = dataclasses.replace(self.model, device=rank_device(self.model.device)).load()
        objective = make_objective(self.method, self.objective, estimator.tokenize)
        training = dataclasses.replace(self.training, seed=self.seed)
        with joined_ranks(estimator.device) as ranks, contextlib.ExitStack() as stack:
            if self.batch_size % ranks.size:
                raise InputError(
                    f"--batch-size must be a multiple of the number of processes, {ranks.size}"
                )
            check_same_start(estimator.model, ranks)
            record = stack.enter_context(self._record()) if ranks.is_first else None
            pieces = said_by_first(ranks, pieces_of(record, ranks) if record is not None else 0)
            counted = counts_of(record, ranks, shards, captions) if selection is None else None
            files = stack.enter_context(RunFiles.open(self.out))  # the first rank has cleared them
            on_file = partial(_list_files, record, files) if record is not None else None
            if record is not None and on_file is not None:
                _write_params(record.identity, files, on_file)
            loader = RankBatches(
                partial(self._piece, shards, selection, captions, counted, estimator, pieces),
                self.batch_size,
                pieces,
                ranks,
            )
            trainer = Trainer(
                estimator, objective, loader, training, files.local, ranks, on_file, files.push
            )
            wait_for_all(ranks)
            position = trainer.run(resume=True, on_step=on_step)
            if on_file is not None:
                self._write_model(trainer, estimator, objective, files, on_file)
            results = read_results(files.local) if ranks.is_first else []
            losses = [line["loss"] for line in results if line["phase"] == results[-1]["phase"]]
            failed = dict(counted.failed) if counted is not None else {}
            for of_rank in gathered(ranks, trainer.failed_shards):
                failed |= of_rank
        steps_per_epoch = loader.steps_per_epoch
        epochs = sum(phase.length(steps_per_epoch) // steps_per_epoch for phase in trainer.phases)
        return FinetuneSummary(
            method=self.method,
            samples=position.total_steps * self.batch_size - epochs * loader.lacking,
            steps=position.total_steps,
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            skipped=trainer.skipped,
            out=self.out,
            failed_shards=failed,
        )

    def _on_cluster(
        self, cluster: ClusterOptions, on_step: OnStep, progress: Progress
    ) -> FinetuneSummary:
        from ncclean.training.ray_train import train_on_cluster  # importing Ray takes a second

        shards, *_ = self._inputs(progress)  # before requesting anything from a cluster
        with self._record():
            pass
        result: FinetuneSummary = train_on_cluster(
            _train_on_node,
            self._seen_from_nodes(shards),
            cluster=cluster,
            device=self.model.device,
            folder=str(stores.location(absolute(self.out)) / RAY_FOLDER),
            on_report=on_step,
        )
        return dataclasses.replace(result, out=self.out)

    def _record(self) -> RunRecord:
        return open_record(self.out, _COMMAND, self.identity, overwrite=self.overwrite)

    def _inputs(
        self, progress: Progress = SILENT
    ) -> tuple[list[ShardRef], SelectionReader | None, CaptionKeys]:
        """Return the shards, the selection, and its caption keys.

        Raises `InputError` if the selection is about others, or lacks what the method reads.
        """
        shards, captions = resolve_pairs(self.sources, self.source_options), self.loader.caption_key
        selection = open_selection(
            self.selection, self.method, self.objective, self.loader.captions
        )
        if selection is not None:
            shards = as_scored([selection.path], shards, progress.say)
            captions = captions_as_scored([selection.path], captions)
        return shards, selection, captions

    def _seen_from_nodes(self, shards: list[ShardRef]) -> Finetuning:
        """Return the run with absolute paths: Ray Train's ranks have another working folder."""
        root = self.source_options.image_root and absolute(self.source_options.image_root)
        return dataclasses.replace(
            self,
            sources=_absolute_sources(self.sources, shards),
            source_options=dataclasses.replace(self.source_options, image_root=root),
            out=absolute(self.out),
            selection=self.selection and absolute(self.selection),
            model=self.model.absolute(),
            overwrite=False,  # the folder is claimed
        )

    def _piece(
        self,
        shards: list[ShardRef],
        selection: SelectionReader | None,
        captions: CaptionKeys,
        counted: SampleCounts | None,
        estimator: Estimator,
        pieces: int,
        piece: int,
        rows: slice,
    ) -> Piece:
        """Rows of the batches of a piece: images and captions, or what frozen towers make of it."""
        options = dataclasses.replace(
            self.loader, batch_size=self.batch_size // pieces, seed=self.seed, caption_key=captions
        )
        if self.is_frozen:
            options = dataclasses.replace(
                options, augment=False, shuffle=False, drop_last=False, batch_noise=0.0
            )
        loader = WeightedLoader(
            shards,
            selection,
            estimator.preprocessing,
            options,
            rank=piece,
            world_size=pieces,
            rows=ALL_ROWS if self.is_frozen else rows,
            counts=counted and counted.samples,
            tokenize=None if self.is_frozen else estimator.portable_batch_tokens,
        )
        if not self.is_frozen:
            return loader
        noise = self.loader.batch_noise
        features = CachedFeatures(estimator, loader, options.batch_size, options.seed, noise, rows)
        if selection is None and features.has_several_captions:
            logger.warning(
                "features are computed once, of one caption of each image, drawn at random: to "
                "train on all captions, give a --selection"
            )
        return features

    def _write_model(
        self,
        trainer: Trainer,
        estimator: Estimator,
        objective: Objective,
        files: RunFiles,
        on_file: Callable[..., None],
    ) -> None:
        trained = trainer.averaged.module if trainer.averaged is not None else estimator.model
        with written_aside(files.local, on_file) as aside:
            write_model(estimator, aside, trained)
            objective.save(aside)
        files.push()


def _write_params(
    identity: Mapping[str, Any], files: RunFiles, on_file: Callable[..., None]
) -> None:
    """`params.yaml`: the options that the method reads, readable without this code."""
    params = {**identity["options"], "versions": {"ncclean": ncclean.__version__}}
    on_file(files.local / PARAMS)
    with published(UPath(files.local / PARAMS)) as aside:
        aside.write_text(yaml.safe_dump(params, sort_keys=False))


def _list_files(record: RunRecord, files: RunFiles, *paths: Path) -> None:
    """List files as made by the run, at their final places."""
    record.made(*files.recorded(*paths))


def pieces_of(record: RunRecord, ranks: Ranks) -> int:
    """Return the number of pieces into which the samples were cut when the run began.

    It decides their order, so it stays if the run resumes with other ranks.
    """
    for entry in record.entries:
        if entry["kind"] == _PIECES:
            return int(entry["count"])
    record.append(_PIECES, count=ranks.size)
    return ranks.size


def counts_of(
    record: RunRecord | None, ranks: Ranks, shards: Sequence[ShardRef], captions: CaptionKeys = None
) -> SampleCounts:
    """Return the number of samples of each shard, which the ranks count once for a run.

    The counts are recorded for later starts.
    """
    recorded = next((e for e in record.entries if e["kind"] == _COUNTS), None) if record else None
    of_first = SampleCounts(recorded["samples"], recorded.get("failed", {})) if recorded else None
    counts: SampleCounts | None = said_by_first(ranks, of_first)
    if counts is None:
        counts = SampleCounts({}, {})
        for of_rank in gathered(ranks, count_samples(shards[ranks.rank :: ranks.size], captions)):
            counts.samples.update(of_rank.samples)
            counts.failed.update(of_rank.failed)
        if record is not None:
            record.append(_COUNTS, **counts._asdict())
    return counts


def _train_on_node(run: Finetuning, on_step: OnStep) -> FinetuneSummary:
    """Call `train_as_rank` on a node of a cluster."""
    path = stores.location(run.out) / WORKING_FOLDER / RUN
    if not stores.exists(path):
        raise InputError(
            f"--out {run.out} must be in a store, or on a file system that all nodes share"
        )
    return run.train_as_rank(on_step)


def _absolute_sources(sources: Sequence[str], shards: list[ShardRef]) -> list[str]:
    if shards[0].layout == WEBDATASET:
        return [absolute(shard.url) for shard in shards]
    return [absolute(path) for source in sources for path in expand(source, places)]
