"""Rewrite a shard with noise: copy bytes, except what the noise and the truth change.

Each scorable sample gets `is_noisy` and `noise_kind` in its json, in a new json if it had none; if
its captions are a list, these are lists, too. A new caption goes wherever a caption is read from:
the `.txt` and `.caption` members and the json's `caption` and `text`. If the noise turns one text
into several captions, they become a list in the json. Broken samples, members of no sample and
everything after a cut are unchanged, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, cast

from ncclean.base import stores
from ncclean.data.member_samples import LARGEST_FILE
from ncclean.data.nested_fields import field_at, lines_of, put_at, without_lines
from ncclean.data.sample_groups import caption_members, is_image, json_object
from ncclean.data.samples import TRUTH, Sample, SkipReason, noise_of, of_caption
from ncclean.data.shards import ShardRef
from ncclean.data.tar import LocatedSamples
from ncclean.data.tar_ranges import (
    RangeWriter,
    from_start,
    member_bytes,
    read_content,
    read_header,
    read_member,
    with_content,
)
from ncclean.data.tar_walk import TarMember
from ncclean.errors import ShardError

_READERS = 16  # concurrent ranged reads of a store
_AHEAD = 64  # images fetched before they are written


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The place of an image: the tar member from byte `begin` to `end` of a file."""

    url: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SampleEdit:
    """The change of injected noise to a sample: its new captions, or its new image.

    `kinds` names the resulting noise of each caption, None for a clean one; `own` gives the index
    of each caption among the sample's own, by default its position. `captions` is None if they are
    unchanged. `noisy_parts` says which sentence of each caption is noisy, if only one is.
    """

    kinds: tuple[str | None, ...]
    captions: tuple[str, ...] | None = None
    image: ImageSource | None = None
    own: tuple[int, ...] | None = None
    noisy_parts: tuple[int | None, ...] = ()


@dataclass
class Rewritten:
    """Counts of what a shard had before noise was injected.

    `already_noisy` counts the untouched pairs whose json says `is_noisy`: they stay noisy.
    `json_added` counts samples without a json, `json_replaced` those whose json could not be
    parsed.
    """

    already_noisy: int = 0
    json_added: int = 0
    json_replaced: int = 0


def write_noisy(
    source: IO[bytes],
    shard: ShardRef,
    rows: Sequence[int],
    edits: Mapping[int, SampleEdit],
    sink: IO[bytes],
    caption_key: str | None = None,
) -> Rewritten:
    """Copy an uncompressed tar with noise: replace captions or images, and record the ground truth.

    `rows` (P,) are those of the scorable samples, which `edits` numbers. Raises `ShardError` if the
    source lacks them, `InputError` if another sample's image cannot be read.
    """
    result = Rewritten()
    places: list[tuple[TarMember, _NoisySample, str]] = []
    scorable = _scorable(source, shard, frozenset(rows), caption_key)
    for number, row in enumerate(rows):
        if row not in scorable:
            raise ShardError("is shorter than it was when it was indexed")
        sample = _NoisySample(scorable[row], edits.get(number), caption_key, result)
        places += [(sample.members[name], sample, name) for name in sample.changed]
    places.sort(key=lambda place: place[0].begin)
    pictures = [sample.edit.image for _, sample, name in places if name == sample.picture]
    out, position = RangeWriter(sink), 0
    out.read_from(source)
    with contextlib.closing(_read_ahead([one for one in pictures if one is not None])) as images:
        for member, sample, name in places:
            out.copy(position, member.begin)
            for data in sample.replaced(name, out.read(member.begin, member.end), images):
                out.write(data)
            position = member.end
    out.copy_rest(position)
    return result


def _scorable(
    source: IO[bytes], shard: ShardRef, rows: Collection[int], caption_key: str | None
) -> dict[int, Sample]:
    """Return the scorable samples of a tar by row, holding only their captions."""
    samples: dict[int, Sample] = {}
    reader = LocatedSamples(shard, caption_key, lambda: from_start(source), read=None)
    with contextlib.suppress(ShardError):  # samples before the error count
        for sample in reader:
            is_whole = sample.status is not SkipReason.SAMPLE_TRUNCATED
            if sample.row in rows and sample.picture is not None and is_whole:
                sample.metadata = {}
                samples[sample.row] = sample
    for row, late in reader.late_members.items():
        if row in samples:  # unless an earlier one exists
            samples[row].members.setdefault("json", late)
    return samples


