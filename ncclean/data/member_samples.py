"""Members of samples, wherever they lie, to the samples that they make.

Which members make a sample, and in which order samples come, is up to
`ncclean.data.sample_groups`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ncclean.data.nested_fields import field_at
from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    HEIC_NOT_READ,
    JSON_CAPTIONS,
    Group,
    SampleGroups,
    is_image,
    is_unread_image,
    json_object,
    may_be_caption,
    parse_json,
    usual_caption,
    utf8,
)
from ncclean.data.samples import Caption, CaptionKeys, Member, Sample, SkipReason, Unread
from ncclean.data.text_budget import LARGEST_TEXT, TextBudget, parsed_size

LARGEST_FILE = 256 << 20  # bytes of an image
_MOST_CAPTIONS = 1000  # of a sample


class Contents(Group):
    """The contents of one sample's members, and where they lie if that was asked for.

    `image` is the first one; nobody asks for the others.
    """

    __slots__ = ("_caption_keys", "_parsed", "image", "located")

    def __init__(self, row: int, key: str, caption_key: CaptionKeys) -> None:
        super().__init__(row, key)
        self.located: list[Member] = []
        self.image: bytes | Unread | None = None
        self._caption_keys = caption_keys(caption_key)
        self._parsed: tuple[bytes, dict[str, Any]] | None = None

    @property
    def size(self) -> int:
        contents = (content for content in self.members.values() if isinstance(content, bytes))
        return sum(map(len, contents)) + parsed_size(self.members.get("json"))

    @property
    def has_caption(self) -> bool:
        there = [may_be_caption(value) for _, value in self.captions]
        return all(there) if self._caption_keys else any(there)

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of a sample's json member, parsed once."""
        raw = self.members.get("json")
        if not isinstance(raw, bytes):
            return {}
        if self._parsed is None or self._parsed[0] is not raw:
            self._parsed = raw, parse_json(raw)
        return self._parsed[1]

    @property
    def record(self) -> dict[str, Any]:
        """The object of a sample's json member, its names as they are written."""
        raw = self.members.get("json")
        return (json_object(raw) or {}) if isinstance(raw, bytes) else {}

    @property
    def captions(self) -> list[tuple[str | None, object]]:
        """A sample's captions, a text or a list each, by the caption key asked for."""
        if self._caption_keys:
            return [
                (key, self.members[key] if key in self.members else field_at(self.metadata, key))
                for key in self._caption_keys
            ]
        for extension in CAPTION_EXTENSIONS:
            if extension in self.members:
                return [(None, self.members[extension])]
        return [(None, usual_caption(self.metadata, JSON_CAPTIONS))]


