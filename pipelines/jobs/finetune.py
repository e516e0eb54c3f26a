"""Fine-tuning: the run folder claimed, a trainer on every rank, the model written."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from upath import UPath

import ncclean
from ncclean.atomic import published
from ncclean.data.selection import SelectionReader
from ncclean.data.shards import WEBDATASET, ShardRef, expand, places
from ncclean.data.sources import resolve_pairs
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.execution.engine import ModelRequest
from ncclean.models.checkpoint import resolve
from ncclean.models.estimator import Estimator
from ncclean.models.saving import write_model
from ncclean.storage.run_record import RunRecord
from ncclean.storage.same_corpus import check_same_corpus
from ncclean.stores import absolute
from ncclean.training.feature_cache import CachedFeatures
from ncclean.training.objectives.registry import make_objective
from ncclean.training.process_group import (
    Ranks,
    check_same_start,
    joined_ranks,
    rank_device,
    wait_for_all,
)
from ncclean.training.run_log import read_results
from ncclean.training.selection import open_selection
from ncclean.training.trainer import StepReport, Trainer

from ..command import identity
from ..finetune import Finetune
from ..progress import Progress
from .outputs import open_record, written_aside

RECORD = "_finetune.jsonl"
PARAMS = "params.yaml"
RAY_FOLDER = "ray_train"  # what Ray Train notes of a run
OnStep = Callable[[StepReport], None]


@dataclass(frozen=True)
class FinetuneSummary:
    """`skipped` counts samples that could not be read, by reason; losses are logged ones."""

    method: str
    samples: int
    steps: int
    first_loss: float | None
    last_loss: float | None
    skipped: dict[str, int]
    out: str
    failed_shards: dict[str, str] = dataclasses.field(default_factory=dict)


def finetune(command: Finetune, progress: Progress) -> FinetuneSummary:
    """Train, or go on from the newest checkpoint, and write the model into the run folder.

    Under torchrun every process calls this; the first one writes. With a Ray engine the ranks are
    Ray's, and `out` must be on a file system that all nodes share. Raises `InputError` or
    `ResumeError` before anything is trained, `TrainingError` if a loss is not finite.
    """
    progress.say(f"training {command.model} with {command.method}")

    def on_step(report: StepReport) -> None:
        speed = f"{report.samples_per_second:,.0f} samples/s"
        progress.advance(report.step, report.steps, "steps", **report.terms, speed=speed)

    if command.engine == "ray" or (command.engine == "auto" and command.cluster.address):
        return _on_cluster(command, on_step)
    return train_as_rank(command, on_step, identity(command))


def _on_cluster(command: Finetune, on_step: OnStep) -> FinetuneSummary:
    from ncclean.execution.ray_train import train_on_cluster

    shards, _ = _inputs(command)  # before a cluster is asked for anything
    out = Path(command.out)
    with open_record(command, out / RECORD, overwrite=command.overwrite) as record:
        run = record.identity
    result: FinetuneSummary = train_on_cluster(
        _train_on_node,
        (_seen_from_nodes(command, shards), run),
        cluster=command.cluster,
        device=command.device,
        folder=out / RAY_FOLDER,
        on_report=on_step,
    )
    return dataclasses.replace(result, out=command.out)


def _train_on_node(job: tuple[Finetune, dict[str, Any]], on_step: OnStep) -> FinetuneSummary:
    """`train_as_rank` on a node of a cluster."""
    command, run = job
    if not (Path(command.out) / RECORD).exists():
        raise InputError(
            f"--out {command.out} must be on a file system that all nodes of the cluster share"
        )
    return train_as_rank(command, on_step, run)


def _inputs(command: Finetune) -> tuple[list[ShardRef], SelectionReader | None]:
    """Raises `InputError` if the selection is about others, or lacks what the method reads."""
    shards = resolve_pairs(command.shards, command.image_root)
    selection = open_selection(
        command.selection, command.method, command.objective, command.loader.captions
    )
    if selection is not None:
        check_same_corpus([selection.path], shards)
    return shards, selection


def _seen_from_nodes(command: Finetune, shards: list[ShardRef]) -> Finetune:
    """The command with paths from the root: Ray Train's ranks work in a folder of their own."""
    model = ModelRequest(model=command.model, pretrained=command.pretrained).absolute()
    return dataclasses.replace(
        command,
        shards=_absolute_sources(command.shards, shards),
        image_root=command.image_root and absolute(command.image_root),
        out=absolute(command.out),
        selection=command.selection and absolute(command.selection),
        model=model.model,
        pretrained=model.pretrained,
        overwrite=False,  # the folder is claimed
    )


