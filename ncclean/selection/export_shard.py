"""One exported shard: the raw bytes of the selected samples, one after the other."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.images.as_tar import tar_key, write_tar
from ncclean.data.range_copier import RangeCopier
from ncclean.data.shards import WEBDATASET
from ncclean.data.tar_index import LocatedSample, locate_samples
from ncclean.data.tar_members import END_OF_ARCHIVE, member_bytes, read_content
from ncclean.errors import ShardError
from ncclean.selection.export_plan import ExportTask, Segment, copies_of, open_selection
from ncclean.selection.policy import identifier
from ncclean.storage.catalog import connect

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class ExportOptions:
    """What every task of an export needs. Paths may be URLs.

    `scores` and `columns`: score files and the columns to add to each sample's json. `repeats`
    is the factor of the weights that says how often a sample is written; None is once.
    """

    selection: str
    out: str
    digits: int = 5
    scores: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    repeats: float | None = None


@dataclass
class ShardReport:
    """The outcome for an exported shard; `missing` keys were selected but are not in the input."""

    number: int
    samples: int = 0
    bytes: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Chosen:
    """Selected samples of an input shard: key to copies and to the fields to add to its json."""

    copies: dict[str, int]
    fields: Mapping[str, dict[str, Any]]

    def renamed(self, rename: Callable[[str], str]) -> _Chosen:
        """The same under other keys."""
        return _Chosen(
            {rename(key): copies for key, copies in self.copies.items()},
            {rename(key): fields for key, fields in self.fields.items()},
        )


def export_shard(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write one shard and its `_stats.json`, each published whole; the stats come last.

    Samples that the input lacks are counted as missing; an input shard that cannot be read is an
    error of the report, not of the export. Raises `InputError` if the output cannot be written.
    """
    begin = time.time()
    report = ShardReport(task.number)
    folder = stores.location(options.out)
    name = f"{task.number:0{options.digits}d}"
    with published(folder / f"{name}.tar") as aside, open(aside, "wb", buffering=0) as out:
        for segment in task.segments:
            try:
                _copy_segment(segment, options, out, report)
            except ShardError as error:
                report.errors[segment.name] = str(error)
        out.write(END_OF_ARCHIVE)
        report.bytes = out.tell()
    report.seconds = time.time() - begin
    with published(folder / f"{name}_stats.json") as aside:
        aside.write_text(json.dumps(_stats(task, report, begin), indent=2) + "\n")
    return report


def stats_path(out: UPath, number: int, digits: int) -> UPath:
    """Where the statistics of an exported shard lie; they are published after the shard."""
    return out / f"{number:0{digits}d}_stats.json"


def _stats(task: ExportTask, report: ShardReport, begin: float) -> dict[str, Any]:
    """The fields of img2dataset's `_stats.json`, and where the samples came from."""
    return {
        "count": task.samples,
        "successes": report.samples,
        "failed_to_download": sum(report.missing.values()),
        "failed_to_resize": 0,
        "duration": round(report.seconds, 3),
        "start_time": begin,
        "end_time": begin + report.seconds,
        "status_dict": {"success": report.samples},
        "bytes": report.bytes,
        "missing": report.missing,
        "errors": report.errors,
        "sources": {segment.name: segment.count for segment in task.segments},
    }


def _copy_segment(
    segment: Segment, options: ExportOptions, out: FileIO, report: ShardReport
) -> None:
    chosen = _chosen(segment, options)
    with _local(segment, chosen.copies) as path, open(path, "rb") as source:
        copier = RangeCopier(source, out)
        if segment.shard.layout != WEBDATASET:
            chosen = chosen.renamed(tar_key)
        samples = locate_samples(path, chosen.copies)
        lacking = sum(chosen.copies.values()) - sum(chosen.copies[one.key] for one in samples)
        if lacking:
            report.missing[segment.name] = lacking
        place = 0
        for sample in samples:
            for copy in range(chosen.copies[sample.key]):
                if segment.first <= place < segment.first + segment.count:
                    _copy_sample(copier, sample, copy, chosen.fields.get(sample.key))
                    report.samples += 1
                place += 1
        copier.flush()


def _chosen(segment: Segment, options: ExportOptions) -> _Chosen:
    connection = open_selection(options.selection)
    rows = connection.execute(
        "SELECT key, uid, weight FROM scores WHERE shard = ?", [segment.name]
    ).fetchnumpy()
    keys = [str(key) for key in rows["key"]]
    if options.repeats is None:
        copies = dict.fromkeys(keys, 1)
    else:
        times = copies_of(rows["uid"], rows["weight"], options.repeats)
        copies = {key: int(n) for key, n in zip(keys, times, strict=True) if n}
    return _Chosen(copies, _score_fields(segment.name, options) if options.columns else {})


def _score_fields(shard: str, options: ExportOptions) -> dict[str, dict[str, Any]]:
    names = ", ".join(identifier(name) for name in ("key", *options.columns))
    connection = connect(options.scores)
    rows = connection.execute(
        f"SELECT {names} FROM scores WHERE shard = ? ORDER BY row DESC", [shard]
    ).fetchall()  # the first row of a key that occurs twice wins
    return {row[0]: dict(zip(options.columns, row[1:], strict=True)) for row in rows}


@contextlib.contextmanager
def _local(segment: Segment, keys: Container[str]) -> Iterator[Path]:
    """The shard as an uncompressed local tar; others are fetched, unpacked or made for the time."""
    shard = segment.shard
    if shard.layout != WEBDATASET:
        with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
            made = Path(folder) / "shard.tar"
            with open(made, "wb") as out:
                write_tar(shard, segment.name, keys, out)
            yield made
        return
    if not stores.is_url(shard.url) and not shard.url.endswith((".gz", ".tgz")):
        yield Path(shard.url)
        return
    with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
        copy = Path(folder) / "shard.tar"
        try:
            with shard.open() as raw, open(copy, "wb") as out:
                packed = shard.url.endswith((".gz", ".tgz"))
                stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
                with contextlib.suppress(EOFError):  # cut short: the members before that count
                    shutil.copyfileobj(stream, out, _COPY_BYTES)
        except OSError as error:
            raise ShardError(f"cannot be read: {error}") from error
        yield copy


def _copy_sample(
    copier: RangeCopier, sample: LocatedSample, copy: int, fields: dict[str, Any] | None
) -> None:
    for extension, (begin, end) in sample.members.items():
        if copy or (fields is not None and extension == "json"):
            data = read_content(copier.read(begin, end))
            if fields is not None and extension == "json":
                data = _with_fields(data, fields)
            copier.write(member_bytes(f"{_key(sample.key, copy)}.{extension}", data))
        else:
            copier.copy(begin, end)
    if fields is not None and "json" not in sample.members:
        copier.write(member_bytes(f"{_key(sample.key, copy)}.json", _with_fields(b"{}", fields)))


def _key(key: str, copy: int) -> str:
    """Copies have keys of their own: webdataset joins neighbours that share one."""
    return f"{key}_copy{copy}" if copy else key


def _with_fields(raw: bytes, fields: dict[str, Any]) -> bytes:
    """A json object with the fields added; anything else is replaced by one."""
    try:
        record = json.loads(raw)
    except ValueError:
        record = {}
    if not isinstance(record, dict):
        record = {}
    added = {name: _plain(value) for name, value in fields.items()}
    return json.dumps({**record, **added}, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # Columns are float32: their shortest decimal form, not that of the double.
        return float(str(np.float32(value))) if np.isfinite(value) else None
    return value
