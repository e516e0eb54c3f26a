"""`ncclean clean`: score, report, select and export in one command, the bundled recipe `clean`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.config import (
    DEFAULT_MODEL,
    DRY_RUN,
    RAY_ADDRESS,
    CalibrateBy,
    CaptionParts,
    Signals,
    Words,
)
from ncclean.base.estimates import Estimate
from ncclean.base.formats import counted, file_size, stated_rate
from ncclean.base.option_values import values_by_name
from ncclean.base.options import CaptionKeys, Option, parameters
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Command, Result
from .display import Note, Shown, failure_notes
from .export import Export
from .progress import SILENT, Progress
from .report import Report
from .run import planned, result_of
from .score import Score, noticed, within_captions
from .select import Select, mended_line
from .shared_options import (
    Device,
    EmbeddingKeys,
    Engine,
    Model,
    OutputLayout,
    Precision,
    Preprocess,
    Pretrained,
    PricePerHour,
    sources_option,
)

if TYPE_CHECKING:
    from .recipe.plan import PlannedStage
    from .recipe.run import RunSummary

# Options of the whole, though stages have them, too; on a cluster only the scoring runs.
_OF_CLEAN = {"out", "dry_run", "price_per_hour", "layout", "embeddings"}
_OF_SCORING = {"engine", "ray_address"}


@dataclass(frozen=True, kw_only=True)
class Clean(Command):
    """Score a corpus, report on it, and write it without the mismatched pairs.

    OUT gets scores.parquet, report.html, clean.parquet (which pairs are kept) and clean/, the kept
    pairs in the form of the input: tars as they are, or a folder of images, a table or Parquet with
    noise columns added. Embeddings need no model; for them, OUT gets uids.npy, the uids of the kept
    pairs, in place of clean/. Run the command again after an interruption, or with other options:
    only what they affect is done again.

    Example: `ncclean clean shards/ --out cleaned/`
    """

    name = "clean"
    summary = "Score, report, select and export in one command."
    resume_hint = "run the same command again to go on; finished stages are kept"
    is_stage = False

    source: Annotated[Sequence[str], sources_option("SOURCE")]
    out: Annotated[str, Option("Folder of the results.", metavar="PATH", local=True)]
    model: Model = DEFAULT_MODEL
    pretrained: Pretrained = None
    preprocess: Preprocess = None
    caption_key: CaptionKeys = None
    embedding_keys: EmbeddingKeys = None
    source_options: SourceOptions = field(default_factory=SourceOptions)
    calibrate_by: CalibrateBy = None
    signals: Signals = None
    words: Words = False
    caption_parts: CaptionParts = None
    embeddings: Annotated[
        bool, Option("Write embeddings, by which `review` searches and proposes captions.")
    ] = True
    threshold: Annotated[
        float, Option("Drop pairs with at least this noise probability.", low=0, high=1)
    ] = 0.5
    where: Annotated[str | None, Option("SQL condition that kept pairs must also meet.")] = None
    layout: OutputLayout = "auto"
    samples_per_shard: Annotated[int, Option("Samples per shard.", low=1)] = 10_000
    precision: Precision = "auto"
    device: Device = "auto"
    engine: Engine = "auto"
    ray_address: Annotated[str | None, Option(RAY_ADDRESS)] = None
    dry_run: Annotated[bool, Option(DRY_RUN)] = False
    price_per_hour: PricePerHour = None

    def run(self, progress: Progress = SILENT) -> Result[Any]:
        """Run or resume the bundled recipe `clean`, or show its plan."""
        from ncclean.data.images.folders import Folder
        from ncclean.data.sources import are_embeddings, resolve_sources
        from ncclean.exporting.out_layout import form_of

        from .recipe.bundled import find_recipe
        from .recipe.load import load_recipe
        from .recipe.plan import plan
        from .recipe.run import run

        # The first source decides; a mixture is an error of `score`, which resolves all.
        first = resolve_sources(self.source[:1], "auto", self.source_options)
        if any(shard.layout == Folder.name for shard in first):
            _check_outside(self.out, self.source)
        is_embedded = are_embeddings(first)
        recipe = find_recipe("clean_embeddings" if is_embedded else "clean")
        options = values_by_name(self)
        changes = [
            f"{target}={json.dumps(options[option])}"
            for target, option in _targets()
            if options[option] is not None
        ]
        if not is_embedded:
            layout = form_of(first) if self.layout == "auto" else self.layout
            changes.append(f"export.layout={layout}")
            if self.embeddings:
                changes.append("score.embeddings=${run}/embeddings")
            if layout != "webdataset":
                changes.append("export.scores=${score}")
        if self.caption_parts is not None:
            changes += ["select.drop_parts=true", f"select.part_threshold={self.threshold}"]
        flags = {
            target: option if option == "source" else f"--{option.replace('_', '-')}"
            for target, option in _targets()
        }
        loaded = load_recipe(recipe, Path(self.out), changes, flags)
        if self.dry_run:
            stages = plan(loaded)
            result = planned(self, stages)
            if is_embedded or not self.embeddings:
                return result
            return replace(result, shown=(*result.shown, *_size_of_embeddings(stages)))
        summary = run(loaded, progress)
        is_empty = not summary.records["select"].result["kept"]
        return replace(result_of(self, summary), shown=self._shown(summary), is_empty=is_empty)

    def _shown(self, summary: RunSummary) -> Iterator[Shown]:
        from ncclean.scoring.vague_rate import ForeignLanguage, why_untold, why_vague

        records = {name: record.result for name, record in summary.records.items()}
        score, clean, export = records["score"], records["select"], records["export"]
        rate = Estimate.of_fields(score, "noise_rate")
        if rate.is_known:
            yield f"noise rate {stated_rate(rate)}"
            vague = why_vague(rate)
            if vague is not None:
                yield Note(vague, "error")
        within = [Estimate.of_fields(score, name) for name in ("near_miss_rate", "part_noise_rate")]
        yield from map(": ".join, within_captions(score, *within))
        yield from map(Note, why_untold(score["has_words"], score["has_parts"], *within))
        foreign = (ForeignLanguage(**one) for one in score.get("foreign_languages", ()))
        yield from map(Note, map(str, foreign))
        failures = "".join(f", {n:,} {status}" for status, n in score["failures"].items())
        yield f"{score['rows']:,} pairs: {score['ok']:,} scored{failures}; {clean['kept']:,} kept"
        yield from map(": ".join, noticed(score))
        fields = score.get("fields_there", ())
        yield from failure_notes(score["rows"], score["ok"], score["failures"], fields)
        expected = clean["expected_mismatched_kept"]
        if expected is not None:
            left = round(expected)
            what = counted(left, "mismatched pair")
            if self.caption_parts is not None:
                what = f"{counted(left, 'pair')} with a wrong caption or sentence"
            yield f"about {what} left among the kept ones"
        if clean.get("captions_mended"):
            yield mended_line(clean["captions_mended"], clean["parts_dropped"], clean["parts"])
        yield f"scores: {summary.folder}/scores.parquet"
        yield f"report: {summary.folder}/report.html"
        yield f"selection: {summary.folder}/clean.parquet"
        if (folder := Path(summary.folder) / "embeddings").is_dir():
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            yield f"embeddings, for review: {folder} ({file_size(size)})"
        what = {"uids": "uids", "webdataset": "clean shards"}.get(export["layout"], "clean pairs")
        yield f"{what}: {export['out']} ({export['samples']:,} samples)"
        if export["layout"] != "uids":
            words = [
                "ncclean",
                "review",
                f"{summary.folder}/scores.parquet",
                "--shards",
                *self.source,
            ]
            if self.source_options.image_root is not None:
                words += ["--image-root", self.source_options.image_root]
            command = shlex.join([*words, "--out", "decisions.parquet"])
            yield f"to look at pairs, and correct captions: {command}"


def _size_of_embeddings(stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Say how large the embeddings become, unless they exist."""
    from ncclean.execution.cost import embedding_bytes

    for stage in stages:
        if stage.command == Score.name and stage.action != "skip" and stage.pairs is not None:
            size = file_size(embedding_bytes(stage.pairs, 512))
            yield (
                f"embeddings take about {size} at 512 dimensions; --no-embeddings leaves them out"
            )


def _check_outside(out: str, sources: Sequence[str]) -> None:
    """Raise `InputError` for results in a folder of images, whose subfolders are also read."""
    for source in sources:
        if Path(out).resolve().is_relative_to(Path(source).resolve()):
            raise InputError(
                f"--out {out} lies in {source}: the pictures written there would be taken for "
                "more of the source next time; name a folder outside it"
            )


def _targets() -> Iterator[tuple[str, str]]:
    """Yield each option with its place in the recipe: every stage with an option of its name."""
    yield "source", "source"
    for stage in (Score, Select, Report, Export):
        others = _OF_CLEAN if stage is Score else _OF_CLEAN | _OF_SCORING
        for option in parameters(Clean):
            if option in parameters(stage) and option not in others:
                yield f"{stage.name}.{option}", option
