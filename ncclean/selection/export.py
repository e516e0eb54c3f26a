"""A selection written out: shards of the selected samples, or DataComp's uid file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.atomic import published, remove_leftovers
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.formats import file_size
from ncclean.output_mark import npy_header
from ncclean.progress import SILENT, Progress
from ncclean.runners.runner import InProcess, Runner
from ncclean.selection.export_plan import (
    WRITTEN,
    ExportTask,
    digits_of,
    open_selection,
    plan_selection,
)
from ncclean.selection.export_rows import add_problems, export_rows
from ncclean.selection.export_shard import export_shard
from ncclean.selection.export_task import ExportOptions
from ncclean.selection.exported_files import path_is_taken
from ncclean.selection.file_lists import lists_in, names_in, replaced_images
from ncclean.selection.fixed_selection import check_fixes
from ncclean.selection.join_parts import agree, join_parts
from ncclean.selection.out_layout import RECORD, TARS, OutLayout, Targets
from ncclean.storage.catalog import columns_of
from ncclean.storage.column_names import JoinedFile
from ncclean.storage.differences import differences
from ncclean.storage.expressions import missing_column
from ncclean.storage.file_digests import content_digest, footer_digest
from ncclean.storage.joined import JoinedScores
from ncclean.storage.run_record import RunRecord
from ncclean.storage.tables import listed

_COMMAND = "export"
_SIZES = "sizes.json"
_SCORES = "_scores.parquet"  # joined, for the workers of a cluster
_DERIVED = ("written_shards", "digits")
_LABELS = {
    "selection": "the selection",
    "fixes": "the decisions of --fix",
    "repeats": "the factor of --repeat",
}
_CONTENTS = {
    "selection": "the selection has",
    "fixes": "the decisions of --fix have",
    "tables": "--scores and --join have",
}


@dataclass
class ExportSummary:
    """Counts of what was written: shards, samples and bytes, with those of an earlier run.

    `missing` counts selected samples that the input does not have, by input shard; `errors` are
    input shards that could not be read. `mended_lost` are mended captions that a file of uids
    cannot hold. `layout` is what was written, `uids` for a file of uids. `shifted` captions were
    shifted back, None without `--fix`.
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
                _identity(options, join, tasks, samples_per_shard),
                overwrite=overwrite,
                base=out,
                files=functools.partial(_files, targets),
                taken=functools.partial(_taken, targets),
                compare=_compare,
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
    with published(work / _SCORES) as aside:
        shutil.copyfile(file, aside)
    return str(work / _SCORES)


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


def export_uids(selection: str, out: UPath, fixes: str | None = None) -> ExportSummary:
    """Write DataComp's subset file: the uids, sorted, as a numpy array of `u8,u8`.

    Each uid is the first and the last 64 bits of its 32 hex digits, and is there as often as its
    pair was drawn; DataComp's resharder repeats it. Raises `InputError` if one is not 32 hex
    digits.
    """
    connection = open_selection(selection, fixes)
    if fixes is not None:
        check_fixes(connection, columns_of(connection, "selected"), selection)
    odd = connection.execute(
        "SELECT uid FROM scores WHERE NOT regexp_full_match(uid, '[0-9a-fA-F]{32}') LIMIT 1"
    ).fetchall()
    if odd:
        raise InputError(f"a uid file takes uids of 32 hex digits; {selection} has {odd[0][0]!r}")
    # Several samples with one uid are found by one entry.
    uids = f"""SELECT uid, max(times)::BIGINT AS times FROM (
        SELECT lower(uid) AS uid, sum({WRITTEN}) AS times FROM scores
        GROUP BY lower(uid), shard, key) GROUP BY uid"""
    (count,) = connection.execute(
        f"SELECT coalesce(sum(times), 0)::BIGINT FROM ({uids})"
    ).fetchall()[0]
    reader: Any = connection.sql(
        f"""SELECT ('0x' || uid[1:16])::UBIGINT AS f0, ('0x' || uid[17:32])::UBIGINT AS f1
        FROM ({uids}) AS uids, range(uids.times) ORDER BY f0, f1"""
    ).to_arrow_reader(1_000_000)
    with published(out) as aside:
        with open(aside, "wb") as stream:
            header = {"descr": [("f0", "<u8"), ("f1", "<u8")], "fortran_order": False,
                      "shape": (count,)}  # fmt: skip
            stream.write(npy_header(header, _COMMAND))
            for batch in reader:
                rows = np.empty(len(batch), dtype="<u8,<u8")
                rows["f0"], rows["f1"] = (batch.column(name).to_numpy() for name in ("f0", "f1"))
                stream.write(rows.tobytes())
        size = aside.stat().st_size
    (mended,) = connection.execute(
        "SELECT count(*) FROM scores WHERE list_any_value(mended) IS NOT NULL"
    ).fetchall()[0]
    return ExportSummary(
        shards=0,
        samples=count,
        bytes=size,
        out=str(out),
        mended_lost=int(mended),
        layout="uids",
    )


