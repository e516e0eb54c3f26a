"""`ncclean export --dry-run`: estimate the cost of an export by measuring one input shard."""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ncclean.base import stores
from ncclean.base.options import usable_cores
from ncclean.base.progress import SILENT, Progress
from ncclean.base.scratch import scratch_folder
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.errors import InputError
from ncclean.exporting.out_layout import PARQUET, TARS, OutLayout
from ncclean.exporting.plan import ExportTask, digits_of, plan_selection
from ncclean.exporting.task import ExportOptions, ShardReport
from ncclean.exporting.writers import export_task
from ncclean.runners.process_runner import clock_share
from ncclean.storage.tables import listed


@dataclass(frozen=True)
class ExportPlan:
    """The estimated size and hours of an export, for `--dry-run`.

    `bytes_read` counts shards in object stores, compressed ones and those of other layouts in full,
    as often as a task takes samples from them. `processor_hours` is the sum over the `workers`, of
    which `busy_workers` have a shard to write at once, `hours` the elapsed time; both are for the
    unfinished shards. `memory_bytes` is what this process used for one task.
    """

    samples: int
    input_shards: int
    shards: int
    shards_done: int
    bytes_read: int
    bytes_written: int
    temporary_bytes: int
    memory_bytes: int
    samples_per_second: float
    processor_hours: float
    workers: int
    busy_workers: int
    hours: float


def plan(
    selection: str,
    shards: Sequence[ShardRef],
    out: str,
    *,
    samples_per_shard: int = 10_000,
    scores: Sequence[str] = (),
    columns: Sequence[str] = (),
    repeat: bool = False,
    caption_key: CaptionKeys = None,
    fixes: str | None = None,
    layout: OutLayout = TARS,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> ExportPlan:
    """Estimate an export by exporting its first input shard to a temporary folder.

    Raises `InputError` for a selection that does not fit the shards, or that is empty.
    """
    tasks, repeats = plan_selection(
        selection, shards, samples_per_shard, repeat=repeat, fixes=fixes, group_of=layout.group_of
    )
    if not tasks:
        raise InputError(f"{selection} is empty: there is nothing to export")
    progress.say("measuring the speed")
    options = ExportOptions(
        selection=selection,
        out=out,
        scores=tuple(scores),
        columns=tuple(columns) if scores else (),
        repeats=repeats,
        caption_key=caption_key,
        layout=layout,
        fixes=fixes,
    )
    report, seconds, processor = _first_shard(options, tasks[0])
    segments = [segment for task in tasks for segment in task.segments]
    samples = sum(segment.count for segment in segments)
    size = round(samples * report.bytes / max(report.samples, 1))
    done = 0 if overwrite else _done(options, tasks)
    waiting = len(tasks) - done
    left = samples * waiting / len(tasks)
    workers = workers or usable_cores()
    whole = [segment.shard for segment in segments if _is_read_whole(segment.shard)]
    share = sum(not _is_read_whole(segment.shard) for segment in segments) / len(segments)
    speed = max(report.samples, 1) / max(seconds, 1e-3)
    return ExportPlan(
        samples=samples,
        input_shards=len({segment.name for segment in segments}),
        shards=len(tasks),
        shards_done=done,
        bytes_read=sum(shard.size for shard in whole) + round(share * size),
        bytes_written=size,
        temporary_bytes=workers * max((shard.size for shard in whole), default=0),
        memory_bytes=_peak_memory(),
        samples_per_second=round(speed, 1),
        processor_hours=round(left * processor / max(report.samples, 1) / 3600, 6),
        workers=workers,
        busy_workers=min(workers, waiting),
        hours=round(left / speed * clock_share(max(waiting, 1), workers) / 3600, 6),
    )


def _first_shard(options: ExportOptions, task: ExportTask) -> tuple[ShardReport, float, float]:
    """Export the first input shard's samples; return report, seconds, and processor seconds."""
    with scratch_folder() as folder:
        name = f"trial{PARQUET}" if options.layout.table.startswith(".") else "trial"
        options = dataclasses.replace(options, out=str(folder / name))
        file = "" if options.targets.has_images else str(folder / "trial-0")
        task = ExportTask(0, task.segments[:1], file=file)
        begin, processor = time.perf_counter(), time.process_time()
        report = export_task(task.absolute(), options.absolute())
        return report, time.perf_counter() - begin, time.process_time() - processor


def _done(options: ExportOptions, tasks: Sequence[ExportTask]) -> int:
    """Count the tasks that an interrupted export has done."""
    targets = dataclasses.replace(options.targets, digits=digits_of(tasks))
    folder = targets.stats_folder
    if not stores.is_url(folder) and not folder.is_dir():
        return 0
    names = {path.name for path in stores.ask("list", folder, listed, folder, "*_stats.json")}
    return sum(targets.stats(task.number).name in names for task in tasks)


def _is_read_whole(shard: ShardRef) -> bool:
    is_tar = shard.layout == WEBDATASET and shard.url.endswith(".tar")
    return stores.is_url(shard.url) or not is_tar


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
