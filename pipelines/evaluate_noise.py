"""`ncclean evaluate noise`: compare scores and rules of a table with its truth."""

from __future__ import annotations

import dataclasses
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.config import CLIP_SCALE, DEFAULT_MODEL, parse_keys, parse_scale
from ncclean.base.estimates import flattened
from ncclean.base.file_names import TABLE_ENDINGS
from ncclean.base.formats import Table, decimal, share, stated_rate, threshold_text
from ncclean.base.option_values import numbers_by_name
from ncclean.base.options import Option, Options, Seed, check_source, check_unset, parameters

from .command import Command, Result
from .display import Note, Shown, partner_lines
from .progress import SILENT, Progress
from .shared_options import (
    Device,
    Donors,
    EmbeddingKeys,
    Join,
    MemoryLimit,
    Model,
    Overwrite,
    Preprocess,
    Pretrained,
    Scale,
    Scores,
    json_option,
    plot_option,
)

if TYPE_CHECKING:
    from ncclean.evaluation.noise_evaluation import NoiseEvaluation, ScoreEvaluation
    from ncclean.evaluation.noise_trial import TrialRequest


_DETECTION = ("auroc", "average_precision", "threshold", "precision", "recall", "f1")
_TABLES = ("scores", "join")  # options that name the tables


