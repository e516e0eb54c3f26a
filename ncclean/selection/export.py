"""A selection written out: shards of the selected samples, or DataComp's uid file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.atomic import published, remove_leftovers
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.formats import file_size
from ncclean.progress import SILENT, Progress
from ncclean.runners.runner import InProcess, Runner
from ncclean.selection.export_identity import (
    SCORES,
    SIZES,
    compare_exports,
    export_identity,
    files_of,
)
from ncclean.selection.export_plan import ExportTask, digits_of, plan_selection
from ncclean.selection.export_rows import add_problems, export_rows
from ncclean.selection.export_shard import export_shard
from ncclean.selection.export_task import ExportOptions
from ncclean.selection.exported_files import path_is_taken
from ncclean.selection.file_lists import replaced_images
from ncclean.selection.join_parts import agree, join_parts
from ncclean.selection.out_layout import RECORD, TARS, OutLayout, Targets
from ncclean.storage.expressions import missing_column
from ncclean.storage.joined import JoinedScores
from ncclean.storage.run_record import RunRecord
from ncclean.storage.tables import listed

_COMMAND = "export"


@dataclass
class ExportSummary:
    """Counts of what was written: shards, samples and bytes, with those of an earlier run.

    `missing` counts selected samples that the input does not have, by input shard; `errors` are
    input shards that could not be read. `mended_lost` are mended captions that a file of uids
    cannot hold. `layout` is what was written, `uids` for a file of uids. `shifted` captions were
    shifted back, None without `--fix`. `further_images` are pictures beside those of the samples,
    for which the layout has no place.
    """

    shards: int
    samples: int
    bytes: int
    out: str
    missing: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    mended_lost: int = 0
    layout: str = TARS.name
    shifted: int | None = None
    further_images: int = 0


def export_shards(
    selection: str,
    shards: Sequence[ShardRef],
    out: UPath,
    *,
    samples_per_shard: int = 10_000,
    scores: Sequence[str] = (),
    columns: Sequence[str] = (),
    join: Sequence[str] = (),
    repeat: bool = False,
    caption_key: CaptionKeys = None,
    fixes: str | None = None,
    layout: OutLayout = TARS,
    runner: Runner | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> ExportSummary:
    """Write the selected samples as shards `00000.tar`, ... with `_stats.json` and `sizes.json`.

    Members are copied byte for byte; keys and order stay. `columns` of the score files `scores`,
    and of the tables `join` joined to them, are added to each sample's json; `repeat` writes a
    sample as often as its weight says, the mean weight once. Of a selection of several captions
    (named `caption_key`) an image's best becomes its caption, and its json has all of them; see
    `ncclean.data.kept_captions`. `fixes` are the decisions of `ncclean explain` that shift captions
    back; they win over the selection. Each shard is one task of `runner`, by default in this
    process; finished shards of an interrupted export are kept. Raises `InputError` for a selection
    that does not fit the shards, or tables that cannot be joined, `ResumeError` if `out` holds
    another export.
    """
    out = stores.location(str(out))  # the caller's may cache its listings
    tasks, repeats = plan_selection(
        selection, shards, samples_per_shard, repeat=repeat, fixes=fixes
    )
    targets = Targets(layout, out, digits_of(tasks))
    options = ExportOptions(
        selection=selection,
        out=str(out),
        digits=targets.digits,
        scores=tuple(scores),
        columns=tuple(columns),
        repeats=repeats,
        caption_key=caption_key,
        layout=layout,
        fixes=fixes,
    )
    with contextlib.ExitStack() as stack:
        table = stack.enter_context(JoinedScores.open(scores, join)) if scores else None
        names = _names(table, columns) if table is not None else []
        record = stack.enter_context(
            RunRecord.open(
                targets.work / RECORD,
                _COMMAND,
                export_identity(options, join, tasks, samples_per_shard),
                overwrite=overwrite,
                base=out,
                files=functools.partial(files_of, targets),
                taken=functools.partial(_taken, targets),
                compare=compare_exports,
            )
        )
        done = _done(targets) if record.resumed else set()
        pending = [task for task in tasks if not _is_done(targets, task.number, done)]
        runner = runner or InProcess()
        if table is not None and pending:
            files = table.prepare(["shard", "key", "row", "caption_number", *names])
            if runner.is_remote and join:
                files = [_shared(targets.work, files[0])]
            options = dataclasses.replace(options, scores=tuple(files), columns=tuple(names))
        calls = ((task.number, (task.absolute(), options.absolute())) for task in pending)
        samples = size = 0
        work = export_shard if layout.name == TARS.name else export_rows
        for written, (_, report) in enumerate(runner.map(work, calls), 1):
            _check_visible(targets.stats(report.number))
            samples, size = samples + report.samples, size + report.bytes
            facts = {"shards": f"{written:,}", "bytes": file_size(size)}
            progress.advance(samples, 0, "samples", **facts)
        return _finish(targets, tasks, runner)


def _done(targets: Targets) -> set[str]:
    """Names of the files in the folder of statistics, and of the table's parts."""
    folder = targets.stats_folder
    return {path.name for path in stores.ask("list", folder, listed, folder, "*")}


