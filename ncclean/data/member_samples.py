"""Assemble samples from their members, wherever they lie.

`ncclean.data.sample_groups` decides which members make a sample, and the order of samples.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

from ncclean.data.nested_fields import field_at, lines_of, without_lines
from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    HEIC_NOT_READ,
    IMAGE_EXTENSIONS,
    JSON_CAPTIONS,
    LARGEST_TEXT,
    PARSED_BYTES,
    Group,
    SampleGroups,
    caption_members,
    identifier,
    is_caption,
    is_image,
    is_unread_image,
    json_object,
    may_be_caption,
    parse_json,
    usual_caption,
)
from ncclean.data.samples import Caption, CaptionKeys, FurtherMembers, Sample, SkipReason, Unread
from ncclean.data.shards import ShardRef

LARGEST_FILE = 256 << 20  # bytes of an image
_MOST_CAPTIONS = 1000  # of a sample
_SHARD_CAPTIONS, _BYTES_PER_CAPTION = 20_000, 64
_MOST_LINKED = 64  # keys, of samples that may not have ended yet
_BYTE_ORDER_MARK = "\ufeff"  # Windows' Notepad begins texts with it


class Contents(Group):
    """The members of one sample of a tar: their contents and byte positions, by extension."""

    __slots__ = ("_caption_keys", "_parsed", "located")

    def __init__(
        self, row: int, key: str, caption_key: CaptionKeys, image_key: str | None = None
    ) -> None:
        super().__init__(row, key, image_key)
        self.located: dict[str, Any] = {}
        self._caption_keys = caption_keys(caption_key)
        self._parsed: tuple[bytes, dict[str, Any]] | None = None

    def hand_over(self, extension: str, other: Group, name: str) -> None:
        """Move a member of this sample to another one, with its byte position."""
        super().hand_over(extension, other, name)
        if extension in self.located and isinstance(other, Contents):
            other.located[name] = self.located[extension]

    def further_images(self, picture: str | None) -> list[str]:
        """Return extensions of members that are images, but not the sample's."""
        return [
            name
            for name in self.members
            if name != picture and (is_image(name) or is_unread_image(name))
        ]

    @property
    def further_captions(self) -> list[str]:
        """Extensions of members that look like captions but are not read.

        Empty if a caption key is given.
        """
        if self._caption_keys:
            return []
        usual = self._usual_caption
        return [name for name in self.members if name != usual and is_caption(name)]

    @property
    def _usual_caption(self) -> str | None:
        """Return the extension of the caption if none is named: `txt`, or `jpg.txt` of an image."""
        names = caption_members(self.picture) if self.has_dots else CAPTION_EXTENSIONS
        return next((name for name in names if name in self.members), None)

    @property
    def size(self) -> int:
        contents = (content for content in self.members.values() if isinstance(content, bytes))
        json = self.members.get("json")
        return sum(map(len, contents)) + PARSED_BYTES * len(
            json if isinstance(json, bytes) else b""
        )

    @property
    def has_caption(self) -> bool:
        is_caption = [may_be_caption(value) for _, value in self.captions]
        return all(is_caption) if self._caption_keys else any(is_caption)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the fields of a sample's json member, parsed once."""
        raw = self.members.get("json")
        if not isinstance(raw, bytes):
            return {}
        if self._parsed is None or self._parsed[0] is not raw:
            self._parsed = raw, parse_json(raw)
        return self._parsed[1]

    @property
    def record(self) -> dict[str, Any]:
        """Return the object of a sample's json member, with names as written."""
        raw = self.members.get("json")
        return (json_object(raw) or {}) if isinstance(raw, bytes) else {}

    @property
    def captions(self) -> list[tuple[str | None, object]]:
        """Return a sample's captions, a text or a list each, by the requested caption key."""
        if self._caption_keys:
            return [(key, self._named(key)) for key in self._caption_keys]
        if (usual := self._usual_caption) is not None:
            return [(None, self.members[usual])]
        return [(None, usual_caption(self.metadata, JSON_CAPTIONS))]

    def _named(self, key: str) -> object:
        """Return the value that a caption key names: a member, its lines, or a json field."""
        if key in self.members:
            return self.members[key]
        text = self.members.get(without_lines(key))
        if isinstance(text, bytes):
            return lines_of(text.decode("utf-8", "surrogateescape"))
        return field_at(self.metadata, key)


