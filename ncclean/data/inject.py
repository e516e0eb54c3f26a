"""A shard rewritten with noise: bytes are copied, but for what the noise and the truth change.

Each scorable sample gets `is_noisy` and `noise_kind` in its json, in one of its own if it had none;
where its captions are a list these are lists, too. A new caption goes wherever a caption is read
from: the `.txt` and `.caption` members and the json's `caption` and `text`. Where there is one text
and the noise makes it several captions, they become a list in the json. Broken samples, members of
no sample and all that follows a cut stay as they are, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ncclean import stores
from ncclean.data.member_samples import LARGEST_FILE
from ncclean.data.nested_fields import field_at, put_at
from ncclean.data.sample_groups import json_object
from ncclean.data.samples import TRUTH, noise_of, of_caption
from ncclean.data.shard_index import CAPTIONS, Role, ShardIndex
from ncclean.data.tar_members import member_bytes, read_member
from ncclean.data.unpacking import UNPACKING_ERRORS
from ncclean.errors import ShardError

_CHUNK = 1 << 20
_READERS = 16  # ranged reads of a store at a time
_AHEAD = 64  # images fetched before their place is reached
_MOST_PADDING = 64 << 20  # zeros that are copied


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The member that holds an image: bytes `begin` to `end` of a file."""

    url: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SampleEdit:
    """The change to a sample: the noise of each of its captions after it, and a new image.

    `kinds` has None for a caption that is clean; `own` says which of the sample's captions that is,
    by default the one in the same place. `captions` are None if they stay as they are.
    `noisy_parts` says which sentence of each caption is noisy, if only one is.
    """

    kinds: tuple[str | None, ...]
    captions: tuple[str, ...] | None = None
    image: ImageSource | None = None
    own: tuple[int, ...] | None = None
    noisy_parts: tuple[int | None, ...] = ()


@dataclass
class Rewritten:
    """Counts of what a shard had before.

    `already_noisy` counts the pairs that this injection left alone and whose json says `is_noisy`:
    they stay so. `json_replaced` counts jsons that could not be parsed.
    """

    already_noisy: int = 0
    json_added: int = 0
    json_replaced: int = 0


def write_noisy(
    source: IO[bytes],
    index: ShardIndex,
    edits: Mapping[int, SampleEdit],
    sink: IO[bytes],
    caption_key: str | None = None,
) -> Rewritten:
    """Copy an uncompressed tar, replacing captions or images, and note the truth about each pair.

    Raises `ShardError` if the source ends before its index does, `InputError` if the image of
    another sample cannot be read.
    """
    copier = _Copier(source, sink)
    rewriter = _Rewriter(index, edits, caption_key)
    with contextlib.closing(_read_ahead(rewriter.images_wanted)) as images:
        for place, (begin, end) in enumerate(index.members[:, 2:4].tolist()):
            copier.copy(begin)
            if not rewriter.changes(place):
                copier.copy(end)
                continue
            for piece in rewriter.rewrite(place, copier.take(end), images):
                sink.write(piece)
    copier.copy_rest()
    return rewriter.result