def _is_done(targets: Targets, number: int, names: set[str]) -> bool:
    """Whether a task has been done, and its part is there, or the table made of it."""
    if targets.stats(number).name not in names:
        return False
    tables = targets.tables
    if targets.data(number).name in names or len(stores.present_files(tables)) == len(tables):
        return True
    return not json.loads(stores.read_bytes(targets.stats(number)))["successes"]


def _taken(targets: Targets) -> UPath | None:
    """Find what lies in the way of an export: a shard, or with other layouts any visible file."""
    if targets.is_file:
        return next(iter(stores.present_files([targets.out])), None)
    out, pattern = targets.out, "*.tar" if targets.layout.name == TARS.name else "*"
    files = stores.ask("list", out, listed, out, pattern)
    return next((path for path in files if not path.name.startswith(".")), None)


def _shared(work: UPath, file: str) -> str:
    """The joined scores where workers see them: beside what they write."""
    with published(work / SCORES) as aside:
        shutil.copyfile(file, aside)
    return str(work / SCORES)


def _check_visible(path: UPath) -> None:
    if not stores.is_url(path) and not path.exists():
        raise InputError(
            f"a worker has written {path}, but it is not there for this machine: give --out a "
            "folder that all nodes share, or an object store"
        )


def _names(table: JoinedScores, columns: Sequence[str]) -> list[str]:
    """The columns as the table calls them. Raises `InputError` for one that is not there."""
    names = []
    for column in columns:
        name = table.names.named(column)
        if name is None:
            raise InputError(f"--columns: {missing_column(column, table.names.types)}")
        names.append(name)
    return names


def _finish(targets: Targets, tasks: list[ExportTask], runner: Runner) -> ExportSummary:
    """Write what is made of all tasks, and sum up their statistics."""
    out, layout = str(targets.out), targets.layout.name
    summary = ExportSummary(shards=len(tasks), samples=0, bytes=0, out=out, layout=layout)
    sizes: dict[str, int] = {}
    columns: dict[str, None] = {}
    schemas: dict[int, pa.Schema] = {}
    names = set()
    for task in tasks:
        path, data = targets.stats(task.number), targets.data(task.number)
        stats = json.loads(stores.read_bytes(path))
        sizes[data.name] = stats["successes"]
        names |= {path.name, data.name}
        summary.samples += stats["successes"]
        summary.bytes += stats["bytes"]
        summary.further_images += stats.get("further_images", 0)
        summary.errors |= stats["errors"]
        columns |= dict.fromkeys(stats.get("columns", ()))
        if "schema" in stats:
            schemas[task.number] = pa.ipc.read_schema(pa.py_buffer(b64decode(stats["schema"])))
        for name, count in stats["missing"].items():  # once, of a shard that is in two tasks
            summary.missing[name] = max(count, summary.missing.get(name, 0))
    for folder in {targets.out, targets.stats_folder}:
        remove_leftovers(folder, names)
    stores.remove_files([targets.work / SCORES])
    if targets.layout.name == TARS.name:
        with published(targets.out / SIZES) as aside:
            aside.write_text(json.dumps(sizes, indent=2) + "\n")
    elif not targets.tables:
        agree(targets, schemas, runner)
    else:
        replaced = replaced_images(targets.out, targets.work)
        parts = {
            targets.data(n): replaced.get(n, {}) for n, count in enumerate(sizes.values()) if count
        }
        join_parts(targets, parts, list(columns))
        for number, paths in replaced.items():
            summary.samples -= sum(paths.values())
            add_problems(
                summary.errors, tasks[number].segments[0].name, [*map(path_is_taken, paths)]
            )
        summary.shards = 1
    return summary