class _NoisySample:
    """Decides what replaces the members of a scorable sample that are `changed`.

    Other members are copied in pieces: members of no sample may have any size.
    """

    def __init__(
        self, sample: Sample, edit: SampleEdit | None, caption_key: str | None, result: Rewritten
    ) -> None:
        self.members, self.picture = sample.members, cast(str, sample.picture)
        self._result = result
        self._entries = len(sample.captions)
        self._numbers = [one.number for one in sample.captions if one.text is not None]
        self.edit = edit or SampleEdit((None,) * len(self._numbers))
        self._field = (caption_key or "caption").lower()
        lines = without_lines(self._field)
        # The member with one caption per line.
        self._lines = lines if lines != self._field and lines in self.members else None
        names = {*caption_members(self.picture), self._field, lines} - {self.picture}
        self._captions = names & self.members.keys()
        self._is_in_member = self._field in self._captions if caption_key else bool(self._captions)
        texts = {"json"} | (self._captions if self.edit.captions is not None else set())
        self.changed = {
            name
            for name, member in self.members.items()
            if name in texts and member.end - member.begin <= LARGEST_FILE
        }
        if self.edit.image is not None:
            self.changed.add(self.picture)
        self._before_json = None
        if "json" not in self.members:
            read = (self.picture, *self._captions)
            self._before_json = max(read, key=lambda name: self.members[name].begin)
            self.changed.add(self._before_json)

    def replaced(self, name: str, raw: bytes, images: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bytes to write for the member `raw`; `images` yields the next new image."""
        edit = self.edit
        if name == self.picture:
            yield raw if edit.image is None else self._with_image(raw, next(images))
        elif name == "json":
            yield with_content(raw, self._with_truth(read_content(raw)))
        elif edit.captions is None:
            yield raw
        elif name == self._lines:
            before = lines_of(read_content(raw).decode("utf-8", "surrogateescape"))
            after = _replaced_in(before, self._numbers, edit.captions)
            text = "\n".join(" ".join(caption.splitlines()) for caption in after)
            yield with_content(raw, text.encode("utf-8", "surrogateescape"))
        elif not (self._is_in_member and len(edit.captions) > 1):
            yield with_content(raw, _first_of(edit.captions).encode())
        if name == self._before_json:
            self._result.json_added += 1
            info, _ = read_member(raw)
            key = info.name[: -len(name) - 1]
            yield member_bytes(f"{key}.json", self._with_truth(b"{}"), info)

    def _with_image(self, raw: bytes, image: bytes) -> bytes:
        """Write another sample's image under this key, with its original extension."""
        has_further = any(is_image(name) for name in self.members if name != self.picture)
        # Two images of one sample must not share a name, nor one change its meaning.
        is_fixed = "." in self.picture or has_further
        extension = self.picture if is_fixed else read_header(image).name.rpartition(".")[2]
        content = read_content(image)
        if extension == self.picture:
            return with_content(raw, content)
        info, _ = read_member(raw)
        return member_bytes(f"{info.name[: -len(self.picture)]}{extension}", content, info)

    def _with_truth(self, content: bytes) -> bytes:
        record = json_object(content)
        if record is None:
            record = {}
            self._result.json_replaced += 1
        truth, captions = self._truth(record), self.edit.captions
        if captions is not None:
            grows = self._entries == 1 and len(captions) > 1 and self._lines is None
            # Names may differ only in case, so each is replaced under its own.
            fields = ("caption", "text", self._field)
            truth_names = [name for name in record if name.lower() in fields]
            for path in dict.fromkeys((*truth_names, *fields)):
                value = field_at(record, path)
                if isinstance(value, list) and not self._is_in_member and self._lines is None:
                    put_at(truth, path, _replaced_in(value, self._numbers, captions))
                elif isinstance(value, str):
                    put_at(truth, path, captions if grows else _first_of(captions))
            if grows and self._is_in_member:
                truth[self._field] = captions
        return json.dumps(truth).encode()

    def _truth(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with each pair's truth: noisy by this injection or before it."""
        lowered = {name.lower(): value for name, value in record.items()}
        fields = {name: value for name, value in record.items() if name.lower() not in TRUTH}
        edit, numbers = self.edit, self._numbers
        before = [_truth_of(lowered, number) for number in range(self._entries)]
        own = range(len(edit.kinds)) if edit.own is None else edit.own
        parts = edit.noisy_parts or (None,) * len(edit.kinds)
        new = [
            (True, kind, part) if kind else before[numbers[place]]
            for kind, part, place in zip(edit.kinds, parts, own, strict=True)
        ]
        self._result.already_noisy += sum(
            flag for kind, (flag, _, _) in zip(edit.kinds, new, strict=True) if not kind
        )
        after = _replaced_in(before, numbers, new)
        is_one = self._entries == 1 and len(after) == 1
        columns = zip(*after, strict=True) if after else ((),) * len(TRUTH)
        truth = dict(zip(TRUTH, (one[0] if is_one else list(one) for one in columns), strict=True))
        if not any(part is not None for _, _, part in after):
            del truth["noisy_part"]
        return {**fields, **truth}


def _read_ahead(sources: Sequence[ImageSource]) -> Generator[bytes, None, None]:
    """Yield the bytes of each source in order; fetch those in a store concurrently."""
    if not any(stores.is_url(source.url) for source in sources):
        yield from map(_image_bytes, sources)
        return
    with ThreadPoolExecutor(_READERS, "ncclean-images") as pool:
        for start in range(0, len(sources), _AHEAD):
            yield from pool.map(_image_bytes, sources[start : start + _AHEAD])


def _image_bytes(source: ImageSource) -> bytes:
    return stores.read_range(source.url, source.begin, source.end)


def _first_of(captions: Sequence[str]) -> str:
    """Return the first text where only one fits; an empty text if there is none."""
    return captions[0] if captions else ""


def _replaced_in(values: list[Any], numbers: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return a list with values replaced by position: extra ones appended, missing ones dropped.

    The list may be shorter than the positions, if they refer to another list.
    """
    length = max([len(values), *(number + 1 for number in numbers)])
    result: list[Any] = [*values, *[None] * (length - len(values)), *new[len(numbers) :]]
    for number, value in zip(numbers, new, strict=False):
        result[number] = value
    for number in reversed(numbers[len(new) :]):
        del result[number]
    return result


def _truth_of(lowered: dict[str, Any], number: int) -> tuple[bool, Any, Any]:
    """Return whether a record says that a caption is noisy, the kind of noise, and the part."""
    if noise_of(lowered, number) is not True:
        return False, None, None
    kind, part = (of_caption(lowered, name, number) for name in TRUTH[1:])
    return True, kind, part
