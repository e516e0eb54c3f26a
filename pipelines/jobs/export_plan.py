"""`ncclean export --dry-run`: what an export would take, measured on one input shard."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ncclean import stores
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.errors import InputError
from ncclean.options import usable_cores
from ncclean.selection.export_plan import ExportTask, digits_of, plan_selection
from ncclean.selection.export_shard import ExportOptions, ShardReport, export_shard, stats_path
from ncclean.storage.tables import listed

from ..export import Export
from ..progress import Progress
from .export import selected_shards


@dataclass(frozen=True)
class ExportPlan:
    """What `--dry-run` tells: the size of an export and what it would take.

    `bytes_read` counts shards of object stores, compressed ones and those of other layouts whole,
    as often as a task takes samples from them. `processor_hours` is the sum over the `workers`,
    `hours` what a clock would show with all of them busy; both are of the shards that are not done
    yet. `memory_bytes` is what this process took for one task.
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
    hours: float


def plan(command: Export, progress: Progress) -> ExportPlan:
    """Estimate an export from the first input shard, exported to a temporary folder.

    Raises `InputError` for a selection that does not fit the shards, or that is empty.
    """
    shards = selected_shards(command)
    tasks, repeats = plan_selection(
        command.selection, shards, command.samples_per_shard, repeat=command.repeat
    )
    if not tasks:
        raise InputError(f"{command.selection} is empty: there is nothing to export")
    progress.say("measuring the speed")
    report, seconds, processor = _first_shard(command, tasks[0], repeats)
    segments = [segment for task in tasks for segment in task.segments]
    samples = sum(segment.count for segment in segments)
    size = round(samples * report.bytes / max(report.samples, 1))
    done = _done(command, tasks)
    left = samples * (1 - done / len(tasks))
    workers = command.tasks.workers or usable_cores()
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
        hours=round(left / speed / workers / 3600, 6),
    )


def _first_shard(
    command: Export, task: ExportTask, repeats: float | None
) -> tuple[ShardReport, float, float]:
    """Export the samples of the first input shard: the report, seconds, seconds of a processor.

    Joined tables are left out: they are joined once, not by each task.
    """
    task = ExportTask(0, task.segments[:1])
    has_columns = command.scores and not command.join
    with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
        options = ExportOptions(
            selection=command.selection,
            out=folder,
            scores=tuple(command.scores) if has_columns else (),
            columns=tuple(command.columns) if has_columns else (),
            repeats=repeats,
            caption_key=command.caption_key,
        )
        begin, processor = time.perf_counter(), time.process_time()
        report = export_shard(task.absolute(), options.absolute())
        return report, time.perf_counter() - begin, time.process_time() - processor


def _done(command: Export, tasks: Sequence[ExportTask]) -> int:
    """How many shards an interrupted export has written."""
    out, digits = stores.location(command.out), digits_of(tasks)
    if command.overwrite or (not stores.is_url(out) and not out.is_dir()):
        return 0
    names = {path.name for path in stores.ask("list", out, listed, out, "*_stats.json")}
    return sum(stats_path(out, task.number, digits).name in names for task in tasks)


def _is_read_whole(shard: ShardRef) -> bool:
    is_tar = shard.layout == WEBDATASET and shard.url.endswith(".tar")
    return stores.is_url(shard.url) or not is_tar


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
