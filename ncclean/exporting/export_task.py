"""One task of an export with the writer of its form."""

from __future__ import annotations

import contextlib

from ncclean.exporting.plan import ExportTask
from ncclean.exporting.tars import TarWriter
from ncclean.exporting.task import ExportOptions, ShardReport, export_segments
from ncclean.exporting.writers import ImageWriter, ParquetWriter


def export_task(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write the samples of a task, each file published whole; `_stats.json` comes last."""
    report = ShardReport(task.number)
    layouts = {"webdataset": TarWriter, "parquet": ParquetWriter}
    writer = layouts.get(options.layout.name, ImageWriter)
    with contextlib.ExitStack() as stack:
        export_segments(writer(task, options, report, stack))
    return report
