"""The fine-tuning stage: a model trained on selected pairs with one of the objectives."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from upath import UPath

import ncclean
from ncclean.atomic import published
from ncclean.config import ClusterOptions
from ncclean.data.selection import SelectionReader
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.data.weighted_loader import LoaderOptions, WeightedLoader
from ncclean.errors import InputError, NccleanError, ResumeError
from ncclean.execution.engine import ModelRequest
from ncclean.execution.paths import absolute, absolute_model
from ncclean.models.checkpoint import CONFIG_NAME, resolve
from ncclean.models.estimator import Estimator
from ncclean.models.heads import CONFIG_NAME as HEADS_CONFIG
from ncclean.models.heads import WEIGHTS_NAME as HEADS_WEIGHTS
from ncclean.models.saving import write_model
from ncclean.storage.same_corpus import check_same_corpus
from ncclean.training.feature_cache import CachedFeatures
from ncclean.training.objectives.base import Saved
from ncclean.training.objectives.registry import ObjectiveOptions, check_method, make_objective
from ncclean.training.process_group import (
    Ranks,
    check_same_start,
    joined_ranks,
    rank_device,
    wait_for_all,
)
from ncclean.training.run_log import read_results
from ncclean.training.trainer import StepReport, Trainer, TrainOptions

PARAMS = "params.yaml"
RAY_FOLDER = "ray_train"  # what Ray Train notes of a run


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest:
    """A fine-tuning as a user asks for it. `batch_size` is that of all ranks together."""

    method: str
    shards: Sequence[str]
    out: str
    selection: str | None = None
    model: str = "ViT-B-32"
    pretrained: str | None = "laion2b_s34b_b79k"
    precision: str = "auto"
    device: str = "auto"
    objective: ObjectiveOptions = dataclasses.field(default_factory=ObjectiveOptions)
    batch_size: int = 256
    resume: bool = False
    overwrite: bool = False
    engine: str = "auto"
    cluster: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)
    loader: LoaderOptions = dataclasses.field(default_factory=LoaderOptions)
    training: TrainOptions = dataclasses.field(default_factory=TrainOptions)

    def __post_init__(self) -> None:
        check_method(self.method)
        if self.objective.epochs is not None and self.objective.epochs < 1:
            raise InputError("--epochs must be at least 1")
        rate = self.objective.learning_rate
        if rate is not None and not rate > 0:
            raise InputError(f"--learning-rate must be positive, got {rate:g}")
        if self.engine not in ("auto", "local", "ray"):
            raise InputError(f"--engine takes auto, local or ray, got {self.engine!r}")
        if self.method == "disncl" and self.training.ema_decay is not None:
            raise InputError("--ema averages the towers alone, and so does not go with disncl")
        if "://" in self.out:
            raise InputError(f"--out of finetune is a local folder, got {self.out}")

    def params(self) -> dict[str, Any]:
        """What the run depends on, as `params.yaml` records it."""
        fields = dataclasses.asdict(self)
        for name in ("resume", "overwrite", "out", "engine", "cluster"):
            del fields[name]
        fields["shards"] = list(self.shards)
        # Plain values: the file must be readable without this code.
        return dict(json.loads(json.dumps(fields)))


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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def finetune(
    request: FinetuneRequest, on_step: Callable[[StepReport], None] = lambda report: None
) -> FinetuneSummary:
    """Train and write the model into the run folder, for `--model local-dir:OUT`.

    Under torchrun every process calls this; the first one writes. With a Ray engine the ranks are
    Ray's, and `out` must be on a file system that all nodes share. Raises `InputError` or
    `ResumeError` before anything is trained, `TrainingError` if a loss is not finite.
    """
    if request.engine == "ray" or (request.engine == "auto" and request.cluster.address):
        return _on_cluster(request, on_step)
    return train_as_rank(request, on_step)


def _on_cluster(request: FinetuneRequest, on_step: Callable[[StepReport], None]) -> FinetuneSummary:
    from ncclean.execution.ray_train import train_on_cluster

    shards = _shards(request)  # before a cluster is asked for anything
    out = Path(request.out)
    _claim(out, request)
    try:
        result: FinetuneSummary = train_on_cluster(
            _train_claimed,
            _seen_from_nodes(request, shards),
            cluster=request.cluster,
            device=request.device,
            folder=out / RAY_FOLDER,
            on_report=on_step,
        )
    except NccleanError:
        if not (out / "checkpoints").exists():  # nothing to resume: the folder is free again
            (out / PARAMS).unlink()
        raise
    return dataclasses.replace(result, out=request.out)


def _shards(request: FinetuneRequest) -> list[ShardRef]:
    """Raises `InputError` if the selection is about others."""
    shards = resolve_shards(request.shards)
    if request.selection is not None:
        SelectionReader(request.selection)  # says it better if it is none
        check_same_corpus([request.selection], shards)
    return shards


def _seen_from_nodes(request: FinetuneRequest, shards: list[ShardRef]) -> FinetuneRequest:
    """The request with paths from the root: Ray Train's ranks work in a folder of their own."""
    model = absolute_model(ModelRequest(model=request.model, pretrained=request.pretrained))
    return dataclasses.replace(
        request,
        shards=[absolute(shard.url) for shard in shards],
        out=absolute(request.out),
        selection=request.selection and absolute(request.selection),
        model=model.model,
        pretrained=model.pretrained,
    )


