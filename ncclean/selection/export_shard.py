"""One exported shard: the raw bytes of the selected samples, one after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.images.as_tar import tar_key, write_tar
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
from ncclean.json_values import json_text
from ncclean.regular_files import open_file
from ncclean.scratch import scratch_folder
from ncclean.selection.export_plan import ExportTask, Segment
from ncclean.selection.export_task import (
    Chosen,
    ExportOptions,
    ShardReport,
    copy_key,
    finish_task,
    free_key,
    open_chosen,
    set_aside,
)

_COPY_BYTES = 1 << 20
_LONGEST_HEADERS = 3 << 20  # of a member with a long name and further attributes


def export_shard(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write one shard and its `_stats.json`, each published whole; the stats come last.

    Samples that the input lacks are counted as missing; an input shard that cannot be read is an
    error of the report, not of the export. Raises `InputError` if the output cannot be written.
    """
    begin = time.time()
    report = ShardReport(task.number)
    with (
        open_chosen(options) as read_chosen,
        published(options.targets.data(task.number)) as aside,
        open(aside, "wb", buffering=0) as out,
    ):
        taken: dict[str, int] = {}
        for segment in task.segments:
            try:
                _copy_segment(segment, read_chosen(segment), options, out, report, taken)
            except ShardError as error:
                report.errors[segment.name] = str(error)
        out.write(END_OF_ARCHIVE)
        report.bytes = out.tell()
    finish_task(task, options, report, begin)
    return report


def _copy_segment(
    segment: Segment,
    chosen: Chosen,
    options: ExportOptions,
    out: FileIO,
    report: ShardReport,
    taken: dict[str, int],
) -> None:
    """Copy what can be read, under keys that are not `taken`, which they are from then on.

    Raises `ShardError` at the end if that is not all there was.
    """
    problems: list[str] = []
    with _local(segment, chosen, options.caption_key, problems) as path, open_file(path) as source:
        copier = RangeCopier(source, out)
        is_copied = segment.shard.layout == WEBDATASET
        if not is_copied:
            chosen = chosen.renamed(tar_key)
        samples = locate_samples(
            path,
            chosen.copies,
            options.caption_key if is_copied else None,
            segment.shard.image_key if is_copied else None,
        )
        lacking = sum(chosen.copies.values()) - sum(chosen.copies[one.key] for one in samples)
        place = 0
        for sample in samples:
            for copy in range(chosen.copies[sample.key]):
                if segment.first <= place < segment.first + segment.count:
                    key = free_key(copy_key(sample.key, copy), taken)
                    is_there = _copy_sample(copier, sample, key, copy > 0, chosen, problems)
                    report.samples += is_there
                    lacking += not is_there
                place += 1
        copier.flush()
        if lacking:
            report.missing[segment.name] = lacking
    if problems:
        others = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise ShardError(problems[0] + others)


@contextlib.contextmanager
def _local(
    segment: Segment, chosen: Chosen, caption_key: CaptionKeys, problems: list[str]
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
    copier: RangeCopier,
    sample: LocatedSample,
    key: str,
    is_copy: bool,
    chosen: Chosen,
    problems: list[str],
) -> bool:
    """Write a sample under `key`; false if it lacks the caption that was selected."""
    changed: dict[str, bytes] = {}  # members by extension
    fields = added = chosen.fields_of(sample.key)
    if chosen.captions is not None and sample.key in chosen.captions:
        texts = {
            extension: read_content(copier.read(*place))
            for extension, place in sample.members.items()
            if chosen.captions.is_read(extension) and _is_text(place)
        }
        captions = chosen.captions.of_members(sample.key, texts)
        if captions is None:
            return False
        fields = {**fields, **captions}
        there = chosen.captions.members_of(sample.key, texts)
        changed = dict.fromkeys(there, captions["caption"].encode())
    if fields:
        place = sample.members.get("json")
        raw = read_content(copier.read(*place)) if place is not None and _is_text(place) else b""
        record = json_object(raw)
        if record is None and place is not None and not is_copy:
            problems.append(f"the json of {sample.key} cannot be read: it is replaced")
        record = record or {}
        if chosen.captions is not None:
            chosen.captions.mend_in(sample.key, record)
        changed["json"] = json_text({**record, **set_aside(record, added), **fields}).encode()
    for extension, place in sample.members.items():
        data = changed.pop(extension, None)
        if data is not None:
            copier.write(member_bytes(f"{key}.{extension}", data))
        elif key != sample.key:
            _copy_member(copier, f"{key}.{extension}", *place)
        else:
            copier.copy(*place)
    for extension, data in changed.items():
        copier.write(member_bytes(f"{key}.{extension}", data))
    return True


def _copy_member(copier: RangeCopier, name: str, begin: int, end: int) -> None:
    """Copy a member under another name, but for a sparse file, which keeps its own."""
    member = read_header(copier.read(begin, min(end, begin + _LONGEST_HEADERS)))
    if not member.is_sparse:
        copier.write(member_header(name, member.size))
        copier.copy(begin + member.content, begin + member.content + member.size)
        copier.write(bytes(-member.size % BLOCK))


def _is_text(place: tuple[int, int]) -> bool:
    """Whether a member is small enough for a caption or a json, headers included."""
    return place[1] - place[0] <= 2 * LARGEST_TEXT