@dataclass(frozen=True, kw_only=True)
class TrialOptions(Options):
    """The options of `--inject`: the pairs to inject noise into, and the model that scores them."""

    in_recipes = False

    donors: Donors = ()
    pairs: Annotated[int, Option("With --inject: pairs to draw, roughly.", low=2)] = 20_000
    model: Model = DEFAULT_MODEL
    pretrained: Pretrained = None
    preprocess: Preprocess = None
    embedding_keys: EmbeddingKeys = None
    scale: Scale = None
    device: Device = "auto"
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class EvaluateNoise(Command):
    """Compare scores and rules with the truth: what was found of each kind of noise.

    The truth is in the json of the scored shards (is_noisy, noise_kind), as `inject-noise` and
    `synth` write it. Each kind of noise is judged against the clean pairs alone.

    With --inject, SCORES are shards or embeddings without a truth. A share of the pairs gets
    captions of other pairs, or of --donors, which is more like the noise of the web; then all are
    scored and judged. The options from --donors to --seed are for --inject.

    Example: `ncclean evaluate noise scores.parquet --plot noise.pdf`
    """

    name = "evaluate noise"
    summary = "Compare scores and rules with the truth."

    scores: Scores
    out: Annotated[str | None, json_option("noise.json")] = None
    column: Annotated[
        Sequence[str], Option("Also evaluate this column; higher is noisier.", columns_of=_TABLES)
    ] = ()
    lower_is_noisier: Annotated[
        Sequence[str], Option("Also evaluate this column; lower is noisier.", columns_of=_TABLES)
    ] = ()
    score: Annotated[
        Sequence[str],
        Option(
            "Also evaluate this score, `SQL` or `NAME=SQL`; higher is cleaner.", sql_over=_TABLES
        ),
    ] = ()
    join: Join = ()
    threshold: Annotated[
        Mapping[str, float] | Sequence[str],
        Option("Threshold of a column, as in `similarity=0.25`.", columns_of=_TABLES),
    ] = ()
    rule: Annotated[
        Sequence[str],
        Option("Also evaluate this rule: SQL, true for pairs to flag.", sql_over=_TABLES),
    ] = ()
    inject: Annotated[
        float | None,
        Option(
            "First give this share of the pairs wrong captions.", above=0, high=1, in_recipes=False
        ),
    ] = None
    trial: TrialOptions = field(default_factory=TrialOptions)
    plot: Annotated[str | None, plot_option("noise.pdf")] = None
    table: Annotated[
        str | None,
        Option(
            "Write what each score finds of each kind of noise as a table for a paper: `.csv` or "
            "`.tex`.",
            metavar="PATH",
            endings=TABLE_ENDINGS,
            inside="noise.csv",
        ),
    ] = None
    memory_limit: MemoryLimit = None
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.thresholds  # refuses non-numbers
        if self.inject is None:
            check_unset(self, tuple(parameters(TrialOptions)), "needs --inject")

    @cached_property
    def thresholds(self) -> dict[str, float]:
        """Return thresholds by column. Raises `InputError` for anything but `column=number`."""
        return numbers_by_name("--threshold takes column=number", self.threshold, float)

    def run(self, progress: Progress = SILENT) -> Result[NoiseEvaluation]:
        """Evaluate scores and rules, and plot; see `ncclean.evaluation.evaluate_noise`."""
        from ncclean.base import stores
        from ncclean.base.atomic import published
        from ncclean.base.output_mark import check_free
        from ncclean.base.scratch import scratch_folder
        from ncclean.base.table_files import table_text
        from ncclean.storage.run_folder import write_json

        check_free([self.out, self.plot, self.table], self.name, self.overwrite)
        if self.inject is None:
            evaluation = self._evaluate(self.scores, progress)
        else:
            with scratch_folder() as folder:
                trial, table = self._trial(self.inject).run(folder, progress)
                evaluation = dataclasses.replace(self._evaluate([table], progress), trial=trial)
        files = [path for path in (self.out, self.plot, self.table) if path is not None]
        if self.out is not None:
            values = dataclasses.asdict(evaluation, dict_factory=flattened)
            write_json(self.out, values, self.name)
        if self.table is not None:
            with published(stores.location(self.table)) as aside:
                ending = posixpath.splitext(self.table)[1]
                aside.write_text(table_text(_detection(evaluation), ending, self.name), "utf-8")
        noisy = sum(evaluation.noisy.values())
        best = max(evaluation.scores, key=lambda score: score.kinds[0].report.auroc)
        auroc = best.kinds[0].report.auroc  # of all noise, which comes first
        figures = {
            "noisy": f"{noisy:,} of {evaluation.clean + noisy:,}",
            "best AUROC": f"{auroc:.3f} ({best.column})",
        }
        return self.result(evaluation, _summary(evaluation, files), figures=figures, made=files)

    def _evaluate(self, scores: Sequence[str], progress: Progress) -> NoiseEvaluation:
        from ncclean.evaluation.evaluate_noise import evaluate_noise

        return evaluate_noise(
            scores,
            join=self.join,
            higher_is_noisier=self.column,
            lower_is_noisier=self.lower_is_noisier,
            expressions=self.score,
            rules=self.rule,
            thresholds=self.thresholds,
            plot=self.plot,
            memory_limit=self.memory_limit,
            progress=progress,
        )

    def _trial(self, share: float) -> TrialRequest:
        """The trial of `--inject`. Raises `InputError` for options of another kind of source."""
        from ncclean.data.sources import are_embeddings, resolve_sources
        from ncclean.evaluation.noise_trial import TrialRequest
        from ncclean.models.request import ModelRequest, scale_of

        options = self.trial
        shards = resolve_sources(self.scores)
        is_embedded = are_embeddings(shards)
        check_source(options, "embeddings" if is_embedded else "images")
        model = ModelRequest(
            model=options.model,
            pretrained=options.pretrained,
            preprocess=options.preprocess,
            device=options.device,
            space="auto",
        )
        return TrialRequest(
            shards=shards,
            share=share,
            donors=resolve_sources(options.donors) if options.donors else [],
            pairs=options.pairs,
            model=model,
            keys=parse_keys(options.embedding_keys),
            scale=scale_of(parse_scale(options.scale), model) if is_embedded else CLIP_SCALE,
            seed=options.seed,
        )


def _detection(evaluation: NoiseEvaluation) -> Table:
    """What each score finds of each kind of noise; precision and recall at its threshold."""
    rows = []
    for score in evaluation.scores:
        for one in score.kinds:
            figures = (getattr(one.report, name) for name in _DETECTION)
            rows.append((score.column, one.kind, *map(decimal, figures)))
    names = (name.replace("_", " ").replace("auroc", "AUROC") for name in _DETECTION)
    heads = ("score", "noise", *names)
    pairs = evaluation.clean + sum(evaluation.noisy.values())
    return Table(f"Detection of noise in {pairs:,} pairs", heads, tuple(rows), left=2)


