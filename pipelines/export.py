"""`ncclean export`: write the samples of a selection as shards, or their uids to a file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from ncclean.base.config import DRY_RUN, TaskOptions
from ncclean.base.formats import counted, file_size, hours, on_workers
from ncclean.base.options import CaptionKeys, Option, Reads
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError

from .command import Command, Result, lists_tables_once
from .display import Note, Shown
from .progress import SILENT, Progress
from .shared_options import Join, OutputLayout, Overwrite, PricePerHour, ScoredShards

if TYPE_CHECKING:
    from ncclean.data.shards import ShardRef
    from ncclean.exporting.cost import ExportPlan
    from ncclean.exporting.export import ExportSummary


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write the selected samples as tars, Parquet, images with a table, or DataComp's uid file.

    Images, and all members of tars, are copied byte for byte; keys, order and other columns stay.
    Interrupted exports resume.

    Example: `ncclean export clean.parquet --shards shards/ --out clean/`
    """

    name = "export"
    summary = "Write the selected samples, images byte for byte."
    resume_hint = "run the same command again to go on"
    has_record = True

    selection: Annotated[
        str,
        Option(
            "Output of `ncclean select`.", argument=True, metavar="SELECTION", reads=Reads.TABLE
        ),
    ]
    out: Annotated[str, Option("Folder, .parquet file, or .npy file for the uids.", inside="")]
    shards: ScoredShards = ()
    source_options: SourceOptions = field(default_factory=SourceOptions)
    caption_key: CaptionKeys = None
    layout: OutputLayout = "webdataset"
    samples_per_shard: Annotated[int, Option("Samples per shard.", low=1)] = 10_000
    scores: Annotated[
        Sequence[str],
        Option("Score files whose --columns to add to each sample's json.", reads=Reads.TABLE),
    ] = ()
    columns: Annotated[
        Sequence[str],
        Option(
            "Columns of --scores and --join to add; of several captions, the best one's.",
            commas=True,
            columns_of=("scores", "join"),
        ),
    ] = ("similarity", "noise_probability", "osa_weight", "neg_clip_loss")
    join: Join = ()
    fix: Annotated[
        Literal["shift"] | None,
        Option("Shift captions back to their images, by --causes.", metavar="shift"),
    ] = None
    causes: Annotated[
        str | None, Option("Output of `ncclean explain --embeddings`, for --fix.", reads=Reads.PATH)
    ] = None
    repeat: Annotated[bool, Option("Repeat each sample by its weight, once on average.")] = False
    tasks: TaskOptions = field(default_factory=TaskOptions)
    overwrite: Overwrite = False
    dry_run: Annotated[bool, Option(DRY_RUN, in_recipes=False)] = False
    price_per_hour: PricePerHour = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dry_run and self.is_uid_file:
            raise InputError(
                "--dry-run is for shards; writing a uid file takes seconds: leave it out"
            )
        if not self.is_uid_file and not self.shards:
            raise InputError("export needs --shards, or an --out that ends in .npy for the uids")
        if (self.fix is None) != (self.causes is None):
            raise InputError(
                "--fix shift and --causes need one another: the causes say what to fix"
            )
        if self.join and not self.scores:
            raise InputError("--join needs --scores, the table to join to")

    @property
    def is_uid_file(self) -> bool:
        return self.out.endswith(".npy")

    @lists_tables_once
    def run(self, progress: Progress = SILENT) -> Result[ExportSummary] | Result[ExportPlan]:
        """Write the selected samples as shards, or their uids; see `ncclean.exporting.export`."""
        fixes, shifted = self._fixes()
        if self.dry_run:
            estimate = self._plan(fixes, progress)
            return self.planned(estimate, _plan_lines(estimate), estimate.hours * estimate.workers)
        progress.say(f"writing to {self.out}")
        exported = (
            self._export_uids(fixes) if self.is_uid_file else self._export_shards(fixes, progress)
        )
        exported = dataclasses.replace(exported, shifted=shifted)
        missing = {
            name: f"{count:,} selected samples are not in the shard"
            for name, count in exported.missing.items()
        }
        figures = {"samples": f"{exported.samples:,}"}
        if exported.shards:
            figures["shards"] = f"{exported.shards:,}"
        return self.result(
            exported,
            _summary(exported),
            figures=figures,
            made=[self.out],
            failures={**exported.errors, **missing},
        )

    def _fixes(self) -> tuple[str | None, int | None]:
        """Return the decisions of --fix, and how many captions they shift back."""
        if self.causes is None:
            return None, None
        from ncclean.explaining.fixes import read_fixes

        return read_fixes(self.causes)

    def _export_uids(self, fixes: str | None) -> ExportSummary:
        from ncclean.base import stores
        from ncclean.base.output_mark import check_free
        from ncclean.exporting.uid_file import export_uids

        check_free([self.out], self.name, self.overwrite)
        return export_uids(self.selection, stores.location(self.out), fixes)

    def _export_shards(self, fixes: str | None, progress: Progress) -> ExportSummary:
        from ncclean.base import stores
        from ncclean.base.options import usable_cores
        from ncclean.exporting.export import export_shards
        from ncclean.exporting.out_layout import out_layout
        from ncclean.runners.opened import open_runner

        shards = self._selected_shards(fixes, progress)
        with open_runner(self.tasks, self.tasks.workers or usable_cores()) as runner:
            return export_shards(
                self.selection,
                shards,
                stores.location(self.out),
                layout=out_layout(self.layout, self.out, shards, self.shards),
                samples_per_shard=self.samples_per_shard,
                scores=self.scores,
                join=self.join,
                columns=self.columns if self.scores else (),
                repeat=self.repeat,
                caption_key=self._captions(fixes),
                fixes=fixes,
                runner=runner,
                overwrite=self.overwrite,
                progress=progress,
            )

    def _plan(self, fixes: str | None, progress: Progress) -> ExportPlan:
        from ncclean.exporting.cost import plan
        from ncclean.exporting.out_layout import out_layout

        shards = self._selected_shards(fixes, progress)
        return plan(
            self.selection,
            shards,
            self.out,
            layout=out_layout(self.layout, self.out, shards, self.shards),
            samples_per_shard=self.samples_per_shard,
            scores=() if self.join else self.scores,  # joined once, not by each task
            columns=self.columns,
            repeat=self.repeat,
            caption_key=self._captions(fixes),
            fixes=fixes,
            workers=self.tasks.workers,
            overwrite=self.overwrite,
            progress=progress,
        )

    def _selected_shards(self, fixes: str | None, progress: Progress) -> list[ShardRef]:
        """The shards to read. Raises `InputError` if one of the tables is about others."""
        from ncclean.data.sources import resolve_pairs
        from ncclean.storage.same_corpus import as_scored

        shards = resolve_pairs(self.shards, self.source_options)
        say_once = functools.cache(progress.say)
        for tables in filter(None, ([self.selection], list(self.scores), [fixes] if fixes else [])):
            shards = as_scored(tables, shards, say_once)
        return shards

    def _captions(self, fixes: str | None) -> CaptionKeys:
        """Return the keys of the tables' captions. Raises `InputError` for others."""
        from ncclean.storage.same_corpus import captions_as_scored

        tables = [self.selection, *self.scores, *([fixes] if fixes else [])]
        return captions_as_scored(tables, self.caption_key)


