"""Export to tars: copy the bytes of samples in tars, and write others as members."""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.json_values import json_text
from ncclean.data.images.as_tar import sample_members, tar_key
from ncclean.data.member_samples import caption_keys
from ncclean.data.sample_groups import LARGEST_TEXT, caption_members, json_object, parse_json, utf8
from ncclean.data.samples import Sample
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import LocatedSamples
from ncclean.data.tar_ranges import (
    END_OF_ARCHIVE,
    RangeWriter,
    from_start,
    local_tar,
    member_bytes,
    member_header,
    read_header,
)
from ncclean.data.tar_walk import BLOCK, TAR_ERRORS, TarMember, TarWalk
from ncclean.errors import ShardError
from ncclean.exporting.captions import ExportedCaptions, exported_captions
from ncclean.exporting.choices import Choice, Choices
from ncclean.exporting.plan import Segment
from ncclean.exporting.rows import copy_key, free_key, sample_record, set_aside
from ncclean.exporting.task import Writer

_BUFFER_BYTES = 1 << 20
_LONGEST_HEADERS = 3 << 20  # of a member with a long name and further attributes


class TarWriter(Writer):
    """Writes the samples of an export to a tar: byte ranges of input tars, or new members.

    An unchanged sample is one range if the selection has its place, otherwise the members found by
    walking the tar.
    """

    def __init__(self, *task: Any) -> None:
        super().__init__(*task)
        stack = self.stack
        aside = stack.enter_context(published(stores.location(self.task.file)))
        self._file = stack.enter_context(open(aside, "wb", _BUFFER_BYTES))  # noqa: SIM115
        self._out = RangeWriter(self._file)

    def samples(self, segment: Segment, choices: Choices) -> Iterator[Sample]:
        """Yield a segment's chosen samples, with the places of their members or with images."""
        if segment.shard.layout != WEBDATASET:
            yield from super().samples(segment, choices)
            return
        shard = segment.shard
        with local_tar(shard.open, stores.is_url(shard.url), self.problems) as source:
            self._out.read_from(source)
            samples = None
            named = [(key, one) for key, of_key in choices.items() for one in of_key.values()]
            is_placed = all(one.place is not None for _, one in named)
            if choices and is_placed and len(named) == len(choices):
                samples = self._placed(segment.shard, named)
                if samples is None:
                    self.report.walked.append(segment.name)
            yield from self._walked(segment.shard, source, choices) if samples is None else samples
            self._out.flush()

    def add(self, sample: Sample, copy: int, choice: Choice, segment: Segment) -> bool:
        """Write a sample to the tar under a key that no other has."""
        captions = exported_captions(sample, choice) if choice.changes_captions else None
        if choice.changes_captions and captions is None:
            return False
        if segment.shard.layout == WEBDATASET:
            key = free_key(copy_key(sample.key, copy), self.taken)
            changed = self._changed(sample, copy > 0, choice, captions)
            self._copy(sample, key, changed)
            return True
        key = free_key(copy_key(tar_key(sample.key), copy), self.taken)
        record = sample_record(sample, segment, self.names)
        added = choice.fields_of()
        record |= {**set_aside(record, added), **added}
        if captions is not None:
            record = captions.record(record, sample.metadata, self.options.caption_key)
        caption = sample.caption if captions is None else captions.best
        for name, data in sample_members(key, sample.image, caption or "", record):
            self._out.write(member_bytes(name, data))
        return True

    def finish(self) -> None:
        """End the tar as the tar program does, so that an unchanged one has equal bytes."""
        self._out.write(END_OF_ARCHIVE)
        self._out.write(bytes(-self._file.tell() % tarfile.RECORDSIZE))
        self.report.bytes = self._file.tell()

    def _placed(
        self, shard: ShardRef, choices: Sequence[tuple[str, Choice]]
    ) -> list[Sample] | None:
        """Return the samples at the selection's places; None if others are there.

        An unchanged sample has one member, its whole range.
        """
        has_copies = any(choice.copies > 1 for _, choice in choices)
        samples: list[Sample] = []
        for key, choice in choices:
            begin, size = choice.place or (0, 0)
            if not self._is_at(key, begin, begin + size):
                return None
            whole = TarMember(key, begin, begin, begin, size, False)
            fields = self._fields_at(key, begin, begin + size)
            sample = Sample(begin, key, metadata=fields, members={"": whole})
            if has_copies or key in self.taken or choice.is_changed:
                raw = self._out.read(begin, begin + size) + END_OF_ARCHIVE
                if choice.changes_captions:
                    opened = functools.partial(io.BytesIO, raw)
                    reader = LocatedSamples(shard, self.options.caption_key, opened, (key,))
                    sample = next(iter(reader), sample)
                sample.members = {
                    utf8(member.name)[len(key) + 1 :].lower(): member.moved(begin)
                    for member in TarWalk(io.BytesIO(raw))
                    if utf8(member.name).startswith(f"{key}.")
                }
            samples.append(sample)
        return sorted(samples, key=lambda sample: next(iter(sample.members.values())).begin)

    def _is_at(self, key: str, begin: int, end: int) -> bool:
        """Check that a member of a sample begins at a place, and another header at its end."""
        first = self._member_at(begin, end)
        if first is None or not utf8(first.name).startswith(f"{key}."):
            return False
        after = self._out.read(end, end + BLOCK)
        return not after.strip(b"\0") or _is_header(after)

    def _member_at(self, begin: int, end: int) -> TarMember | None:
        """Return the member whose headers begin at a place before `end`; None if there is none."""
        for longest in (BLOCK, _LONGEST_HEADERS):
            try:
                raw = self._out.read(begin, min(end, begin + longest))
                return read_header(raw).moved(begin)
            except (StopIteration, *TAR_ERRORS):
                continue
        return None

    def _fields_at(self, key: str, begin: int, end: int) -> dict[str, Any]:
        """Return the json fields among the members from `begin` to `end`."""
        while begin < end and (member := self._member_at(begin, end)) is not None:
            if utf8(member.name)[len(key) :].lower() == ".json":
                return parse_json(self._text(member))
            begin = member.end
        return {}

    def _walked(self, shard: ShardRef, source: IO[bytes], choices: Choices) -> Iterator[Sample]:
        """Yield the samples by walking all headers of a tar, up to a broken place."""
        changed = {
            key
            for key, of_key in choices.items()
            if any(choice.changes_captions for choice in of_key.values())
        }
        reader = LocatedSamples(
            shard, self.options.caption_key, lambda: from_start(source), changed
        )
        samples: list[Sample] = []
        try:
            samples.extend(sample for sample in reader if sample.key in choices)
        except ShardError:
            if not reader.samples:
                raise
        for sample in sorted(samples, key=lambda sample: sample.row):
            late = reader.late_members.get(sample.row)
            if late is not None:
                sample.members.setdefault("json", late)
            if not sample.metadata and "json" in sample.members:
                sample.metadata = parse_json(self._text(sample.members["json"]))
            yield sample

    def _changed(
        self, sample: Sample, is_copy: bool, choice: Choice, captions: ExportedCaptions | None
    ) -> dict[str, bytes]:
        """Return new contents of members, by extension."""
        added = choice.fields_of()
        if captions is None and not added:
            return {}
        places = sample.members
        raw = self._text(places["json"]) if "json" in places else b""
        record = json_object(raw)
        if record is None and "json" in places and not is_copy:
            self.problems.append(f"the json of {sample.key} cannot be read: it is replaced")
        record = record or {}
        record |= {**set_aside(record, added), **added}
        changed: dict[str, bytes] = {}
        if captions is not None:
            record = captions.record(record, sample.metadata, self.options.caption_key)
            named = caption_keys(self.options.caption_key) if captions.is_only else ()
            names = dict.fromkeys((*caption_members(sample.picture), *named))
            present = [name for name in names if name in places]
            changed = dict.fromkeys(present or ["txt"], captions.best.encode())
        changed["json"] = json_text(record).encode()
        return changed

    def _copy(self, sample: Sample, key: str, changed: dict[str, bytes]) -> None:
        """Write a sample under a key, replacing the members that changed."""
        for extension, member in sample.members.items():
            data = changed.pop(extension, None)
            if data is not None:
                self._out.write(member_bytes(f"{key}.{extension}", data))
            elif key == sample.key:
                self._out.copy(member.begin, member.end)
            elif not member.is_sparse:  # a sparse one keeps its own name
                self._out.write(member_header(f"{key}.{extension}", member.size))
                self._out.copy(member.content, member.content + member.size)
                self._out.write(bytes(-member.size % BLOCK))
        for extension, data in changed.items():
            self._out.write(member_bytes(f"{key}.{extension}", data))

    def _text(self, member: TarMember) -> bytes:
        """Return the content of a json; empty if it is too large to read, or sparse."""
        if member.is_sparse or member.size > LARGEST_TEXT:
            return b""
        return self._out.read(member.content, member.content + member.size)


def _is_header(block: bytes) -> bool:
    try:
        read_header(block + END_OF_ARCHIVE)
    except StopIteration:
        return True  # not a file, or with a long name
    except TAR_ERRORS:
        return False
    return True
