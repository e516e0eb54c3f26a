"""One exported shard: the raw bytes of the selected samples, one after the other."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.images.as_tar import tar_key, write_tar
from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.range_copier import RangeCopier
from ncclean.data.sample_groups import json_object
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_index import LocatedSample, locate_samples
from ncclean.data.tar_members import (
    END_OF_ARCHIVE,
    member_bytes,
    member_header,
    read_content,
    read_header,
)
from ncclean.data.tar_walk import BLOCK
from ncclean.data.text_budget import LARGEST_TEXT
from ncclean.data.unpacking import UNPACKING_ERRORS, is_packed, unpacked
from ncclean.errors import ShardError
from ncclean.regular_files import open_file
from ncclean.scratch import scratch_folder
from ncclean.selection.export_plan import ExportTask, Segment, copies_of, open_selection
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.quoting import identifier
from ncclean.storage.work_folder import work_folder

RECORD = "_export.jsonl"
_COPY_BYTES = 1 << 20
_LONGEST_HEADERS = 3 << 20  # of a member with a long name and further attributes


@dataclass(frozen=True)
class ExportOptions:
    """Options that every task of an export shares. Paths may be URLs.

    `scores` and `columns`: score files and the columns to add to each sample's json. `repeats`
    is the factor of the weights that says how often a sample is written; None is once.
    `caption_key` are the names of the captions, where the selection tells several apart.
    """

    selection: str
    out: str
    digits: int = 5
    scores: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    repeats: float | None = None
    caption_key: CaptionKeys = None

    def absolute(self) -> ExportOptions:
        """The options with absolute paths, for a worker whose working folder is another one."""
        return replace(
            self,
            selection=stores.absolute(self.selection),
            out=stores.absolute(self.out),
            scores=tuple(map(stores.absolute, self.scores)),
        )


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
    """Selected samples of an input shard: key to copies and to the fields to add to its json.

    `captions` is None where the samples have but one, which stays.
    """

    copies: dict[str, int]
    fields: Mapping[str, dict[str, Any]]
    captions: KeptCaptions | None

    def renamed(self, rename: Callable[[str], str]) -> _Chosen:
        """The same under other keys, for a shard that has the right captions."""
        return _Chosen(
            {rename(key): copies for key, copies in self.copies.items()},
            {rename(key): fields for key, fields in self.fields.items()},
            None,
        )


def export_shard(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write one shard and its `_stats.json`, each published whole; the stats come last.

    Samples that the input lacks are counted as missing; an input shard that cannot be read is an
    error of the report, not of the export. Raises `InputError` if the output cannot be written.
    """
    begin = time.time()
    report = ShardReport(task.number)
    tar = stores.location(options.out) / f"{task.number:0{options.digits}d}.tar"
    with published(tar) as aside, open(aside, "wb", buffering=0) as out:
        for segment in task.segments:
            try:
                _copy_segment(segment, options, out, report)
            except ShardError as error:
                report.errors[segment.name] = str(error)
        out.write(END_OF_ARCHIVE)
        report.bytes = out.tell()
    report.seconds = time.time() - begin
    stats = stats_path(stores.location(options.out), task.number, options.digits)
    with published(stats) as aside:
        aside.write_text(json.dumps(_stats(task, report, begin), indent=2) + "\n")
    return report


def working_folder(out: UPath) -> UPath:
    """The folder of an export's record."""
    return work_folder(out, RECORD, out)


def stats_path(out: UPath, number: int, digits: int) -> UPath:
    """The path of an exported shard's statistics, which are published after the shard."""
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
    """Copy what can be read; raises `ShardError` at the end if that is not all there was."""
    chosen = _chosen(segment, options)
    problems: list[str] = []
    with (
        _local(segment, chosen, options.caption_key, problems) as path,
        open_file(path) as source,
    ):
        copier = RangeCopier(source, out)
        if segment.shard.layout != WEBDATASET:
            chosen = chosen.renamed(tar_key)
        samples = locate_samples(path, chosen.copies)
        lacking = sum(chosen.copies.values()) - sum(chosen.copies[one.key] for one in samples)
        place = 0
        for sample in samples:
            for copy in range(chosen.copies[sample.key]):
                if segment.first <= place < segment.first + segment.count:
                    is_there = _copy_sample(copier, sample, copy, chosen, problems)
                    report.samples += is_there
                    lacking += not is_there
                place += 1
        copier.flush()
        if lacking:
            report.missing[segment.name] = lacking
    if problems:
        others = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise ShardError(problems[0] + others)


def _chosen(segment: Segment, options: ExportOptions) -> _Chosen:
    connection = open_selection(options.selection)
    rows = connection.execute(
        "SELECT key, uid, weight, captions, mended FROM scores WHERE shard = ?", [segment.name]
    ).fetchall()
    keys = [str(key) for key, *_ in rows]
    captions = {str(key): several for key, _, _, several, _ in rows if several is not None}
    mended = {
        str(key): {
            number: text
            for number, text in zip(several or (0,), texts, strict=True)
            if text is not None
        }
        for key, _, _, several, texts in rows
        if any(text is not None for text in texts)
    }
    numbers = {key: list(dict.fromkeys(several)) for key, several in captions.items()}
    if options.repeats is None:
        copies = dict(Counter(keys))
        copies |= {key: several.count(several[0]) for key, several in captions.items()}
    else:
        uids, weights = [row[1] for row in rows], [row[2] for row in rows]
        times = copies_of(uids, weights, options.repeats)
        copies = Counter[str]()
        for key, number in zip(keys, times, strict=True):
            copies[key] += int(number)
        copies = +copies
    best = {key: several[0] for key, several in numbers.items()}
    return _Chosen(
        copies,
        _score_fields(segment.name, options, best) if options.columns else {},
        KeptCaptions(numbers, mended, options.caption_key) if numbers or mended else None,
    )