def _summary(evaluation: NoiseEvaluation, files: Sequence[str]) -> Iterator[Shown]:
    if (trial := evaluation.trial) is not None:
        source = "another corpus" if trial.noise == "donor" else "another one"
        yield f"{trial.pairs:,} pairs; {share(trial.moved)} of them got a caption of {source}"
        after = stated_rate(trial.after)
        yield f"estimated noise rate before: {stated_rate(trial.before)}"
        yield f"estimated noise rate after:  {after}; {share(trial.expected)} if the first is right"
        yield Note(
            "noise that was there before counts as clean: precision and AUROC are lower bounds",
            "aside",
        )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in evaluation.noisy.items())
    yield f"{evaluation.clean:,} clean pairs; noisy: {kinds or 'none'}"
    yield from partner_lines(evaluation.joined, evaluation.rows)
    if evaluation.unscored:
        yield f"{evaluation.unscored:,} pairs with a truth have no scores"
    if evaluation.unknown:
        yield f"{evaluation.unknown:,} pairs without a truth are left out"
    kind_names = [kind.kind for kind in evaluation.scores[0].kinds]
    # With a single kind, its figures are those of all noise.
    for number in range(1 if len(kind_names) == 2 else len(kind_names)):
        yield _detection_table(evaluation.scores, number)
        if number == 0:
            yield Note(
                "kept: share of the clean pairs that is not flagged; rank: mean rank of the noisy "
                "pairs; best: the highest possible rank",
                "aside",
            )
    points = [
        (
            score.column,
            score.flags,
            score.threshold_source.removeprefix("the ").split(",")[0],
            f"{threshold_text(score.kinds[0].best_threshold)} ({share(score.kinds[0].best_f1)})",
        )
        for score in evaluation.scores
    ]
    yield Table(
        "Operating points of the scores",
        ("score", "flags", "threshold", "best F1 at"),
        tuple(points),
    )
    names = list(evaluation.noisy)
    rules = [
        (
            rule.rule,
            share(rule.clean_kept),
            *(share(rule.noise_caught[name]) for name in ("all", *names)),
            share(rule.precision),
            f"{rule.flagged:,}",
        )
        for rule in evaluation.rules
    ]
    if rules:
        heads = ("rule", "clean kept", "all noise", *names, "prec.", "flagged")
        yield Table("Rules: clean pairs kept, noisy pairs caught", heads, tuple(rules))
    yield from _calibration(evaluation)
    yield from (f"written to {path}" for path in files)


def _detection_table(scores: Sequence[ScoreEvaluation], number: int) -> Table:
    """A row for each score, against one kind of noise."""
    first = scores[0].kinds[number]
    title = f"{'All noise' if number == 0 else first.kind} ({first.noisy:,} pairs)"
    rows = []
    for score in scores:
        kind = score.kinds[number]
        report = kind.report
        shares = (report.accuracy, report.precision, report.recall, report.f1, report.clean_kept)
        rows.append(
            (
                score.column,
                decimal(report.auroc),
                decimal(report.average_precision),
                *map(share, shares),
                _rank(kind.mean_noise_rank),
                _rank(kind.optimal_noise_rank),
            )
        )
    heads = ("score", "AUROC", "AP", "acc.", "prec.", "recall", "F1", "kept", "rank", "best")
    return Table(f"{title} against clean pairs", heads, tuple(rows))


def _calibration(evaluation: NoiseEvaluation) -> Iterator[Shown]:
    fit = evaluation.calibration
    if fit is None:
        return
    bins = [
        (
            f"{one.low:.1f} to {one.high:.1f}",
            f"{one.pairs:,}",
            decimal(one.predicted if one.pairs else None),
            decimal(one.observed if one.pairs else None),
        )
        for one in fit.bins
    ]
    heads = ("probability", "pairs", "mean", "share noisy")
    yield Table("Calibration of noise_probability", heads, tuple(bins))
    for name, side in (("kept (below 0.5)", fit.kept), ("dropped (0.5 and above)", fit.dropped)):
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in side.by_kind.items())
        yield (
            f"{name}: {side.pairs:,} pairs, {side.expected:,.1f} expected to be mismatched, "
            f"{side.noisy:,} noisy in truth ({kinds or 'none'})"
        )
    yield f"mean calibration error {fit.expected_error:.3f}, Brier score {fit.brier:.3f}"


def _rank(value: Any) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
