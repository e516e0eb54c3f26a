"""Run one task of an export: write the chosen samples of some input shards."""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, Sample, SkipReason
from ncclean.errors import ShardError
from ncclean.exporting.choices import Choice, Choices, choice_of, open_choices
from ncclean.exporting.out_layout import TARS, OutLayout, Targets
from ncclean.exporting.plan import ExportTask, Segment
from ncclean.exporting.rows import written_names_of


@dataclass(frozen=True)
class ExportOptions:
    """Options that every task of an export shares; paths may be URLs.

    `columns` of the score files `scores` are added to each sample's json. `repeats` is the factor
    of weights that says how often to write a sample; None means once. `caption_key` names the
    captions, if the selection distinguishes several. `fixes` are decisions of `ncclean explain`.
    """

    selection: str
    out: str
    digits: int = 5
    scores: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    repeats: float | None = None
    caption_key: CaptionKeys = None
    layout: OutLayout = TARS
    fixes: str | None = None

    @property
    def targets(self) -> Targets:
        """The paths of the export's files."""
        return Targets(self.layout, stores.location(self.out), self.digits)

    def absolute(self) -> ExportOptions:
        """Return the options with absolute paths, for a worker with another working folder."""
        return replace(
            self,
            selection=stores.absolute(self.selection),
            out=stores.absolute(self.out),
            scores=tuple(map(stores.absolute, self.scores)),
            fixes=None if self.fixes is None else stores.absolute(self.fixes),
        )


@dataclass
class ShardReport:
    """The outcome of an export task; `missing` counts selected samples that the input lacks.

    `further_images` counts images besides those of the samples, for which the layout has no place.
    `walked` are input tars that differ from those of the selection, whose samples were searched;
    `changed_images` have another size than when they were scored.

    For image files, `batches` is the number of their lists, `columns` are those of the rows by
    table, and `left_out` numbers the samples that could not be written. `schema` is the task's
    Parquet schema, Arrow's serialization in base64.
    """

    number: int
    samples: int = 0
    bytes: int = 0
    further_images: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    walked: list[str] = field(default_factory=list)
    changed_images: int = 0
    seconds: float = 0.0
    batches: int = 0
    columns: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)
    schema: str | None = None

    def statistics(self, task: ExportTask, begin: float) -> dict[str, Any]:
        """Return the fields of img2dataset's `_stats.json`, and where the samples came from."""
        fields = {
            "count": task.samples,
            "successes": self.samples,
            "failed_to_download": sum(self.missing.values()),
            "failed_to_resize": 0,
            "duration": round(self.seconds, 3),
            "start_time": begin,
            "end_time": begin + self.seconds,
            "status_dict": {"success": self.samples},
            "bytes": self.bytes,
            "missing": self.missing,
            "errors": self.errors,
            "sources": {segment.name: segment.count for segment in task.segments},
        }
        names = (
            "further_images",
            "walked",
            "changed_images",
            "batches",
            "columns",
            "left_out",
            "schema",
        )
        return fields | {name: value for name in names if (value := getattr(self, name))}


class Writer(ABC):
    """Writes the samples of an export task in one form, such as a tar or a Parquet file."""

    def __init__(
        self, task: ExportTask, options: ExportOptions, stack: contextlib.ExitStack
    ) -> None:
        self.task, self.options, self.report = task, options, ShardReport(task.number)
        self.stack = stack  # bytes to publish when everything is written
        self.taken: dict[str, int] = {}  # keys
        self.problems: list[str] = []  # of the current segment
        self.names: Mapping[str, str] = {}  # its columns as written

    def samples(self, segment: Segment, choices: Choices) -> Iterator[Sample]:
        """Yield the chosen samples of an input shard, among others, with their images."""
        self.names = written_names_of(segment.shard)
        samples = read_samples(segment.shard, self.options.caption_key, wanted=choices, whole=True)
        yield from (sample for sample in samples if sample.image is not None)
        if late := sum(1 for fields in samples.late_metadata.values() if fields):
            self.problems.append(
                f"the json of {late:,} samples lies behind other samples: it is left out"
            )

    @abstractmethod
    def add(self, sample: Sample, copy: int, choice: Choice, segment: Segment) -> bool:
        """Write a sample, or a copy of it; return false if it lacks a selected caption."""

    @abstractmethod
    def finish(self) -> None:
        """Publish the output of the task, once all samples are written."""


def export_segments(writer: Writer) -> None:
    """Write the samples of an export task; its statistics come last.

    Samples that the input lacks count as missing; an input shard that cannot be read is an error of
    the report, not of the export. Raises `InputError` if the output cannot be written.
    """
    task, options, report = writer.task, writer.options, writer.report
    begin = time.time()
    problems: dict[str, list[str]] = {}
    with open_choices(
        options.selection, options.fixes, options.repeats, options.scores, options.columns
    ) as choices_of:
        for segment in task.segments:
            writer.problems = problems.setdefault(segment.name, [])
            try:
                _export_segment(segment, choices_of(segment), writer)
            except ShardError as error:
                writer.problems.append(str(error))
    writer.problems = problems[task.segments[0].name]
    writer.finish()
    for name, several in problems.items():
        add_problems(report.errors, name, several)
    writer.stack.close()
    report.seconds = time.time() - begin
    with published(options.targets.stats(report.number)) as aside:
        aside.write_text(json.dumps(report.statistics(task, begin), indent=2) + "\n")


def _export_segment(segment: Segment, choices: Choices, writer: Writer) -> None:
    """Write the task's samples from an input shard. Raises `ShardError` at the end."""
    chosen = (choice for of_key in choices.values() for choice in of_key.values())
    lacking, place = sum(choice.copies for choice in chosen), 0
    try:
        for sample in writer.samples(segment, choices):
            choice = choice_of(choices, sample, segment.name)
            if choice is None or sample.status is SkipReason.DUPLICATE_KEY:
                continue
            sizes = {choice.image_size, sample.place.image_size} - {None}
            for copy in range(choice.copies):
                is_here = segment.first <= place < segment.first + segment.count
                place, lacking = place + 1, lacking - 1
                if is_here:
                    is_there = writer.add(sample, copy, choice, segment)
                    writer.report.samples += is_there
                    writer.report.changed_images += copy == 0 and len(sizes) > 1
                    lacking += not is_there
    finally:
        if lacking:
            writer.report.missing[segment.name] = lacking


def add_problems(errors: dict[str, str], name: str, problems: list[str]) -> None:
    """Add the first of a shard's problems, and the number of others, to its error."""
    if problems:
        others = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        before = f"{errors[name]}; " if name in errors else ""
        errors[name] = f"{before}{problems[0]}{others}"