def _summary(exported: ExportSummary) -> Iterator[Shown]:
    shards = f"{counted(exported.shards, 'shard')}, " if exported.shards else ""
    yield f"{shards}{exported.samples:,} samples, {file_size(exported.bytes)} in {exported.out}"
    if exported.further_images:
        yield Note(
            f"{counted(exported.further_images, 'further image')} left out: {exported.layout} has "
            "one for each sample; --layout webdataset copies all"
        )
    if exported.walked:
        yield Note(
            f"{counted(len(exported.walked), 'shard')} written anew since the scoring (first: "
            f"{exported.walked[0]}): samples are not where the selection says, and were searched"
        )
    if exported.changed_images:
        yield Note(
            f"{counted(exported.changed_images, 'image')} with another size than when scored: the "
            "scores are of what was there"
        )
    if exported.shifted is not None:
        yield f"{counted(exported.shifted, 'caption')} shifted back"
    if exported.mended_lost:
        yield Note(
            f"uids say nothing of captions: the mended ones of {exported.mended_lost:,} samples "
            "are not in the file; export shards to have them"
        )


def _plan_lines(plan: ExportPlan) -> Iterator[Shown]:
    yield (
        f"{plan.samples:,} samples of {counted(plan.input_shards, 'shard')} to "
        f"{counted(plan.shards, 'shard')}, "
        f"{plan.shards_done:,} of them done"
    )
    yield (
        f"about {file_size(plan.bytes_read)} to read, {file_size(plan.bytes_written)} to write, "
        f"{file_size(plan.temporary_bytes)} of temporary files"
    )
    yield f"{plan.samples_per_second:,.0f} samples/s by one worker (one input shard)"
    yield f"about {hours(plan.processor_hours)} of a core"
    yield on_workers(plan.hours, plan.workers, plan.busy_workers)
    yield f"{file_size(plan.memory_bytes)} of memory for each"
