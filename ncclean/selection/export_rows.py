"""The selected samples of a task as rows: Parquet with the images, or files with their rows."""

from __future__ import annotations

import base64
import contextlib
import posixpath
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ncclean.atomic import published
from ncclean.data.images.columns import image_column
from ncclean.data.images.layout import RowLayout
from ncclean.data.images.registry import has_rows, layout_of
from ncclean.data.reader import read_samples
from ncclean.data.samples import Sample, SkipReason
from ncclean.errors import ShardError
from ncclean.scratch import scratch_folder
from ncclean.selection.export_plan import ExportTask, Segment
from ncclean.selection.export_task import (
    Chosen,
    ExportOptions,
    ShardReport,
    copy_key,
    finish_task,
    open_chosen,
)
from ncclean.selection.exported_files import ImageFiles, RowLines
from ncclean.selection.exported_rows import (
    ExportedRow,
    ExportedSample,
    copied,
    image_path,
    left_out,
    one_caption_each,
    own_key,
    rows_of_members,
    rows_of_table,
)
from ncclean.selection.out_layout import PARQUET, has_files
from ncclean.selection.parquet_pieces import ParquetPieces, join_parquet, schema_of
from ncclean.storage.catalog import connect
from ncclean.storage.quoting import identifier


def export_rows(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write the samples of a task as Parquet, or as images with their rows; statistics come last.

    Samples that the input lacks are counted as missing; an input shard that cannot be read is an
    error of the report, not of the export. Raises `InputError` if the output cannot be written.
    """
    begin = time.time()
    report = ShardReport(task.number)
    write = _write_parquet if options.layout.name == "parquet" else _write_files
    with scratch_folder() as scratch:
        write(task, options, report, scratch)
    finish_task(task, options, report, begin)
    return report


def _write_parquet(
    task: ExportTask, options: ExportOptions, report: ShardReport, scratch: Path
) -> None:
    pieces = ParquetPieces(scratch, _types(options))
    for sample in _samples(task, options, report):
        for row in sample.rows:
            row.embed(sample.image, sample.path)
        pieces.add(sample.rows, len(sample.image))
        report.samples += 1
    _publish_pieces(pieces.finish(), task, options, report)


def _write_files(
    task: ExportTask, options: ExportOptions, report: ShardReport, scratch: Path
) -> None:
    targets = options.targets
    name = targets.name(task.number)
    is_parquet = options.layout.table.endswith(PARQUET)
    pieces = ParquetPieces(scratch, _types(options))
    with open(scratch / "rows.jsonl", "w", encoding="utf-8", newline="") as text:
        lines = RowLines(text)
        files = ImageFiles(
            targets.out,
            targets.work,
            name,
            (lambda rows, _: pieces.add(rows)) if is_parquet else lines.add,
            options.layout.path_column,
            options.layout.beside,
        )
        for sample in _samples(task, options, report):
            files.add(sample)
        files.finish()
    report.samples, report.bytes, report.columns = files.samples, files.bytes, [*lines.columns]
    if files.problems:
        add_problems(report.errors, task.segments[0].name, files.problems)
    if is_parquet:
        _publish_pieces(pieces.finish(), task, options, report)
        return
    with published(targets.data(task.number)) as aside:
        shutil.move(scratch / "rows.jsonl", aside)
    report.bytes += targets.data(task.number).stat().st_size


def _publish_pieces(
    pieces: list[Path], task: ExportTask, options: ExportOptions, report: ShardReport
) -> None:
    if not pieces:
        return
    with published(options.targets.data(task.number)) as aside:
        if len(pieces) == 1:
            shutil.move(pieces[0], aside)
        else:
            join_parquet(pieces, aside)
        report.bytes += aside.stat().st_size
        report.schema = base64.b64encode(schema_of(aside).serialize()).decode()


def _types(options: ExportOptions) -> Mapping[str, pa.DataType]:
    """The types of the columns to add."""
    if not options.columns:
        return {}
    with contextlib.closing(connect(options.scores)) as connection:
        names = ", ".join(map(identifier, options.columns))
        table: Any = connection.sql(f"SELECT {names} FROM scores LIMIT 0").to_arrow_table()
        return {field.name: field.type for field in table.schema}


def _samples(
    task: ExportTask, options: ExportOptions, report: ShardReport
) -> Iterator[ExportedSample]:
    """The selected samples of a task, copies too, to be written with `report` of what is wrong."""
    taken: dict[str, int] = {}
    with open_chosen(options) as read_chosen:
        for segment in task.segments:
            problems: list[str] = []
            chosen = read_chosen(segment)
            try:
                for sample in _of_segment(segment, chosen, options, report, problems):
                    own_key(sample.rows, taken)
                    yield sample
            except ShardError as error:
                problems.append(str(error))
            if problems:
                add_problems(report.errors, segment.name, problems)


def _of_segment(
    segment: Segment,
    chosen: Chosen,
    options: ExportOptions,
    report: ShardReport,
    problems: list[str],
) -> Iterator[ExportedSample]:
    lacking, place = sum(chosen.copies.values()), 0
    shard = segment.shard
    samples = read_samples(shard, options.caption_key, wanted=chosen.copies, whole=True)
    layout = layout_of(shard)
    names = layout.written_names(shard) if isinstance(layout, RowLayout) else {}
    try:
        for sample in samples:
            is_there = sample.image is not None and sample.status is not SkipReason.DUPLICATE_KEY
            if sample.key not in chosen.copies or not is_there:
                continue
            for copy in range(chosen.copies[sample.key]):
                is_here = segment.first <= place < segment.first + segment.count
                place, lacking = place + 1, lacking - 1
                if not is_here:
                    continue
                exported = _exported(sample, copy, segment, options, chosen, names, problems)
                if exported is None:
                    lacking += 1
                else:
                    report.further_images += 0 if names else len(sample.further_images)
                    yield exported
    finally:
        if lacking:
            report.missing[segment.name] = lacking
    late = sum(1 for fields in samples.late_metadata.values() if fields)
    if late:
        problems.append(f"the json of {late:,} samples lies behind other samples: it is left out")


def _exported(
    sample: Sample,
    copy: int,
    segment: Segment,
    options: ExportOptions,
    chosen: Chosen,
    names: Mapping[str, str],
    problems: list[str],
) -> ExportedSample | None:
    """A sample to write; None if it lacks the caption that was selected."""
    shard = segment.shard
    rows: list[ExportedRow] | None
    if has_rows(shard):
        rows = rows_of_table(sample, chosen.captions, options.caption_key, names, shard.image_key)
        if options.layout.name == "csv" and rows:
            rows = one_caption_each(rows, options.caption_key)
        is_file = image_column(sample.rows[0], shard.image_key)[1] is None
    else:
        column = options.layout.caption_column
        rows = rows_of_members(sample, chosen.captions, column)
        is_file = has_files(shard)
    if not rows:
        return None
    if (why := left_out(rows)) is not None:
        problems.append(f"{sample.key}: {why}, which is left out")
    for row in rows:
        numbers = None if row.captions is None else set().union(*row.captions.values())
        row.add_fields(sample, segment.name, chosen.fields_of(sample.key, numbers))
    root = shard.files[0] if is_file else None
    number, folder = options.layout.table_folder(root)
    for row in rows:
        row.table = number
    path = posixpath.join(
        options.layout.image_folder(root, segment.name),
        image_path(sample, root if has_rows(shard) else None, shard.image_key),
    )
    if copy:
        copied(rows, copy_key(sample.key, copy))
        stem, ending = posixpath.splitext(path)
        path = f"{copy_key(stem, copy)}{ending}"
    caption = None if has_rows(shard) else rows[0].values[options.layout.caption_column]
    return ExportedSample(sample.image or b"", path, caption, rows, folder)


def add_problems(errors: dict[str, str], name: str, problems: list[str]) -> None:
    """Add to the error of a shard the first of its problems, and how many more there are."""
    others = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    before = f"{errors[name]}; " if name in errors else ""
    errors[name] = f"{before}{problems[0]}{others}"
