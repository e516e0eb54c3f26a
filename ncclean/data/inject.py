"""A shard rewritten with noise: bytes are copied, but for what the noise and the truth change.

Each scorable pair gets `is_noisy` and `noise_kind` in its json, in one of its own if it had none.
A new caption goes wherever a caption is read from: the `.txt` and `.caption` members and the
json's `caption` and `text`. Broken samples, members of no sample and all
that follows a cut stay as they are, byte for byte.
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
from ncclean.data.member_names import split_name
from ncclean.data.member_samples import LARGEST_FILE
from ncclean.data.sample_groups import json_object
from ncclean.data.shard_index import Role, ShardIndex
from ncclean.data.tar_members import member_bytes, read_member
from ncclean.data.unpacking import UNPACKING_ERRORS
from ncclean.errors import ShardError

_CHUNK = 1 << 20
_READERS = 16  # ranged reads of a store at a time
_AHEAD = 64  # images fetched before their place is reached
_MOST_PADDING = 64 << 20  # zeros that are copied
_TRUTH = ("is_noisy", "noise_kind")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The member that holds an image: bytes `begin` to `end` of a file."""

    url: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PairEdit:
    """The change to a pair: the kind of noise, and a new caption or image."""

    kind: str
    caption: str | None = None
    image: ImageSource | None = None


@dataclass
class Rewritten:
    """Counts of a shard's pairs that were left as they are.

    `already_noisy` counts the pairs that this injection left alone and whose json says `is_noisy`:
    they stay so. `json_replaced` counts jsons that could not be parsed.
    """

    already_noisy: int = 0
    json_added: int = 0
    json_replaced: int = 0


def write_noisy(
    source: IO[bytes],
    index: ShardIndex,
    edits: Mapping[int, PairEdit],
    sink: IO[bytes],
    caption_key: str | None = None,
) -> Rewritten:
    """Copy an uncompressed tar, replacing captions or images, and note the truth about each pair.

    Raises `ShardError` if the source ends before its index does, `InputError` if the image of
    another pair cannot be read.
    """
    copier = _Copier(source, sink)
    rewriter = _Rewriter(index, edits, caption_key)
    with contextlib.closing(_read_ahead(rewriter.images_wanted)) as images:
        for place, (_, _, begin, end) in enumerate(index.members.tolist()):
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
        self, index: ShardIndex, edits: Mapping[int, PairEdit], caption_key: str | None
    ) -> None:
        self.result = Rewritten()
        self._index, self._edits = index, edits
        self._fields = {"caption", "text", (caption_key or "caption").lower()}
        self._ends_without_json = _last_members_without_json(index)
        pairs, roles = index.members[:, 0], index.members[:, 1]
        self._images_of = np.bincount(pairs[roles == Role.IMAGE], minlength=index.pairs)
        replaced = {int(index.images[pair]): edit.image for pair, edit in edits.items()}
        self._replaced = {place for place, image in replaced.items() if image is not None}
        self.images_wanted = [image for _, image in sorted(replaced.items()) if image is not None]

    def changes(self, place: int) -> bool:
        """Whether anything else is written for a member, or anything behind it.

        Others are copied piece by piece: what no pair uses may be of any size.
        """
        _, role, begin, end = self._index.members[place].tolist()
        is_text = role in (Role.JSON, Role.CAPTION) and end - begin <= LARGEST_FILE
        return is_text or place in self._replaced or place in self._ends_without_json

    def rewrite(self, place: int, raw: bytes, images: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bytes to write for the member at `place`; `images` gives the next new image."""
        pair, role, _, _ = self._index.members[place].tolist()
        edit = self._edits.get(pair)
        if place in self._replaced:
            info, _ = read_member(raw)
            yield self._with_image(info, pair, next(images))
        elif role == Role.JSON:
            info, content = read_member(raw)
            yield member_bytes(info.name, self._with_truth(content, edit), info)
        elif role == Role.CAPTION and edit is not None and edit.caption is not None:
            info, _ = read_member(raw)
            yield member_bytes(info.name, edit.caption.encode(), info)
        else:
            yield raw
        if place in self._ends_without_json:
            info, _ = read_member(raw)
            self.result.json_added += 1
            truth = json.dumps(_truth({}, edit)).encode()
            yield member_bytes(f"{split_name(info.name)[0]}.json", truth, info)

    def _with_image(self, info: tarfile.TarInfo, pair: int, raw: bytes) -> bytes:
        """Another pair's image under this pair's key, with the extension it came with."""
        donor, content = read_member(raw)
        # Two images of one sample must not end up with one name.
        extension = split_name((donor if self._images_of[pair] == 1 else info).name)[1]
        return member_bytes(f"{split_name(info.name)[0]}.{extension}", content, info)

    def _with_truth(self, content: bytes, edit: PairEdit | None) -> bytes:
        record = json_object(content)
        if record is None:
            record = {}
            self.result.json_replaced += 1
        if edit is None and _is_noisy(record):
            self.result.already_noisy += 1
        if edit is not None and edit.caption is not None:
            for name, value in record.items():
                if name.lower() in self._fields and isinstance(value, str):
                    record[name] = edit.caption
        return json.dumps(_truth(record, edit)).encode()


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
    """Places of the last image or caption of the pairs that have no json."""
    pairs, roles = index.members[:, 0], index.members[:, 1]
    places = np.arange(len(pairs))
    is_read = (roles == Role.CAPTION) | (places == index.images[pairs])
    last = index.images.copy()
    last[pairs[is_read]] = places[is_read]  # the last assignment stays
    last[pairs[roles == Role.JSON]] = -1
    return set(last[last >= 0].tolist())


def _truth(record: dict[str, Any], edit: PairEdit | None) -> dict[str, Any]:
    """The record with what is known about the pair: noisy by this injection or before it."""
    lowered = {name.lower(): value for name, value in record.items()}
    is_noisy = edit is not None or _is_noisy(record)
    before = lowered.get("noise_kind") if is_noisy else None
    kept = {name: value for name, value in record.items() if name.lower() not in _TRUTH}
    return {**kept, "is_noisy": is_noisy, "noise_kind": edit.kind if edit else before}


def _is_noisy(record: dict[str, Any]) -> bool:
    value = {name.lower(): value for name, value in record.items()}.get("is_noisy")
    return value is True or (type(value) is int and value == 1)