class CaptionsLeft:
    """A limit on the captions of a shard, by its bytes, besides the first caption of each image.

    A few packed bytes may stand for millions, which all become rows.
    """

    def __init__(self, size: int) -> None:
        self._left = _SHARD_CAPTIONS + size // _BYTES_PER_CAPTION

    def take(self, sample: Sample) -> None:
        """Count the captions of a sample; reject it once there are too many."""
        further = max(0, len(sample.captions) - 1)
        if further <= self._left:
            self._left -= further
            return
        sample.captions = []
        sample.status = SkipReason.CAPTION_TOO_LARGE
        sample.error = "the shard has more captions than its size allows"


class CutMember(Exception):
    """The error of an input that ends or is broken inside the member `key`.`extension`."""

    def __init__(self, key: str, extension: str, reason: str) -> None:
        super().__init__(reason)
        self.key, self.extension = key, extension


class MemberSamples(ABC):
    """Iterates once over the samples of a shard, formed from its members.

    A json that comes after its sample still reaches `late_metadata`; `further` counts the images
    and captions that are in no row.
    """

    def __init__(
        self,
        shard: ShardRef,
        caption_key: CaptionKeys,
        whole: bool = False,
        shows_all: bool = False,
    ) -> None:
        """With `whole`, samples have `rows`; with `shows_all`, images without a caption, too."""
        self.shard = shard
        self.further = FurtherMembers()
        # The last keys whose images are links: a packed tar may have any number of them.
        self.linked: deque[str] = deque(maxlen=_MOST_LINKED)
        self._whole, self._shows_all = whole, shows_all
        self.caption_keys = caption_keys(caption_key)
        self._captions = {*self.caption_keys, *map(without_lines, self.caption_keys)}
        self._captions_left = CaptionsLeft(shard.size)
        self._groups = SampleGroups(
            lambda row, key: Contents(row, key, self.caption_keys, shard.image_key)
        )

    @property
    def samples(self) -> int:
        """Return the number of samples begun so far."""
        return self._groups.samples

    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]:
        """Return json fields that came after their sample had been yielded, by row."""
        return {row: group.metadata for row, group in self._groups.late.items()}

    @abstractmethod
    def _members(self) -> Iterator[tuple[str, str, bytes | Unread, Any]]:
        """Yield key, lower-case extension, content and location of each member of a sample.

        The content of an unused member may be omitted; `_locate` interprets the location. Raises
        `CutMember` if the input ends inside a member.
        """

    @abstractmethod
    def _locate(self, sample: Sample, group: Contents) -> None:
        """Set the place of a sample whose members have all been read."""

    def _grouped(self) -> Iterator[Sample]:
        """Yield the samples, then raise what `_members` raises."""
        groups = self._groups
        failure: Exception | None = None
        try:
            for key, name, data, location in self._members():
                held = len(data) if isinstance(data, bytes) else 0
                extension, finished = groups.open(key, name, held)
                yield from map(self._sample, finished)
                group = cast(Contents, groups.current)
                group.members[extension] = data
                group.located[extension] = location
        except CutMember as error:
            failure = error
            yield from map(self._sample, groups.cut(error.key, error.extension))
        except Exception as error:
            failure = error
        yield from map(self._sample, groups.end())
        self.further.split_keys = groups.split_samples
        if failure is not None:
            raise failure

    def _sample(self, group: Contents) -> Sample:
        picture = group.picture
        sample = Sample(
            row=group.row,
            key=group.key,
            metadata=group.metadata,
            picture=picture,
            further_images=group.further_images(picture),
        )
        self._locate(sample, group)
        for name in sample.further_images:
            self.further.add(self.further.images, name)
        for name in group.further_captions:
            self.further.add(self.further.captions, name)
        if self._whole:
            sample.rows = [group.record]
        if group.is_repeat:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        if group.is_cut:
            sample.reject(SkipReason.SAMPLE_TRUNCATED, "the shard ends inside this sample")
        image, fields = group.members.get(picture or ""), group.members.get("json")
        if image is None and group.image_key is not None:
            sample.reject(SkipReason.IMAGE_MISSING, f"no member ends in .{group.image_key}")
        elif image is None and any(map(is_unread_image, group.members)):
            sample.reject(SkipReason.IMAGE_CORRUPT, HEIC_NOT_READ)
        elif image is None:
            what = (
                "the image is a link, which is not followed" if group.key in self.linked else None
            )
            sample.reject(SkipReason.IMAGE_MISSING, what)
        elif isinstance(image, Unread):
            sample.reject(image.reason, image.what)
        elif not image:
            sample.reject(SkipReason.IMAGE_CORRUPT, "zero bytes")
        captions = group.captions
        if captions == [(None, None)] and isinstance(fields, Unread):
            captions = [(None, fields)]  # where the caption may be
        take_captions(sample, captions)
        self._captions_left.take(sample)
        for _, text in captions:
            if isinstance(text, bytes) and b"\n" in text.strip():
                self.further.caption_lines += 1
        if isinstance(image, bytes) and (self._shows_all or sample.status is SkipReason.OK):
            sample.image = image
        return sample

    def _is_used(self, key: str, extension: str) -> bool:
        """Check whether the next member's content is used: that of an image, a caption or a json.

        A member with a dot in its extension may turn out to have its own sample.
        """
        name = extension.rpartition(".")[2]
        if self.shard.image_key is not None and self.shard.image_key in (name, extension):
            return True
        if is_image(name) and self.shard.image_key is None:
            group = self._groups.current
            if name != extension or group is None or group.key != key:
                return True
            # Of two images only the first is used; another sample may have this key.
            return extension in group.members or group.members.keys().isdisjoint(IMAGE_EXTENSIONS)
        return name in (*CAPTION_EXTENSIONS, "json") or extension in self._captions


