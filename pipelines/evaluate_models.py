"""`ncclean evaluate zeroshot`, `retrieval`, `linear-probe`: measure models on evaluation sets."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, ClassVar

from ncclean.base.formats import Table, percentage, skipped_counts
from ncclean.base.option_values import numbers_by_name
from ncclean.base.options import Option, Reads, Seed, parameters
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .shared_options import Device, Overwrite, Precision

if TYPE_CHECKING:
    from ncclean.evaluation.models_on_sets import Task
    from ncclean.evaluation.results import Evaluation
    from ncclean.models.request import ModelRequest

# The figure that represents each task.
LEADING_METRICS = ("acc1", "lp_acc1", "rsum")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Command):
    """The options that all evaluations of models share."""

    model: Annotated[Sequence[str], Option("Model, as in `score`.", reads=Reads.MODEL)]
    data: Annotated[
        Sequence[str],
        Option("Set in clip_benchmark's layout, or a folder of such.", reads=Reads.PATH),
    ]
    pretrained: Annotated[
        Sequence[str],
        Option(
            "Pretrained tag or weights file, as in `score`: for all models, or one each, `none` "
            "for one with its own weights.",
            reads=Reads.NAME_OR_FILE,
        ),
    ] = ()
    preprocess: Annotated[
        Sequence[str],
        Option(
            "Preprocess images as these released weights, as in `score`: for all models, or one "
            "each, `none` for a model's own preprocessing.",
            metavar="TAG",
        ),
    ] = ()
    out: Annotated[
        str | None, Option("Folder, or a `.json` file for a single result.", inside="")
    ] = None
    space: Annotated[
        str,
        Option("For a model with DisNCL's heads: `invariant` (`auto`), `exclusive` or `joint`."),
    ] = "auto"
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    precision: Precision = "auto"
    device: Device = "auto"
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model and parameters(type(self))["model"].is_required:
            raise InputError("name at least one --model")
        if not self.models and (self.pretrained or self.preprocess):
            raise InputError("--pretrained and --preprocess are for a --model: name it")
        # Tables and files of results call a model by its name and the name of its weights.
        labels = [(model, tag and PurePath(tag).name) for model, tag, _ in self.named_models]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            weights = f" with weights called {twice[1]}" if twice[1] else ""
            raise InputError(
                f"--model {twice[0]} is given twice{weights}, and results would have one name: "
                "evaluate each by itself"
            )

    @property
    def models(self) -> Sequence[str]:
        """The models to evaluate, in order."""
        return self.model

    @property
    def named_models(self) -> list[tuple[str, str | None, str | None]]:
        """Return models with their tags and preprocessing.

        Raises `InputError` unless these are one for all or one for each.
        """
        pretrained = self._one_each("pretrained", self.pretrained)
        return list(
            zip(self.models, pretrained, self._one_each("preprocess", self.preprocess), strict=True)
        )

    def _one_each(self, name: str, values: Sequence[str]) -> list[str | None]:
        count = len(self.models)
        one_each = [None if value == "none" else value for value in values or ["none"]]
        if len(one_each) == 1:
            return one_each * count
        if len(one_each) != count:
            raise InputError(
                f"{len(one_each)} --{name} for {count} --model: give one for all, or one for each"
            )
        return one_each

    def requests(self) -> list[ModelRequest]:
        """Return requests to load the models, each with its tag."""
        from ncclean.models.request import ModelRequest

        return [
            ModelRequest(
                model=model,
                pretrained=tag,
                preprocess=preprocess,
                precision=self.precision,
                device=self.device,
                space=self.space,
            )
            for model, tag, preprocess in self.named_models
        ]


@dataclass(frozen=True, kw_only=True)
class ModelEvaluation(ModelOptions):
    """An evaluation of models that writes clip_benchmark's result files."""

    title: ClassVar[str]

    @abstractmethod
    def task(self) -> Task:
        """The task to evaluate the models on."""

    @property
    def expected_sets(self) -> Sequence[str]:
        """Names of sets that options mention."""
        return ()

    def run(self, progress: Progress = SILENT) -> Result[list[Evaluation]]:
        """Evaluate every model on every set; see `ncclean.evaluation.models_on_sets`."""
        from ncclean.evaluation.models_on_sets import evaluate

        results, files = evaluate(
            self.task(),
            self.requests(),
            self.data,
            out=self.out,
            command=self.name,
            overwrite=self.overwrite,
            expected=self.expected_sets,
            progress=progress,
        )
        return self.result(
            results,
            _summary(results, self.title, self.out),
            figures=_figures(results),
            made=files,
            values={"results": [result.to_json() for result in results], "out": self.out},
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateZeroshot(ModelEvaluation):
    """Classify images by the prompts of each class: accuracy and mean recall per class.

    Takes classification sets in clip_benchmark's layout, with shards or with images and a table
    `labels.csv`. Writes clip_benchmark's json and, for `evaluate compare`, the outcome of each
    image.

    Example: `ncclean evaluate zeroshot --model demo-noisy --model demo --data shards/heldout`
    """

    name = "evaluate zeroshot"
    summary = "Classify images by prompts: accuracy."
    title = "Zero-shot classification"

    def task(self) -> Task:
        """The task of zero-shot classification by prompts."""
        from ncclean.evaluation.models_on_sets import zeroshot_task

        return zeroshot_task(self.embedding)


@dataclass(frozen=True, kw_only=True)
class EvaluateRetrieval(ModelEvaluation):
    """Retrieve captions by images and images by captions: recall at 1, 5 and 10.

    Takes retrieval sets in clip_benchmark's layout and tables of captioned images; of Karpathy's
    json, the test split. From 5,000 images on, it also computes MS-COCO's 1K test, the mean of five
    folds of 1,000 images.

    Example: `ncclean evaluate retrieval --model demo --data shards/heldout --out results/demo`
    """

    name = "evaluate retrieval"
    summary = "Retrieve captions by images and images by captions: recall."
    title = "Retrieval"

    source_options: SourceOptions = field(default_factory=SourceOptions)
    captions_per_image: Annotated[
        int | None,
        Option("Captions to use of each image (default: all; published on MS-COCO: 5).", low=1),
    ] = None

    def task(self) -> Task:
        """The task of retrieval in both directions."""
        from ncclean.evaluation.models_on_sets import retrieval_task

        return retrieval_task(self.embedding, self.source_options, self.captions_per_image)


@dataclass(frozen=True, kw_only=True)
class EvaluateLinearProbe(ModelEvaluation):
    """Train a linear classifier on frozen image embeddings and measure it on the test images.

    Takes classification sets with a train split. lbfgs is CLIP's protocol, with the penalty chosen
    on a fifth of the training images; adamw is the schedule of NCU's supplement. If labels are
    noisy, --weights says how much each image counts.

    Example: `ncclean evaluate linear-probe --model demo --data shards/heldout`
    """

    name = "evaluate linear-probe"
    summary = "Train a linear classifier on frozen embeddings: accuracy."
    title = "Linear probe"

    probe: ProbeOptions = field(default_factory=ProbeOptions)
    set_epochs: Annotated[
        Mapping[str, int] | Sequence[str],
        Option("Epochs of `adamw` for one set, as in `imagenet1k=90`."),
    ] = ()
    scores: Annotated[
        Sequence[str], Option("Score table with the training images.", reads=Reads.TABLE)
    ] = ()
    weights: Annotated[
        str | None,
        Option(
            "Column of --scores, or SQL, to weight the training images by.", sql_over=("scores",)
        ),
    ] = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.set_epochs and self.probe.solver != "adamw":
            raise InputError("--set-epochs is for --solver adamw")
        if bool(self.scores) != (self.weights is not None):
            raise InputError("--weights names a column of --scores: give both")
        _ = self.epochs_by_set  # refuses non-numbers

    @cached_property
    def epochs_by_set(self) -> dict[str, int]:
        """Return epochs by set name. Raises `InputError` for anything but `set=number`."""
        return numbers_by_name("--set-epochs takes set=number", self.set_epochs, int, least=1)

    @property
    def expected_sets(self) -> Sequence[str]:
        return list(self.epochs_by_set)

    def task(self) -> Task:
        """The task of a linear classifier on frozen embeddings, with the seed."""
        from ncclean.evaluation.linear_probe import SampleWeights
        from ncclean.evaluation.models_on_sets import linear_probe_task

        weighting = None
        if self.weights is not None:
            weighting = SampleWeights(tuple(self.scores), self.weights)
        probe = dataclasses.replace(self.probe, seed=self.seed)
        return linear_probe_task(self.embedding, probe, self.epochs_by_set, weighting)


def _figures(results: Sequence[Evaluation]) -> dict[str, str]:
    """The leading metric of each model, the mean over its data sets."""
    last = {result.label: result.label.rsplit("/", 1)[-1] for result in results}
    values: dict[tuple[str, str], list[float]] = {}
    for result in results:
        metric = next((name for name in LEADING_METRICS if name in result.metrics), None)
        value = result.metrics[metric] if metric is not None else None
        if metric is not None and value is not None:
            is_unique = [*last.values()].count(last[result.label]) == 1
            name = last[result.label] if is_unique else result.label
            values.setdefault((name, metric), []).append(value)
    return {
        f"{label}, {metric}": percentage(metric, sum(group) / len(group))
        for (label, metric), group in values.items()
    }


def _summary(results: Sequence[Evaluation], title: str, out: str | None) -> Iterator[Shown]:
    """A row for each metric of each set, a column for each model."""
    models = list(dict.fromkeys(result.label for result in results))
    rows = []
    for dataset in dict.fromkeys(result.dataset for result in results):
        metrics = {r.label: r.metrics for r in results if r.dataset == dataset}
        names = dict.fromkeys(name for values in metrics.values() for name in values)
        for row, name in enumerate(names):
            cells = (percentage(name, metrics.get(model, {}).get(name)) for model in models)
            rows.append(("" if row else dataset, name, *cells))
    yield Table(title, ("data set", "metric", *models), tuple(rows), left=2)
    for result in results:
        if result.skipped:
            counts = skipped_counts(result.skipped)
            yield f"left out of {result.dataset} for {result.label}: {counts}"
    if out is not None:
        yield f"written to {out}"
