"""`ncclean evaluate judgements`: compare scores with people's judgements of captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from ncclean.base.estimates import Estimate
from ncclean.base.formats import Table, decimal, skipped_counts
from ncclean.base.options import Option, Reads
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Result
from .display import Note, Shown
from .evaluate_models import ModelOptions
from .progress import SILENT, Progress
from .shared_options import MemoryLimit, json_option

if TYPE_CHECKING:
    from ncclean.evaluation.judgement_evaluation import JudgementEvaluation


@dataclass(frozen=True, kw_only=True)
class EvaluateJudgements(ModelOptions):
    """Compare scores with people's judgements of captions: Kendall's tau, pairwise accuracy.

    TABLE (csv, tsv, jsonl or Parquet) has a row for each judged caption: the name of an image, the
    caption and one or several ratings, as in Flickr8k-Expert, Flickr8k-CF and THumB. The scores are
    those of models on the images (--shards), or columns of a score table (--scores).

    Example: `ncclean evaluate judgements expert.csv --shards images/ --model demo`
    """

    name = "evaluate judgements"
    summary = "Compare scores with people's judgements: Kendall's tau."

    table: Annotated[
        str, Option("Table of judgements.", argument=True, metavar="TABLE", reads=Reads.PATH)
    ]
    data: Annotated[
        Sequence[str],
        Option("The judged images: a folder, shards or tables.", name="shards", reads=Reads.SHARDS),
    ] = ()
    model: Annotated[Sequence[str], Option("Model, as in `score`.", reads=Reads.MODEL)] = ()
    scores: Annotated[
        Sequence[str],
        Option(
            "Score table with the judged captions, joined by image and caption.", reads=Reads.TABLE
        ),
    ] = ()
    score: Annotated[
        Sequence[str],
        Option(
            "Also compare this score of --scores, `SQL` or `NAME=SQL`; higher is better.",
            sql_over=("scores",),
        ),
    ] = ()
    out: Annotated[str | None, json_option("judgements.json")] = None
    image_column: Annotated[
        str | None, Option("Column with the image's name (default: `image` and the like).")
    ] = None
    caption_column: Annotated[
        str | None, Option("Column with the caption (default: `caption` and the like).")
    ] = None
    rating: Annotated[
        Sequence[str],
        Option(
            "Column with a judge's rating (default: `judge1` and the like).", shows_default=False
        ),
    ] = ()
    judges: Annotated[
        Literal["each", "mean"], Option("Of several judges, count `each` rating or their `mean`.")
    ] = "each"
    drop_references: Annotated[
        bool, Option("Leave out captions that --shards has for the image.")
    ] = False
    prefix: Annotated[
        str, Option("Text before each caption, such as CLIPScore's `A photo depicts`.")
    ] = ""
    source_options: SourceOptions = field(default_factory=SourceOptions)
    memory_limit: MemoryLimit = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model and not self.scores:
            raise InputError("name a --model with --shards, or a score table with --scores")
        if bool(self.model) != bool(self.data):
            raise InputError("--model scores the images of --shards: give both")
        if self.score and not self.scores:
            raise InputError("--score reads columns of --scores")
        if (self.drop_references or self.prefix) and not self.model:
            raise InputError("--drop-references and --prefix are for --model")

    def run(self, progress: Progress = SILENT) -> Result[JudgementEvaluation]:
        """Compare and write; see `ncclean.evaluation.judgement_evaluation`."""
        from ncclean.base.output_mark import check_free
        from ncclean.evaluation.judgement_evaluation import JudgementEvaluation, scores_of_table
        from ncclean.evaluation.judgement_table import read_judgements
        from ncclean.storage.run_folder import write_json

        check_free([self.out], self.name, self.overwrite)
        judgements = read_judgements(
            self.table, self.image_column, self.caption_column, self.rating
        )
        if self.judges == "mean":
            judgements = judgements.averaged()
        evaluation = JudgementEvaluation(judgements)
        for model in self.requests():
            evaluation.add_model(
                model,
                self.data,
                self.embedding,
                self.source_options,
                prefix=self.prefix,
                drop_references=self.drop_references,
                progress=progress,
            )
        if self.scores:
            table = scores_of_table(
                self.scores, judgements, expressions=self.score, memory_limit=self.memory_limit
            )
            evaluation.add(self.scores[0], judgements, table)
        files = []
        if self.out is not None:
            files.append(write_json(self.out, evaluation.to_json(), self.name))
        best = max(evaluation.scores, key=lambda one: one.agreement.tau_b.value)
        figures = {"best tau_b": f"{best.agreement.tau_b.value:.3f} ({best.source}, {best.score})"}
        return self.result(evaluation, _summary(evaluation, files), figures=figures, made=files)


def _summary(evaluation: JudgementEvaluation, files: Sequence[str]) -> Iterator[Shown]:
    yield f"people's score: {', '.join(evaluation.judgements.rating_columns)}"
    rows = []
    for one in evaluation.scores:
        figures = one.agreement
        name = f"{one.score} (reversed)" if one.reversed else one.score
        ends = (figures.tau_b, figures.tau_c, figures.pairwise_accuracy)
        counts = (f"{figures.images:,}", f"{figures.captions:,}", f"{figures.judgements:,}")
        rows.append((one.source, name, *map(_with_interval, ends), *counts))
    heads = (
        "source", "score", "tau b", "tau c", "pairwise", "images", "captions", "judgements"
    )  # fmt: skip
    yield Table("", heads, tuple(rows), left=2)
    yield Note(
        "pairwise: captions of one image that people rate differently, ordered alike; intervals of "
        "95 % from leaving out images",
        "aside",
    )
    if evaluation.left_out:
        yield f"rows left out: {skipped_counts(evaluation.left_out)}"
    for source, missing in evaluation.missing.items():
        if missing:
            yield Note(f"without a score of {source}: {skipped_counts(missing)}", "warning")
    yield from (f"not compared: {name}: {why}" for name, why in evaluation.undefined.items())
    yield from (f"written to {path}" for path in files)


def _with_interval(estimate: Estimate) -> str:
    ends = f" ({decimal(estimate.low)} to {decimal(estimate.high)})"
    return decimal(estimate.value) + (ends if estimate.has_interval else "")
