"""Write out a selection: shards of the selected samples, or DataComp's uid file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, remove_leftovers
from ncclean.base.formats import file_size
from ncclean.base.progress import SILENT, Progress
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef, file_sizes
from ncclean.errors import InputError
from ncclean.exporting.card import write_card
from ncclean.exporting.identity import SCORES, SIZES, compare_exports, export_identity, files_of
from ncclean.exporting.journal import join_lists, list_path, lists_in, replaced_images
from ncclean.exporting.out_layout import TARS, OutLayout, Targets, config_of
from ncclean.exporting.parquet import join_parquet, schema_of, unified
from ncclean.exporting.plan import ExportTask, digits_of, plan_selection
from ncclean.exporting.task import ExportOptions, add_problems
from ncclean.exporting.writers import export_task, path_is_taken
from ncclean.runners.runner import InProcess, Runner
from ncclean.storage.expressions import missing_column
from ncclean.storage.joined import JoinedScores
from ncclean.storage.run_record import RUN, RunRecord
from ncclean.storage.tables import listed, local_tables

_COMMAND = "export"


@dataclass
class ExportSummary:
    """Counts of what an export wrote: shards, samples and bytes, including an earlier run's.

    `missing` counts selected samples that the input lacks, by input shard; `errors` are input
    shards that could not be read. `mended_lost` counts mended captions, which a file of uids cannot
    hold. `layout` is what was written, `uids` for a file of uids. `shifted` captions were shifted
    back, None without `--fix`. `further_images` counts images besides those of the samples, for
    which the layout has no place. `walked` are shards rewritten since they were scored: samples
    were searched in them. `changed_images` have another size than when they were scored.
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
    walked: list[str] = field(default_factory=list)
    changed_images: int = 0


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
    sample as often as its weight says, once for the mean weight. If several captions of an image
    are selected (named `caption_key`), the best becomes its caption, and its json has all of them;
    see `ncclean.exporting.captions`. `fixes` are the decisions of `ncclean explain` that shift
    captions back; they override the selection. Each shard is one task of `runner`, by default in
    this process; finished shards of an interrupted export are kept. Raises `InputError` for a
    selection that does not fit the shards, or tables that cannot be joined, `ResumeError` if `out`
    holds another export.
    """
    out = stores.location(str(out))  # the caller's may cache its listings
    tasks, repeats = plan_selection(
        selection, shards, samples_per_shard, repeat=repeat, fixes=fixes, group_of=layout.group_of
    )
    targets = Targets(layout, out, digits_of(tasks), tuple(task.group for task in tasks))
    files = dict(enumerate(map(str, targets.data())))  # none for image files
    tasks = [dataclasses.replace(task, file=files.get(task.number, "")) for task in tasks]
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
                targets.work / RUN,
                _COMMAND,
                export_identity(options, join, tasks, samples_per_shard),
                overwrite=overwrite,
                base=out,
                files=functools.partial(files_of, out),
                taken=functools.partial(_taken, targets),
                compare=compare_exports,
            )
        )
        done = _done(targets, tasks) if record.resumed else set()
        pending = [task for task in tasks if task.number not in done]
        runner = runner or InProcess()
        if table is not None and pending:
            local = table.prepare(["uid", "shard", "key", "row", "caption_number", *names])
            if not runner.is_remote:  # its processes share the copies
                scores = local
            elif join:
                scores = [_shared(targets.work, local[0])]
            options = dataclasses.replace(options, scores=tuple(scores), columns=tuple(names))
        copies = local_tables([selection])
        if not runner.is_remote and len(copies) == 1:
            options = dataclasses.replace(options, selection=copies[0])
        calls = ((task.number, (task.absolute(), options.absolute())) for task in pending)
        samples = size = 0
        for written, (_, report) in enumerate(runner.map(export_task, calls), 1):
            _check_visible(targets.stats(report.number))
            samples, size = samples + report.samples, size + report.bytes
            facts = {"shards": f"{written:,}", "bytes": file_size(size)}
            progress.advance(samples, 0, "samples", **facts)
        return _finish(targets, tasks, runner)


def _done(targets: Targets, tasks: Sequence[ExportTask]) -> set[int]:
    """Return the numbers of finished tasks whose output is as written, or whose table exists.

    Statistics are published last.
    """
    folder, tables = targets.stats_folder, targets.tables
    names = {path.name for path in stores.ask("list", folder, listed, folder, "*_stats.json")}
    ended = [task for task in tasks if targets.stats(task.number).name in names]
    if tables and len(stores.present_files(tables)) == len(tables):
        return {task.number for task in ended}
    files = [stores.location(task.file) for task in ended if task.file]
    sizes, lists = file_sizes(files), set(map(str, lists_in(targets.work)))
    is_tar = targets.layout.name == TARS.name
    done = set()
    for task in ended:
        stats = json.loads(stores.read_bytes(targets.stats(task.number)))
        batches = range(stats.get("batches", 0))
        written = [str(list_path(targets, task.number, batch)) for batch in batches]
        size = sizes.get(task.file or "")
        # Parquet files may since have got the schema of all.
        is_whole = size == stats["bytes"] if is_tar else size is not None
        has_file = task.file and stats["successes"]
        if (is_whole or not has_file) and lists.issuperset(written):
            done.add(task.number)
    return done


def _taken(targets: Targets) -> UPath | None:
    """Find what is in the way of an export: a shard, or with other layouts any visible file."""
    if targets.is_file:
        return next(iter(stores.present_files([targets.out])), None)
    out, pattern = targets.out, "*.tar" if targets.layout.name == TARS.name else "*"
    files = stores.ask("list", out, listed, out, pattern)
    return next((path for path in files if not path.name.startswith(".")), None)


def _shared(work: UPath, file: str) -> str:
    """Return the joined scores where workers see them: beside their output."""
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
    """Return columns under the table's names. Raises `InputError` for a missing one."""
    if "row" not in table.names.types:  # tells which of a key's samples is exported
        raise InputError("--scores has no column row: is it a score table? Others go to --join")
    names = []
    for column in columns:
        name = table.names.named(column)
        if name is None:
            raise InputError(f"--columns: {missing_column(column, table.names.types)}")
        names.append(name)
    return names