class _Rewriter:
    """Decides what is written in place of each member."""

    def __init__(
        self, index: ShardIndex, edits: Mapping[int, SampleEdit], caption_key: str | None
    ) -> None:
        self.result = Rewritten()
        self._index, self._edits = index, edits
        self._field = (caption_key or "caption").lower()
        self._fields = list(dict.fromkeys(("caption", "text", self._field)))
        self._ends_without_json = _last_members_without_json(index)
        samples, roles = index.members[:, 0], index.members[:, 1]
        self._has_further = set(samples[roles == Role.FURTHER_IMAGE].tolist())
        is_read = roles == (Role.NAMED if caption_key else Role.CAPTION)
        self._in_member = set(samples[is_read].tolist())
        replaced = {int(index.images[sample]): edit.image for sample, edit in edits.items()}
        self._replaced = {place for place, image in replaced.items() if image is not None}
        self.images_wanted = [image for _, image in sorted(replaced.items()) if image is not None]

    def changes(self, place: int) -> bool:
        """Whether anything else is written for a member, or anything behind it.

        Others are copied piece by piece: what no sample uses may be of any size.
        """
        _, role, begin, end, _ = self._index.members[place].tolist()
        is_text = role in (Role.JSON, *CAPTIONS) and end - begin <= LARGEST_FILE
        return is_text or place in self._replaced or place in self._ends_without_json

    def rewrite(self, place: int, raw: bytes, images: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bytes to write for the member at `place`; `images` gives the next new image."""
        sample, role, _, _, length = self._index.members[place].tolist()
        edit = self._edits.get(sample)
        if place in self._replaced:
            info, _ = read_member(raw)
            yield self._with_image(info, place, next(images))
        elif role == Role.JSON:
            info, content = read_member(raw)
            yield member_bytes(info.name, self._with_truth(content, sample), info)
        elif role in CAPTIONS and edit is not None and edit.captions is not None:
            info, _ = read_member(raw)
            if not (sample in self._in_member and len(edit.captions) > 1):
                yield member_bytes(info.name, _first_of(edit.captions).encode(), info)
        else:
            yield raw
        if place in self._ends_without_json:
            info, _ = read_member(raw)
            self.result.json_added += 1
            truth = self._with_truth(b"{}", sample)
            yield member_bytes(f"{info.name[: -length - 1]}.json", truth, info)

    def _with_image(self, info: tarfile.TarInfo, place: int, raw: bytes) -> bytes:
        """Another sample's image under this one's key, with the extension it came with."""
        sample, _, _, _, length = self._index.members[place].tolist()
        donor, content = read_member(raw)
        key, extension = info.name[: -length - 1], info.name[-length:]
        # Two images of one sample must not end up with one name, nor one change its meaning.
        if "." not in extension and sample not in self._has_further:
            extension = donor.name.rpartition(".")[2]
        return member_bytes(f"{key}.{extension}", content, info)

    def _with_truth(self, content: bytes, sample: int) -> bytes:
        record = json_object(content)
        if record is None:
            record = {}
            self.result.json_replaced += 1
        edit = self._edits.get(sample)
        truth = self._truth(record, sample)
        if edit is not None and edit.captions is not None:
            is_in_member = sample in self._in_member
            has_one = int(self._index.entries[self._index.rows[sample]]) == 1
            grows = has_one and len(edit.captions) > 1
            # Names may differ in case alone, so each is replaced under its own.
            there = [name for name in record if name.lower() in self._fields]
            for path in dict.fromkeys((*there, *self._fields)):
                value = field_at(record, path)
                if isinstance(value, list) and not is_in_member:
                    numbers = self._numbers(sample)
                    put_at(truth, path, _replaced_in(value, numbers, edit.captions))
                elif isinstance(value, str):
                    put_at(truth, path, edit.captions if grows else _first_of(edit.captions))
            if grows and is_in_member:
                truth[self._field] = edit.captions
        return json.dumps(truth).encode()

    def _numbers(self, sample: int) -> list[int]:
        """The places that the usable captions of a sample have in its list."""
        first, last = self._index.first[sample : sample + 2]
        numbers: list[int] = self._index.numbers[first:last].tolist()
        return numbers

    def _truth(self, record: dict[str, Any], sample: int) -> dict[str, Any]:
        """The record with what is known of each pair: noisy by this injection or before it."""
        lowered = {name.lower(): value for name, value in record.items()}
        kept = {name: value for name, value in record.items() if name.lower() not in TRUTH}
        entries, numbers = int(self._index.entries[self._index.rows[sample]]), self._numbers(sample)
        edit = self._edits.get(sample, SampleEdit((None,) * len(numbers)))
        before = [_truth_of(lowered, number) for number in range(entries)]
        own = range(len(edit.kinds)) if edit.own is None else edit.own
        parts = edit.noisy_parts or (None,) * len(edit.kinds)
        new = [
            (True, kind, part) if kind else before[numbers[place]]
            for kind, part, place in zip(edit.kinds, parts, own, strict=True)
        ]
        self.result.already_noisy += sum(
            flag for kind, (flag, _, _) in zip(edit.kinds, new, strict=True) if not kind
        )
        after = _replaced_in(before, numbers, new)
        is_one = entries == 1 and len(after) == 1
        columns = zip(*after, strict=True) if after else ((),) * len(TRUTH)
        truth = dict(zip(TRUTH, (one[0] if is_one else list(one) for one in columns), strict=True))
        if not any(part is not None for _, _, part in after):
            del truth["noisy_part"]
        return {**kept, **truth}


class _Copier:
    """Reads the source from front to back."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink, self._position = source, sink, 0

    def copy(self, until: int) -> None:
        """Copy what lies before `until`."""
        while self._position < until:
            self._sink.write(self.take(min(until, self._position + _CHUNK)))

    def take(self, until: int) -> bytes:
        """Read what lies before `until`."""
        try:
            data = self._source.read(until - self._position)
        except UNPACKING_ERRORS as error:
            raise ShardError(f"cannot be read: {error}") from error
        if len(data) != until - self._position:
            raise ShardError("is shorter than it was when it was indexed")
        self._position = until
        return data

    def copy_rest(self) -> None:
        """Copy to the end. A compressed shard that is cut short has none, and zeros no end."""
        read = getattr(self._source, "read1", self._source.read)
        zeros = 0
        with contextlib.suppress(*UNPACKING_ERRORS):
            while zeros < _MOST_PADDING and (data := read(_CHUNK)):
                zeros = 0 if data.strip(b"\0") else zeros + len(data)
                self._sink.write(data)


def _read_ahead(sources: Sequence[ImageSource]) -> Generator[bytes, None, None]:
    """The bytes of each source in order; those in a store are fetched many at a time."""
    if not any(stores.is_url(source.url) for source in sources):
        for source in sources:
            yield stores.read_range(source.url, source.begin, source.end)
        return
    with ThreadPoolExecutor(_READERS, "ncclean-images") as pool:
        waiting: deque[Future[bytes]] = deque()
        try:
            for source in sources:
                waiting.append(pool.submit(stores.read_range, source.url, source.begin, source.end))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _last_members_without_json(index: ShardIndex) -> set[int]:
    """Places of the last image or caption of the samples that have no json."""
    samples, roles = index.members[:, 0], index.members[:, 1]
    places = np.arange(len(samples))
    is_read = np.isin(roles, CAPTIONS) | (places == index.images[samples])
    last = index.images.copy()
    last[samples[is_read]] = places[is_read]  # the last assignment stays
    last[samples[roles == Role.JSON]] = -1
    return set(last[last >= 0].tolist())


def _first_of(captions: Sequence[str]) -> str:
    """The text where there is place for one; none is an empty one."""
    return captions[0] if captions else ""


def _replaced_in(values: list[Any], numbers: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """A list with other values at some places: more go behind it, places without one are left out.

    It may be shorter than the places, if it is not the list that they are of.
    """
    length = max([len(values), *(number + 1 for number in numbers)])
    result: list[Any] = [*values, *[None] * (length - len(values)), *new[len(numbers) :]]
    for number, value in zip(numbers, new, strict=False):
        result[number] = value
    for number in reversed(numbers[len(new) :]):
        del result[number]
    return result


def _truth_of(lowered: dict[str, Any], number: int) -> tuple[bool, Any, Any]:
    """Whether a record says that a caption is noisy, by which kind of noise, and in which part."""
    if noise_of(lowered, number) is not True:
        return False, None, None
    kind, part = (of_caption(lowered, name, number) for name in TRUTH[1:])
    return True, kind, part
