"""`ncclean score`: score every pair of a corpus into a calibrated table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.config import (
    DEFAULT_MODEL,
    DRY_RUN,
    CalibrationOptions,
    ClusterOptions,
    ScoreOptions,
    parse_keys,
    parse_scale,
    parse_shift,
)
from ncclean.base.estimates import Estimate
from ncclean.base.formats import (
    Table,
    by_name,
    counted,
    facts,
    file_size,
    hours,
    on_workers,
    share,
    short_rate,
    stated_rate,
)
from ncclean.base.options import Option, Reads, check_source
from ncclean.data.options import SourceFormat, SourceOptions
from ncclean.errors import InputError

from .command import Command, Result
from .display import Note, Shown, failure_notes
from .progress import SILENT, Progress
from .shared_options import (
    CalibrateOnOption,
    Device,
    EmbeddingKeys,
    Engine,
    Model,
    OsaFunction,
    Overwrite,
    Preprocess,
    Pretrained,
    PricePerHour,
    Scale,
    ScoresOut,
    Shift,
    sources_option,
)

if TYPE_CHECKING:
    from ncclean.data.shards import ShardRef
    from ncclean.execution.encoder import EncoderRequest
    from ncclean.execution.score_plan import ScorePlan
    from ncclean.storage.summary import ScoreSummary

_MOST_GROUPS = 30  # shown; `--json` has all
_MANY_CUT = 0.01


@dataclass(frozen=True, kw_only=True)
class Score(Command):
    """Score every pair of a corpus into a Parquet table.

    Each pair gets one row: cosine, OSA weight, NCU split, DisNCL filter, ranks and a calibrated
    probability of being mismatched, or the reason why it has no scores. Embeddings of pairs need no
    model. Interrupted runs resume.

    Example: `ncclean score shards/ --out scores.parquet`
    """

    name = "score"
    summary = "Score every pair of a corpus into Parquet."
    resume_hint = "run the same command again to resume; finished shards are kept"
    has_record = True

    shards: Annotated[Sequence[str], sources_option("SOURCES", typed_default=())]
    out: ScoresOut
    format: Annotated[
        SourceFormat, Option("Kind of sources: `webdataset`, `images`, `embeddings` or `auto`.")
    ] = "auto"
    source_options: SourceOptions = field(default_factory=SourceOptions)
    model: Model = DEFAULT_MODEL
    pretrained: Pretrained = None
    preprocess: Preprocess = None
    embedding_keys: EmbeddingKeys = None
    scale: Scale = None
    options: ScoreOptions = field(default_factory=ScoreOptions)
    shift: Shift = "auto"
    osa_function: OsaFunction = "high_degree"
    calibrate_on: CalibrateOnOption = "auto"
    precision: Annotated[
        str,
        Option(
            "`fp32`, `tf32`, `bf16`, `fp16`, or `auto`: `bf16` where it is native.", source="images"
        ),
    ] = "auto"
    device: Device = "auto"
    compiled: Annotated[
        bool, Option("Use torch.compile; pays off only on GPUs.", name="compile", source="images")
    ] = False
    engine: Engine = "auto"
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    drop_missing: Annotated[
        bool, Option("Remove the rows of shards that no longer exist.", is_idle=True)
    ] = False
    overwrite: Overwrite = False
    dry_run: Annotated[bool, Option(DRY_RUN, in_recipes=False)] = False
    price_per_hour: PricePerHour = None
    finalize_only: Annotated[
        bool, Option("Only calibrate again, e.g. with another --shift.", in_recipes=False)
    ] = False
    calibrate_with: Annotated[
        str | None,
        Option(
            "With --finalize-only: answers of `ncclean audit` to calibrate by.",
            reads=Reads.PATH,
            in_recipes=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shift", parse_shift(self.shift))
        object.__setattr__(self, "scale", parse_scale(self.scale))
        parse_keys(self.embedding_keys)
        if self.engine == "local" and self.cluster != ClusterOptions():
            raise InputError(
                "--ray-address, --workers and the -per-worker options need --engine ray"
            )
        if self.calibrate_with is not None and not self.finalize_only:
            raise InputError(
                "--calibrate-with needs --finalize-only: the answers are about scored pairs"
            )
        if self.finalize_only and self.drop_missing:
            raise InputError(
                "--drop-missing compares the table with SOURCES, and --finalize-only takes none: "
                "leave one of the two out"
            )

    def run(self, progress: Progress = SILENT) -> Result[ScoreSummary] | Result[ScorePlan]:
        """Score the shards not scored yet, and finalize; see `ncclean.execution.score_corpus`."""
        calibration = CalibrationOptions(
            shift=self.shift, osa_function=self.osa_function, calibrate_on=self.calibrate_on
        )
        if self.finalize_only:
            from ncclean.execution.score_corpus import calibrate_again

            scored = calibrate_again(
                self.out,
                calibration,
                answers=self.calibrate_with,
                cluster=self._cluster,
                progress=progress,
            )
            return score_result(self, scored)
        from ncclean.data.sources import resolve_sources

        # Before torch is loaded, which takes seconds: a wrong path is reported at once.
        shards = resolve_sources(self.shards, self.format, self.source_options)
        request = self._request(shards)
        if self.dry_run:
            from ncclean.execution.score_plan import plan

            estimate = plan(shards, request, self.options, self.cluster.workers or 1, progress)
            lines = _plan_lines(estimate, self.options.caption_parts is not None)
            return self.planned(estimate, lines, estimate.hours * estimate.workers)
        from ncclean.execution.score_corpus import ScoreCorpus

        corpus = ScoreCorpus(
            shards=shards,
            request=request,
            out=self.out,
            options=self.options,
            calibration=calibration,
            cluster=self._cluster,
            drop_missing=self.drop_missing,
            overwrite=self.overwrite,
        )
        return score_result(self, corpus.run(progress), self.options.embeddings)

    @property
    def _cluster(self) -> ClusterOptions | None:
        """Return the Ray cluster: `auto` uses one with an address, or with several GPUs visible."""
        if self.engine != "auto":
            return self.cluster if self.engine == "ray" else None
        if self.cluster == ClusterOptions():
            import torch

            if self.device != "auto" or torch.cuda.device_count() < 2:
                return None
        return self.cluster

    def _request(self, shards: list[ShardRef]) -> EncoderRequest:
        """The request for the encoder of the shards: a model, or embeddings."""
        from ncclean.data.sources import are_embeddings
        from ncclean.workers.fork_server import SERVER

        if not are_embeddings(shards) and self._cluster is None:
            # Meanwhile: loading the model takes this process as long.
            SERVER.imports("ncclean.execution.shard_reader")
        from ncclean.execution.embedding_encoder import EmbeddingRequest
        from ncclean.execution.image_encoder import ImageRequest
        from ncclean.models.request import ModelRequest, scale_of

        model = ModelRequest(
            model=self.model,
            pretrained=self.pretrained,
            preprocess=self.preprocess,
            precision=self.precision,
            device=self.device,
            compiled=self.compiled,
            space="auto",
        )
        if not are_embeddings(shards):
            check_source(self, "images")
            return ImageRequest(model)
        check_source(self, "embeddings")
        scale = scale_of(self.scale, model)
        if self.shift == "noise" and not isinstance(scale, ModelRequest):
            raise InputError("--shift noise needs a model: name it with --scale")
        return EmbeddingRequest.of(shards, parse_keys(self.embedding_keys), scale, self.device)

    def table_columns(self) -> frozenset[str] | None:
        """Return the columns of the score table under these options; None with `--columns`."""
        from ncclean.base import schema
        from ncclean.data import image_signals, languages, text_signals

        if self.options.columns:
            return None
        names = {*schema.SCORES.names}
        names |= {text.partition("=")[0] for text in self.options.head or ()}
        names |= {*schema.WORD_TYPES} if self.options.words else set()
        names |= {*schema.PART_TYPES} if self.options.caption_parts else set()
        names |= {schema.CANONICAL.name} if self.options.canonical else set()
        signals = {"image": image_signals, "language": languages, "text": text_signals}
        for name in self.options.signals or ():
            names |= {*signals[name].TYPES}
        return frozenset(names)


def score_result(
    command: Command, scored: ScoreSummary, embeddings: str | None = None
) -> Result[ScoreSummary]:
    """Return the result of a command that writes a score table."""
    figures = {"rows": f"{scored.rows:,}", "ok": f"{scored.ok:,}"}
    if scored.noise_rate.is_known:
        figures["noise rate"] = short_rate(scored.noise_rate)
    if scored.shift_deviation is not None:
        figures["random pairs"] = f"{scored.shift:.3f} ± {scored.shift_deviation:.3f}"
    files = [scored.out, *([embeddings] if embeddings is not None else [])]
    return command.result(
        scored, _summary(scored), figures=figures, made=files, is_empty=not scored.ok
    )


def _summary(scored: ScoreSummary) -> Iterator[Shown]:
    from ncclean.models.preprocessing import OPENAI, describe
    from ncclean.scoring.vague_rate import NO_KNOWN_MISMATCHES, why_untold, why_vague

    rows = [("rows", f"{scored.rows:,}"), ("ok", f"{scored.ok:,}")]
    rows += [(status, f"{count:,}") for status, count in scored.failures.items()]
    rows.append(("shards", f"{scored.shards:,} ({scored.shards_failed:,} failed)"))
    if scored.model is not None:
        rows.append(("model", scored.model))
    if scored.noise_rate.is_known:
        rate = stated_rate(scored.noise_rate)
        if scored.audited is not None:
            rate += f", measured by {scored.audited:,} answers"
        rows += [("noise rate", rate), ("calibrated on", scored.calibrated_on)]
    rows += within_captions(vars(scored), scored.near_miss_rate, scored.part_noise_rate)
    rows.append(("shift", f"{scored.shift:.4f}"))
    if scored.shift_deviation is not None:
        spread = f"cosine {scored.shift:.4f}, standard deviation {scored.shift_deviation:.4f}"
        rows.append(("random pairs", spread))
    if scored.preprocessing not in (None, OPENAI):
        rows.append(("preprocessing", describe(scored.preprocessing)))
    rows += noticed(vars(scored))
    if scored.split_keys:
        rows.append(("keys to the last dot", f"{scored.split_keys:,} samples"))
    if scored.samples_per_second is not None:
        speed = f"{scored.samples_per_second:,.0f} samples/s, {scored.seconds:,.1f} s in all"
        rows.append(("speed", speed))
    rows.append(("written to", scored.out))
    if spent := sum(scored.times.values()):
        phases = sorted(scored.times.items(), key=lambda one: -one[1])
        rows.append(("time went to", ", ".join(f"{name} {share(s / spent)}" for name, s in phases)))
    yield facts(rows)
    why = why_vague(scored.noise_rate)
    if scored.ok and not scored.noise_rate.is_known:
        why = NO_KNOWN_MISMATCHES
    if why is not None and scored.audited is None:
        yield Note(why, "error")
    yield from map(
        Note,
        why_untold(
            scored.has_words, scored.has_parts, scored.near_miss_rate, scored.part_noise_rate
        ),
    )
    yield from map(Note, map(str, scored.foreign_languages))
    if scored.groups:
        yield Table("Noise by group", ("group", "pairs", "noise rate", "null"), _groups(scored))
    elif scored.calibrate_by is not None:
        yield Note("no pair has a group: check --calibrate-by", "error")
    for name, count in scored.column_failures.items():
        error = scored.column_errors[name]
        yield Note(f"{name} failed for {count:,} pairs, whose columns are null: {error}", "error")
    if scored.captions_cut and scored.context_length and not scored.has_parts:
        yield from _cut_note(scored.captions_cut / max(scored.ok, 1), scored.context_length)
    yield from failure_notes(scored.rows, scored.ok, scored.failures, scored.fields_there)


def within_captions(
    fields: Mapping[str, Any], words: Estimate, parts: Estimate
) -> Iterator[tuple[str, str]]:
    """Yield lines, as name and text, on how many captions have a wrong word or sentence.

    `fields` are those of a summary, or its JSON.
    """
    from ncclean.scoring.vague_rate import is_usable

    for name, rate, of_which, is_asked in (
        ("a wrong word", words, "of the others", fields["has_words"]),
        (
            "wrong sentences",
            parts,
            "of the sentences of matched captions with several",
            fields["has_parts"],
        ),
    ):
        if is_usable(rate):
            yield name, f"{stated_rate(rate)} {of_which}"
        elif is_asked:
            yield name, "this model cannot tell"


def noticed(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield lines, as name and text, on what scoring did to captions and images, or skipped.

    `fields` are those of a summary, or its JSON.
    """
    if cut := fields["captions_cut"]:
        length = fields["context_length"]
        yield "captions cut", f"{cut:,} ({share(cut / fields['ok'])}), at {length} tokens"
    for name in ("further_images", "further_captions"):
        if fields[name]:
            yield name.replace("_", " "), f"{by_name(fields[name])}, not scored"
    if fields["other_names"]:
        yield "found by another name", f"images: {by_name(fields['other_names'])}"
    if lines := fields["caption_lines"]:
        what = f"{lines:,} files, one caption each; --caption-key txt.lines takes"
        yield "several lines", f"{what} each line"
    if turned := fields["turned"]:
        what = "turned upright by their EXIF; --no-exif leaves them as they lie"
        yield "phone pictures", f"{turned:,} {what}"