def _finish(targets: Targets, tasks: list[ExportTask], runner: Runner) -> ExportSummary:
    """Write the output made from all tasks, and sum up their statistics."""
    out, layout = str(targets.out), targets.layout.name
    summary = ExportSummary(shards=len(tasks), samples=0, bytes=0, out=out, layout=layout)
    reports = [json.loads(stores.read_bytes(targets.stats(task.number))) for task in tasks]
    for stats in reports:
        summary.samples += stats["successes"]
        summary.bytes += stats["bytes"]
        summary.further_images += stats.get("further_images", 0)
        summary.changed_images += stats.get("changed_images", 0)
        summary.walked += [one for one in stats.get("walked", ()) if one not in summary.walked]
        summary.errors |= stats["errors"]
        for name, count in stats["missing"].items():  # once, for a shard in two tasks
            summary.missing[name] = max(count, summary.missing.get(name, 0))
    written = [stores.location(task.file) for task in tasks if task.file]
    names = {path.name for path in (*written, *(targets.stats(task.number) for task in tasks))}
    for folder in {targets.out, targets.stats_folder, *(path.parent for path in written)}:
        remove_leftovers(folder, names)
    stores.remove_files([targets.work / SCORES])
    if layout == TARS.name:
        sizes = {path.name: one["successes"] for path, one in zip(written, reports, strict=True)}
        with published(targets.out / SIZES) as aside:
            aside.write_text(json.dumps(sizes, indent=2) + "\n")
    elif targets.has_images:
        _join_rows(targets, tasks, reports, summary)
    else:
        _join_files(targets, tasks, reports, runner)
    if targets.tables:
        summary.shards = 1
    if not targets.is_file:
        write_card(targets)
    return summary


def _join_rows(
    targets: Targets,
    tasks: Sequence[ExportTask],
    reports: Sequence[Mapping[str, Any]],
    summary: ExportSummary,
) -> None:
    """Write the tables of images, without rows of images that another task replaced."""
    columns: dict[int, dict[str, None]] = {}
    for stats in reports:
        for table, names in stats.get("columns", {}).items():
            columns.setdefault(int(table), {}).update(dict.fromkeys(names))
    replaced = replaced_images(targets)
    batches = {number: stats.get("batches", 0) for number, stats in enumerate(reports)}
    left_out = {number: stats.get("left_out", ()) for number, stats in enumerate(reports)}
    join_lists(targets, batches, left_out, replaced, {n: [*one] for n, one in columns.items()})
    for number, paths in replaced.items():
        summary.samples -= sum(paths.values())
        name = tasks[number].segments[0].name
        add_problems(summary.errors, name, [*map(path_is_taken, paths)])


def _join_files(
    targets: Targets,
    tasks: Sequence[ExportTask],
    reports: Sequence[Mapping[str, Any]],
    runner: Runner,
) -> None:
    """Give Parquet files that are loaded together one schema, or join them."""
    configs: dict[str, list[tuple[ExportTask, pa.Schema]]] = {}
    for task, stats in zip(tasks, reports, strict=True):
        if "schema" in stats:
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(stats["schema"])))
            configs.setdefault(config_of(task.group), []).append((task, schema))
    if targets.is_file:
        files = [stores.location(task.file) for one in configs.values() for task, _ in one]
        if not stores.present_files(targets.tables):
            with published(targets.out) as aside:
                join_parquet(files, aside)
        stores.remove_files(files)
        return
    calls = []
    for one in configs.values():
        common = unified(schema for _, schema in one)
        calls += [
            (task.number, (stores.absolute(task.file), common))
            for task, schema in one
            if not schema.equals(common, True)
        ]
    for _ in runner.map(_conform, calls):
        pass


def _conform(file: str, schema: pa.Schema) -> None:
    """Rewrite a Parquet file under a schema that includes its columns: loaders use the first's."""
    path = stores.location(file)
    if schema_of(path).equals(schema, True):
        return
    with published(path) as aside:
        join_parquet([path], aside, schema)