def _score_fields(
    shard: str, options: ExportOptions, captions: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The columns of each sample, of its best caption where `captions` has that one's number."""
    connection = connect(options.scores)
    number = "caption_number" if "caption_number" in columns_of(connection, "scores") else "0"
    names = ", ".join(map(identifier, options.columns))
    rows = connection.execute(
        f"SELECT key, {number}, {names} FROM scores WHERE shard = ? ORDER BY row DESC", [shard]
    ).fetchall()  # the first row of a key that occurs twice wins
    return {
        key: dict(zip(options.columns, values, strict=True))
        for key, caption, *values in rows
        if captions.get(key, caption) == caption
    }


@contextlib.contextmanager
def _local(
    segment: Segment, chosen: _Chosen, caption_key: CaptionKeys, problems: list[str]
) -> Iterator[Path]:
    """The shard as an uncompressed local tar; others are fetched, unpacked or made for the time.

    What keeps one from being whole is added to `problems`.
    """
    shard = segment.shard
    if shard.layout == WEBDATASET and not stores.is_url(shard.url) and not _is_packed(shard):
        yield Path(shard.url)
        return
    with scratch_folder() as folder:
        file = folder / "shard.tar"
        with open(file, "wb") as out:
            if shard.layout == WEBDATASET:
                out.writelines(_pieces(shard, problems))
            else:
                write_tar(shard, segment.name, out, chosen.copies, chosen.captions, caption_key)
        yield file


def _is_packed(shard: ShardRef) -> bool:
    try:
        with shard.open() as raw:
            return is_packed(raw)
    except OSError as error:
        raise ShardError(f"cannot be read: {error.strerror or error}") from error


def _pieces(shard: ShardRef, problems: list[str]) -> Iterator[bytes]:
    """A shard uncompressed, as far as it can be read."""
    try:
        with shard.open() as raw, unpacked(raw) as stream:
            read = getattr(stream, "read1", stream.read)
            while data := read(_COPY_BYTES):
                yield data
    except UNPACKING_ERRORS as error:
        problems.append(f"cannot be read to its end: {error}")


def _copy_sample(
    copier: RangeCopier, sample: LocatedSample, copy: int, chosen: _Chosen, problems: list[str]
) -> bool:
    """Write a sample; false if it lacks the caption that was selected."""
    changed: dict[str, bytes] = {}  # members by extension
    fields = chosen.fields.get(sample.key)
    if chosen.captions is not None and sample.key in chosen.captions:
        texts = {
            extension: read_content(copier.read(*place))
            for extension, place in sample.members.items()
            if chosen.captions.is_read(extension) and _is_text(place)
        }
        captions = chosen.captions.of_members(sample.key, texts)
        if captions is None:
            return False
        fields = {**(fields or {}), **captions}
        there = chosen.captions.members_of(sample.key, texts)
        changed = dict.fromkeys(there, captions["caption"].encode())
    if fields is not None:
        place = sample.members.get("json")
        raw = read_content(copier.read(*place)) if place is not None and _is_text(place) else b""
        record = json_object(raw)
        if record is None and place is not None and not copy:
            problems.append(f"the json of {sample.key} cannot be read: it is replaced")
        record = record or {}
        if chosen.captions is not None:
            chosen.captions.mend_in(sample.key, record)
        changed["json"] = _with_fields(record, fields)
    for extension, place in sample.members.items():
        data = changed.pop(extension, None)
        if data is not None:
            copier.write(member_bytes(f"{_key(sample.key, copy)}.{extension}", data))
        elif copy:
            _copy_member(copier, f"{_key(sample.key, copy)}.{extension}", *place)
        else:
            copier.copy(*place)
    for extension, data in changed.items():
        copier.write(member_bytes(f"{_key(sample.key, copy)}.{extension}", data))
    return True


def _copy_member(copier: RangeCopier, name: str, begin: int, end: int) -> None:
    """Copy a member under another name, but for a sparse file, which stays with the first copy."""
    member = read_header(copier.read(begin, min(end, begin + _LONGEST_HEADERS)))
    if not member.is_sparse:
        copier.write(member_header(name, member.size))
        copier.copy(begin + member.content, begin + member.content + member.size)
        copier.write(bytes(-member.size % BLOCK))


def _is_text(place: tuple[int, int]) -> bool:
    """Whether a member is small enough for a caption or a json, headers included."""
    return place[1] - place[0] <= 2 * LARGEST_TEXT


def _key(key: str, copy: int) -> str:
    """Copies have keys of their own: webdataset joins neighbours that share one."""
    return f"{key}_copy{copy}" if copy else key


def _with_fields(record: dict[str, Any], fields: dict[str, Any]) -> bytes:
    added = {name: _plain(value) for name, value in fields.items()}
    return json.dumps({**record, **added}, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        # Columns are float32: their shortest decimal form, not that of the double.
        return float(str(np.float32(value))) if np.isfinite(value) else None
    return value