def too_large(extension: str, size: int) -> Unread | None:
    """Return a placeholder for a tar member that exceeds the size limit of its kind, or None."""
    if is_image(extension):
        most, reason = LARGEST_FILE, SkipReason.IMAGE_TOO_LARGE
    else:
        most, reason = LARGEST_TEXT, SkipReason.CAPTION_TOO_LARGE
    if size <= most:
        return None
    return Unread(reason, f"{size:,} bytes, the limit is {most:,}")


def caption_keys(names: CaptionKeys) -> tuple[str, ...]:
    """Return the caption keys as lower-case names of members and fields; empty for the defaults."""
    several = (names,) if isinstance(names, str) else names or ()
    return tuple(name.lower() for name in several)


def take_captions(sample: Sample, texts: Iterable[tuple[str | None, object]]) -> None:
    """Set the captions of a sample from the members and fields that the caption keys name.

    Each name and each list entry is a caption, even if empty. Without a usable caption the sample
    is rejected for the reason of the first, and also if there are more than a thousand.
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
        text = text.removeprefix(_BYTE_ORDER_MARK)
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
    """Return the json's `uid`, else 32 hex digits of a hash of shard name and key."""
    return own_uid(metadata) or hashed_uid(shard, key)


def own_uid(metadata: dict[str, Any]) -> str | None:
    """Return the `uid` of a json."""
    return identifier(metadata.get("uid"))


def uid_among(uids: Collection[str], metadata: dict[str, Any], shard: str, key: str) -> str | None:
    """Return the uid that a sample has in a table; None if the table lacks the sample.

    `uids` are the table's uids under the sample's key in its shard. Corpora may share shard names
    and keys; a uid stated in the json tells their samples apart. A json without one matches the
    only sample of its name, or of several that whose uid was derived from the name.
    """
    own = own_uid(metadata)
    if own is None and len(uids) == 1:
        return next(iter(uids))
    uid = hashed_uid(shard, key) if own is None else own
    return uid if uid in uids else None


def hashed_uid(shard: str, key: str) -> str:
    """Return the uid of a sample without one: 32 hex digits of a hash of shard name and key."""
    return hashed_uids(shard, [key])[0]


def hashed_uids(shard: str, keys: Iterable[str]) -> list[str]:
    """Return `hashed_uid` of each key, in half the time."""
    begin = hashlib.blake2b(f"{shard}/".encode(), digest_size=16)
    uids = []
    for key in keys:
        one = begin.copy()
        one.update(key.encode())
        uids.append(one.hexdigest())
    return uids