def _absolute_sources(sources: Sequence[str], shards: list[ShardRef]) -> list[str]:
    if shards[0].layout == WEBDATASET:
        return [absolute(shard.url) for shard in shards]
    return [absolute(place) for source in sources for place in expand(source, places)]


def train_as_rank(command: Finetune, on_step: OnStep, run: dict[str, Any]) -> FinetuneSummary:
    """What each process does; `run` is the identity that the record of the folder holds."""
    out = Path(command.out)
    shards, selection = _inputs(command)
    estimator = ModelRequest(
        model=command.model,
        pretrained=command.pretrained,
        precision=command.precision,
        device=rank_device(command.device),
        random_seed=command.seed if command.is_from_scratch else None,
    ).load()
    objective = make_objective(command.method, command.objective_options, estimator.tokenize)
    training = dataclasses.replace(command.training, seed=command.seed)
    with joined_ranks(estimator.device) as ranks, contextlib.ExitStack() as stack:
        if command.batch_size % ranks.size:
            raise InputError(
                f"--batch-size must be a multiple of the number of processes, {ranks.size}"
            )
        check_same_start(estimator.model, ranks)
        loader = _loader(command, shards, selection, estimator, ranks)
        record = None
        if ranks.is_first:
            record = stack.enter_context(
                open_record(command, out / RECORD, overwrite=command.overwrite, run=run)
            )
            _write_params(command, record)
        trainer = Trainer(
            estimator, objective, loader, training, out, ranks, record.made if record else None
        )
        wait_for_all(ranks)
        position = trainer.run(resume=True, on_step=on_step)
        if record is not None:
            trained = trainer.averaged.module if trainer.averaged is not None else estimator.model
            source = resolve(command.model, command.pretrained, is_random=command.is_from_scratch)
            with written_aside(out, record) as aside:
                write_model(trained, source, estimator.tokenizer, aside)
                objective.save(aside)
    results = read_results(out)
    return FinetuneSummary(
        method=command.method,
        samples=position.total_steps * command.batch_size,
        steps=position.total_steps,
        first_loss=results[0]["loss"] if results else None,
        last_loss=results[-1]["loss"] if results else None,
        skipped=dict(loader.counts.skipped),
        out=command.out,
        failed_shards=dict(loader.counts.failed_shards),
    )


def _loader(
    command: Finetune,
    shards: list[ShardRef],
    selection: SelectionReader | None,
    estimator: Estimator,
    ranks: Ranks,
) -> WeightedLoader | CachedFeatures:
    """This rank's batches: of images and captions, or of what frozen towers make of them."""
    options = dataclasses.replace(
        command.loader, batch_size=command.batch_size // ranks.size, seed=command.seed
    )
    if command.is_frozen:
        options = dataclasses.replace(
            options, augment=False, shuffle=False, drop_last=False, batch_noise=0.0
        )
    loader = WeightedLoader(
        shards,
        selection,
        estimator.preprocessing,
        options,
        rank=ranks.rank,
        world_size=ranks.size,
    )
    if not command.is_frozen:
        return loader
    noise = command.loader.batch_noise
    return CachedFeatures(estimator, loader, options.batch_size, options.seed, noise)


def _write_params(command: Finetune, record: RunRecord) -> None:
    """`params.yaml`: the options that the method reads, readable without this code."""
    params = {**record.identity["options"], "versions": {"ncclean": ncclean.__version__}}
    path = UPath(command.out) / PARAMS
    record.made(path)
    with published(path) as aside:
        aside.write_text(yaml.safe_dump(params, sort_keys=False))