def _identity(
    options: ExportOptions, join: Sequence[str], tasks: list[ExportTask], samples_per_shard: int
) -> dict[str, Any]:
    """The options and inputs of an export, and the number of its shards."""
    return {
        "selection": options.selection,
        **({"fixes": options.fixes} if options.fixes else {}),
        "samples_per_shard": samples_per_shard,
        "scores": list(options.scores),
        "columns": list(options.columns),
        **({"join": list(join)} if join else {}),  # records from before there were joins lack it
        "repeats": options.repeats,
        **({"caption_key": options.caption_key} if options.caption_key else {}),
        **({"layout": options.layout.to_json()} if options.layout != TARS else {}),
        "input": _digest([
            (s.shard.name, s.shard.size, s.shard.version, s.first, s.count)
            for task in tasks for s in task.segments
        ]),
        "contents": _contents(options, join),
        "written_shards": len(tasks),
        "digits": options.digits,
    }  # fmt: skip


def _contents(options: ExportOptions, join: Sequence[str]) -> dict[str, str]:
    """Digests of the tables that are exported: a corrected caption changes no size.

    Scores are large, and told by their footers.
    """
    tables = [*options.scores, *(JoinedFile.parse(one).path for one in join)]
    return {
        "selection": content_digest([options.selection]),
        **({"fixes": content_digest([options.fixes])} if options.fixes else {}),
        **({"tables": footer_digest(tables)} if tables else {}),
    }


def _compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences, less those that follow from the others.

    A layout is told by its name. A digest tells a person nothing: its noun is enough.
    """
    left_out = {*_DERIVED, "input", "layout", "contents"}
    earlier, later = (
        {name: value for name, value in identity.items() if name not in left_out}
        for identity in (before, now)
    )
    layouts = [identity.get("layout") or TARS.to_json() for identity in (before, now)]
    earlier["layout"], later["layout"] = (layout["name"] for layout in layouts)
    clauses = differences(earlier, later, _LABELS)
    if layouts[0] != layouts[1] and earlier["layout"] == later["layout"]:
        clauses.append("the tables of the output are others")
    old, new = (identity.get("contents", {}) for identity in (before, now))
    clauses += [
        f"{noun} other content"
        for name, noun in _CONTENTS.items()
        if old.get(name) != new.get(name) and earlier.get(name) == later.get(name)
    ]
    # Its digest has the numbers of selected samples too.
    if not clauses and before["input"] != now["input"]:
        clauses.append("the input shards have other content")
    return clauses


def _files(targets: Targets, identity: Mapping[str, Any]) -> Iterator[UPath]:
    """Every file that an export with this identity may write, but for its record."""
    layout = OutLayout.of_json(identity.get("layout"))
    targets = Targets(layout, targets.out, identity["digits"])
    for number in range(identity["written_shards"]):
        yield targets.data(number)
        yield targets.stats(number)
    yield from targets.tables
    if layout.name == TARS.name:
        yield targets.out / _SIZES
    elif not targets.is_file:
        for names in lists_in(targets.work):
            yield from (targets.out / name for name in names_in(names))
            yield names
    yield targets.work / _SCORES


def _digest(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


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
        summary.errors |= stats["errors"]
        columns |= dict.fromkeys(stats.get("columns", ()))
        if "schema" in stats:
            schemas[task.number] = pa.ipc.read_schema(pa.py_buffer(b64decode(stats["schema"])))
        for name, count in stats["missing"].items():  # once, of a shard that is in two tasks
            summary.missing[name] = max(count, summary.missing.get(name, 0))
    for folder in {targets.out, targets.stats_folder}:
        remove_leftovers(folder, names)
    stores.remove_files([targets.work / _SCORES])
    if targets.layout.name == TARS.name:
        with published(targets.out / _SIZES) as aside:
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