def _cut_note(part: float, context: int) -> Iterator[Note]:
    """Say if the model has not read many captions to their end."""
    if part > _MANY_CUT:
        yield Note(
            f"the model reads the first {context} tokens of a caption, and {share(part)} of the "
            "captions are longer: add --caption-parts sentences to check each sentence"
        )


def _groups(scored: ScoreSummary) -> tuple[tuple[str, ...], ...]:
    """Return the largest groups first."""
    largest = sorted(scored.groups, key=lambda one: -one.pairs)
    return tuple(
        (
            one.group if one.group is not None else "(no label)",
            f"{one.pairs:,}",
            stated_rate(one.noise_rate),
            "its own" if one.own_null else "of all",
        )
        for one in largest[:_MOST_GROUPS]
    )


def _plan_lines(plan: ScorePlan, has_parts: bool) -> Iterator[Shown]:
    yield f"{counted(plan.shards, 'shard')}, {file_size(plan.bytes)}, about {plan.pairs:,} pairs"
    yield (
        f"{plan.samples_per_second:,.0f} samples/s on {plan.device} in {plan.precision} "
        "(without reading)"
    )
    if plan.further_texts:
        yield (
            f"{plan.further_texts:,.1f} further texts to encode for each of the first captions "
            "(sentences, other words)"
        )
    if plan.cut_share is not None and plan.context_length is not None:
        yield f"{share(plan.cut_share)} of the first captions exceed {plan.context_length} tokens"
        if not has_parts:
            yield from _cut_note(plan.cut_share, plan.context_length)
    worker = "one GPU" if plan.gpu_hours is not None else "one worker"
    yield f"about {hours(plan.worker_hours)} of {worker}"
    if plan.workers > 1:
        yield on_workers(plan.hours, plan.workers, plan.busy_workers)
    else:
        yield f"at most {counted(plan.shards, 'worker')} can be busy: a shard is one worker's"
    yield (
        f"{file_size(plan.read_bytes_per_second)}/s to read, "
        f"about {file_size(plan.bytes_written)} to write"
    )