def train_as_rank(
    request: FinetuneRequest, on_step: Callable[[StepReport], None], is_claimed: bool = False
) -> FinetuneSummary:
    """What each process does, from where the run folder stands once it is claimed."""
    out = Path(request.out)
    shards = _shards(request)
    selection = SelectionReader(request.selection) if request.selection is not None else None
    estimator = ModelRequest(
        model=request.model,
        pretrained=request.pretrained,
        precision=request.precision,
        device=rank_device(request.device),
    ).load()
    objective = make_objective(request.method, request.objective, estimator.tokenize)
    with joined_ranks(estimator.device) as ranks:
        if request.batch_size % ranks.size:
            raise InputError(f"--batch-size must be a multiple of the {ranks.size} processes")
        check_same_start(estimator.model, ranks)
        loader = _loader(request, shards, selection, estimator, ranks)
        trainer = Trainer(estimator, objective, loader, request.training, out, ranks)
        if ranks.is_first and not is_claimed:
            _claim(out, request)
        wait_for_all(ranks)
        progress = trainer.run(resume=True, on_step=on_step)
        if ranks.is_first:
            trained = trainer.averaged.module if trainer.averaged is not None else estimator.model
            source = resolve(request.model, request.pretrained)
            write_model(trained, source, estimator.tokenizer, out)
            if isinstance(objective, Saved):
                objective.save(out)
    results = read_results(out)
    return FinetuneSummary(
        method=request.method,
        samples=progress.total_steps * request.batch_size,
        steps=progress.total_steps,
        first_loss=results[0]["loss"] if results else None,
        last_loss=results[-1]["loss"] if results else None,
        skipped=dict(loader.counts.skipped),
        out=request.out,
        failed_shards=dict(loader.counts.failed_shards),
    )


def _train_claimed(
    request: FinetuneRequest, on_step: Callable[[StepReport], None]
) -> FinetuneSummary:
    """`train_as_rank` on a node of a cluster."""
    if not (Path(request.out) / PARAMS).exists():
        raise InputError(
            f"--out {request.out} is not on a file system that every node of the cluster sees"
        )
    return train_as_rank(request, on_step, is_claimed=True)


def _loader(
    request: FinetuneRequest,
    shards: list[ShardRef],
    selection: SelectionReader | None,
    estimator: Estimator,
    ranks: Ranks,
) -> WeightedLoader | CachedFeatures:
    """This rank's batches: of images and captions, or of what frozen towers make of them."""
    options = dataclasses.replace(request.loader, batch_size=request.batch_size // ranks.size)
    frozen = request.method == "disncl" and request.objective.disncl.freeze_towers
    if frozen:
        options = dataclasses.replace(options, augment=False, shuffle=False, drop_last=False)
    loader = WeightedLoader(
        shards,
        selection,
        estimator.preprocessing,
        options,
        rank=ranks.rank,
        world_size=ranks.size,
    )
    if not frozen:
        return loader
    return CachedFeatures(estimator, loader, options.batch_size, options.seed)


def _claim(out: Path, request: FinetuneRequest) -> None:
    """Make `out` the folder of this run, or of its continuation."""
    params = out / PARAMS
    if request.resume and params.exists():
        before = _flat(yaml.safe_load(params.read_text()))
        now = _flat(request.params())
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            name = changed[0]
            raise ResumeError(
                f"{out} was trained with other settings: {name} was {before.get(name)}, is "
                f"{now[name]}"
            )
        return
    if params.exists() and not request.overwrite:
        raise InputError(f"{out} holds a run; --resume goes on with it, --overwrite starts again")
    held = {path.name for path in out.iterdir()} if out.exists() else set()
    if not params.exists() and held - {RAY_FOLDER}:
        raise InputError(f"{out} exists and holds no run; choose another --out")
    if request.overwrite:
        clear_training(out)
    out.mkdir(parents=True, exist_ok=True)
    versions = {"ncclean": ncclean.__version__}
    with published(UPath(params)) as aside:
        aside.write_text(
            yaml.safe_dump({**request.params(), "versions": versions}, sort_keys=False)
        )


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def clear_training(out: Path) -> None:
    """Remove the model and the checkpoints of a run; what it was asked for stays on record."""
    for path in [*(out / "checkpoints").glob("step_*.pt"), out / "results.jsonl",
                 out / CONFIG_NAME, out / "open_clip_model.safetensors",
                 out / HEADS_CONFIG, out / HEADS_WEIGHTS]:  # fmt: skip
        path.unlink(missing_ok=True)
