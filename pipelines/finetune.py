"""`ncclean finetune`: train a model on selected pairs with one of the objectives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ncclean.base.config import DEFAULT_MODEL, ClusterOptions
from ncclean.base.options import Option, OptionError, Reads, Seed, parameters, value_of
from ncclean.data.options import LoaderOptions, TrainingSourceOptions
from ncclean.errors import InputError
from ncclean.storage.inputs import identity
from ncclean.training.objectives.options import METHODS, Method, ObjectiveOptions
from ncclean.training.options import TrainOptions

from .command import Command, Result, lists_tables_once
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import Device, Engine, Overwrite, Precision, Preprocess, Pretrained

if TYPE_CHECKING:
    from ncclean.training.finetune import FinetuneSummary, Finetuning


@dataclass(frozen=True, kw_only=True)
class Finetune(Command):
    """Train a CLIP model on selected pairs, straight from the original shards.

    The run folder is a model for `--model local-dir:OUT` and for open_clip. Under torchrun, or with
    --engine ray --workers N, the batch is spread over the processes, and the loss is that of the
    whole batch.

    Example: `ncclean finetune --shards shards/ --selection clean.parquet --model demo --out runs/a`
    """

    name = "finetune"
    summary = "Train or repair a CLIP model on selected pairs."
    resume_hint = "run the same command again to go on"
    makes_model = True
    has_record = True
    takes_settings = True
    runs_in_ranks = True

    method: Annotated[
        Method,
        Option(
            f"{', '.join(f'`{name}`' for name in METHODS[:-1])} or `{METHODS[-1]}`.",
            typed_default="clip",
        ),
    ]
    shards: Annotated[Sequence[str], Option("Shards to train on.", reads=Reads.SHARDS)]
    out: Annotated[str, Option("Folder or URL of the run and its model.", inside="")]
    source_options: TrainingSourceOptions = field(default_factory=TrainingSourceOptions)
    selection: Annotated[
        str | None,
        Option("Output of `ncclean select`, with weights and forget marks.", reads=Reads.TABLE),
    ] = None
    model: Annotated[str, Option("Model to train.", reads=Reads.MODEL)] = DEFAULT_MODEL
    pretrained: Pretrained = None
    preprocess: Preprocess = None
    init: Annotated[
        Literal["pretrained", "random"],
        Option(
            "Start from `pretrained` or `random` weights; for `random`, --model is an "
            "architecture, a model's folder or a json."
        ),
    ] = "pretrained"
    batch_size: Annotated[int, Option("Pairs per step, over all GPUs.", low=2)] = 256
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    disncl_variant: Annotated[
        Sequence[Literal["reverse", "mask-noisy", "bounded-adversary"]],
        Option(
            "`reverse` (Theorem 3's cross-entropy), `mask-noisy` (noisy candidates leave "
            "the softmax) or `bounded-adversary`.",
            methods=("disncl",),
        ),
    ] = ()
    training: TrainOptions = field(default_factory=TrainOptions)
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    precision: Precision = "auto"
    device: Device = "auto"
    engine: Engine = "auto"
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    resume: Annotated[
        bool, Option("Resume from the newest checkpoint (the default).", in_recipes=False)
    ] = False
    overwrite: Overwrite = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_from_scratch and self.pretrained is not None:
            raise InputError(
                "--init random starts without weights, and --pretrained names some: leave one of "
                "the two out"
            )
        options = parameters(type(self))
        changed = [name for name, p in options.items() if value_of(self, p) != p.default]
        self.check_given(dict.fromkeys(changed) | {"method": self.method})
        if self.method == "disncl" and self.training.ema_decay is not None:
            raise InputError(
                "--ema averages only the towers and cannot be used with disncl: leave it out"
            )
        if self.is_frozen and self.loader.captions == "sample":
            raise InputError(
                "--captions sample draws again in each epoch, but --freeze-towers computes "
                "features only once: use --captions all or best"
            )

    @classmethod
    def check_given(cls, values: Mapping[str, Any]) -> None:
        """Raise `OptionError` for another training method's option, which would have no effect."""
        method = values["method"]
        for name in values:
            parameter = parameters(cls)[name]
            methods = parameter.option.methods
            if methods and method not in methods:
                raise OptionError(
                    name,
                    f"{parameter.flag} is an option of --method {' and '.join(methods)} and does "
                    f"nothing with {method}: leave it out",
                )

    @property
    def is_from_scratch(self) -> bool:
        return self.init == "random"

    @property
    def is_frozen(self) -> bool:
        """Whether only the heads train, on features computed once."""
        return self.method == "disncl" and self.objective.disncl.freeze_towers

    @property
    def objective_options(self) -> ObjectiveOptions:
        """The options of the objective, with DisNCL's variants applied."""
        variants: dict[str, Any] = {name.replace("-", "_"): True for name in self.disncl_variant}
        disncl = dataclasses.replace(self.objective.disncl, **variants)
        return dataclasses.replace(self.objective, disncl=disncl)

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[FinetuneSummary]:
        """Train and write the model; see `ncclean.training.finetune`."""
        is_remote = self.engine == "ray" or (self.engine == "auto" and self.cluster.address)
        tuning = self.finetuning()
        if is_remote and self.cluster.decoders_per_worker is not None:
            decoders = self.cluster.decoders_per_worker
            loader = dataclasses.replace(tuning.loader, decode_threads=decoders)
            tuning = dataclasses.replace(tuning, loader=loader)
        trained = tuning.run(progress, self.cluster if is_remote else None)
        figures = {"steps": f"{trained.steps:,}"}
        if trained.first_loss is not None and trained.last_loss is not None:
            figures["loss"] = f"{trained.first_loss:.3f} to {trained.last_loss:.3f}"
        return self.result(trained, _summary(trained, figures), figures=figures, made=[self.out])

    def finetuning(self) -> Finetuning:
        """The training run that the command's options describe."""
        from ncclean.models.request import ModelRequest
        from ncclean.training.finetune import Finetuning

        model = ModelRequest(
            model=self.model,
            pretrained=self.pretrained,
            preprocess=self.preprocess,
            precision=self.precision,
            device=self.device,
            random_seed=self.seed if self.is_from_scratch else None,
        )
        return Finetuning(
            method=self.method,
            model=model,
            sources=self.shards,
            out=self.out,
            identity=identity(self),
            source_options=self.source_options,
            selection=self.selection,
            batch_size=self.batch_size,
            objective=self.objective_options,
            training=self.training,
            loader=self.loader,
            is_frozen=self.is_frozen,
            overwrite=self.overwrite,
            seed=self.seed,
        )


def _summary(trained: FinetuneSummary, figures: Mapping[str, str]) -> Iterator[Shown]:
    yield f"{trained.steps:,} steps, {trained.samples:,} samples with {trained.method}"
    if "loss" in figures:
        yield f"loss {figures['loss']}"
    for reason, count in trained.skipped.items():
        yield f"skipped: {count:,} {reason}"
    is_remote = "://" in trained.out
    folder = "FOLDER" if is_remote else trained.out
    yield f"the model: --model local-dir:{folder}" + f", a copy of {trained.out}" * is_remote