class CutMember(Exception):
    """The input ends inside a member, or is broken there; `key` is that of its sample."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class MemberSamples(ABC):
    """Iterates over the samples of a shard once.

    A json that follows its sample late still reaches `late_metadata`.
    """

    def __init__(self, caption_key: CaptionKeys, size: int, whole: bool = False) -> None:
        """`size` is that of the shard in bytes; with `whole`, samples have `rows`."""
        self._whole = whole
        self.caption_keys = caption_keys(caption_key)
        self._budget = TextBudget(size)
        self._located: Member | None = None  # the member just read
        self._groups = SampleGroups(lambda row, key: Contents(row, key, self.caption_keys))

    @property
    def samples(self) -> int:
        """Number of samples begun so far."""
        return self._groups.samples

    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]:
        """Json fields that followed after their sample had been yielded, by row."""
        return {row: group.metadata for row, group in self._groups.late.items()}

    @abstractmethod
    def _members(self) -> Iterator[tuple[str, str, bytes | Unread]]:
        """Key, lower-case extension and content of each member that belongs to a sample.

        The content of one that is not used may be left out. Raises `CutMember` where the input
        ends inside one.
        """

    def _grouped(self) -> Iterator[Sample]:
        """The samples; raises what `_members` raises, when all of them have been yielded."""
        groups = self._groups
        failure: Exception | None = None
        try:
            for key, extension, data in self._members():
                group = groups.current
                if group is None or key != group.key or extension in group.members:
                    yield from map(self._sample, groups.turn_to(key, extension))
                    group = cast(Contents, groups.current)
                group.members[extension] = data
                if group.image is None and is_image(extension):
                    group.image = data
                if self._located is not None:
                    group.located.append(self._located)
        except CutMember as error:
            failure = error
            yield from map(self._sample, groups.cut(error.key))
        except Exception as error:
            failure = error
        yield from map(self._sample, groups.end())
        if failure is not None:
            raise failure

    def _sample(self, group: Contents) -> Sample:
        sample = Sample(
            row=group.row, key=group.key, metadata=group.metadata, members=group.located
        )
        if self._whole:
            sample.rows = [group.record]
        if group.is_repeat:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        if group.is_cut:
            sample.reject(SkipReason.SAMPLE_TRUNCATED, "the shard ends inside this sample")
        image, fields = group.image, group.members.get("json")
        if image is None and any(map(is_unread_image, group.members)):
            sample.reject(SkipReason.IMAGE_CORRUPT, HEIC_NOT_READ)
        elif image is None:
            sample.reject(SkipReason.IMAGE_MISSING)
        elif isinstance(image, Unread):
            sample.reject(image.reason, image.what)
        elif not image:
            sample.reject(SkipReason.IMAGE_CORRUPT, "zero bytes")
        captions = group.captions
        if captions == [(None, None)] and isinstance(fields, Unread):
            captions = [(None, fields)]  # where the caption may be
        take_captions(sample, captions)
        self._budget.take(sample, parsed_size(fields) if sample.metadata else 0)
        if sample.status is SkipReason.OK and isinstance(image, bytes):
            sample.image = image
        return sample

    def _is_used(self, key: str, extension: str) -> bool:
        """Whether the content of the next member is: that of an image, a caption or a json."""
        if is_image(extension):
            group = self._groups.current
            if group is None or group.key != key or group.image is None:
                return True
            return extension in group.members  # of another sample with this key
        return extension in (*CAPTION_EXTENSIONS, "json", *self.caption_keys)


def too_large(extension: str, size: int) -> Unread | None:
    """A placeholder for a tar member that exceeds the size limit of its kind."""
    if is_image(extension):
        most, reason = LARGEST_FILE, SkipReason.IMAGE_TOO_LARGE
    else:
        most, reason = LARGEST_TEXT, SkipReason.CAPTION_TOO_LARGE
    if size <= most:
        return None
    return Unread(reason, f"{size:,} bytes, the limit is {most:,}")


def caption_keys(names: CaptionKeys) -> tuple[str, ...]:
    """The caption keys as lower-case names of members and fields; empty for the defaults."""
    several = (names,) if isinstance(names, str) else names or ()
    return tuple(name.lower() for name in several)


def take_captions(sample: Sample, texts: Iterable[tuple[str | None, object]]) -> None:
    """Set the captions of a sample from the members and fields that the caption keys name.

    Each name and each entry of a list is one, if only to say that nothing is there. Without one
    that can be used the sample is rejected, for the reason of the first, and with more than a
    thousand.
    """
    named = list(texts)
    count = sum(len(value) if isinstance(value, list) else 1 for _, value in named)
    if count > _MOST_CAPTIONS:
        what = f"{count:,} captions, the limit is {_MOST_CAPTIONS:,}"
        sample.reject(SkipReason.CAPTION_TOO_LARGE, what)
        return
    entries = (
        (key, raw)
        for key, value in named
        for raw in (value if isinstance(value, list) else [value])
    )
    sample.captions = [_caption(number, key, raw) for number, (key, raw) in enumerate(entries)]
    if sample.caption is None:
        nothing = Caption(status=SkipReason.CAPTION_MISSING)
        first = next(iter(sample.captions), nothing)
        sample.reject(first.status, first.error)


def _caption(number: int, key: str | None, raw: object) -> Caption:
    caption = Caption(number, key)
    if isinstance(raw, Unread):
        caption.status, caption.error = raw.reason, raw.what
        return caption
    if not isinstance(raw, str | bytes):
        caption.status = SkipReason.CAPTION_MISSING
        return caption
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        text.encode("utf-8")  # a json may smuggle in lone surrogates
    except UnicodeError:
        caption.status, caption.error = SkipReason.CAPTION_NOT_TEXT, "not UTF-8"
        return caption
    if "\0" in text:
        caption.status, caption.error = SkipReason.CAPTION_NOT_TEXT, "contains NUL"
    elif not text.strip():
        caption.status, caption.error = SkipReason.CAPTION_MISSING, "empty"
    else:
        caption.text = text.strip()
    return caption


def sample_uid(metadata: dict[str, Any], shard: str, key: str) -> str:
    """The json's `uid`, else 32 hex digits of a hash of shard name and key."""
    return own_uid(metadata) or hashed_uid(shard, key)


def own_uid(metadata: dict[str, Any]) -> str | None:
    """The `uid` of a json."""
    uid = metadata.get("uid")
    if isinstance(uid, str) and uid:
        return utf8(uid)
    return str(uid) if isinstance(uid, int) and not isinstance(uid, bool) else None


def hashed_uid(shard: str, key: str) -> str:
    """The uid of a sample that has none: 32 hex digits of a hash of shard name and key."""
    return hashed_uids(shard, [key])[0]


def hashed_uids(shard: str, keys: Iterable[str]) -> list[str]:
    """`hashed_uid` of each key, in half the time."""
    begin = hashlib.blake2b(f"{shard}/".encode(), digest_size=16)
    uids = []
    for key in keys:
        one = begin.copy()
        one.update(key.encode())
        uids.append(one.hexdigest())
    return uids
