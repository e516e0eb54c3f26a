"""Reads the samples of a webdataset shard, ordinary or not, in input order.

`webdataset` itself drops or merges what is unusual (it raises on duplicate keys and cuts a
sample whose members are interleaved with another's); a cleaning tool must account for each.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    Group,
    SampleGroups,
    is_image,
    json_caption,
    parse_json,
    sample_member,
    string,
    utf8,
)
from ncclean.data.samples import Member, Sample, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

# tarfile copies what is left of its buffer at every read: a large one costs more than it saves.
_TAR_BUFFER = 16 << 10
_END_OF_ARCHIVE = tarfile.EOFHeaderError  # type: ignore[attr-defined]


class _Group(Group):
    """The contents of one sample's members, and where they lie if that was asked for."""

    __slots__ = ("_caption_key", "_parsed", "located")

    def __init__(self, row: int, key: str, caption_key: str | None) -> None:
        super().__init__(row, key)
        self.located: list[Member] = []
        self._caption_key = caption_key
        self._parsed: tuple[bytes, dict[str, Any]] | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.members.values()))

    @property
    def has_caption(self) -> bool:
        return self.caption is not None

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the json member, parsed once."""
        raw = self.members.get("json")
        if raw is None:
            return {}
        if self._parsed is None or self._parsed[0] is not raw:
            self._parsed = raw, parse_json(raw)
        return self._parsed[1]

    @property
    def caption(self) -> bytes | str | None:
        """The caption as it lies in the shard."""
        if self._caption_key is not None:
            member: bytes | None = self.members.get(self._caption_key)
            return member if member is not None else string(self.metadata.get(self._caption_key))
        for extension in CAPTION_EXTENSIONS:
            if extension in self.members:
                return cast(bytes, self.members[extension])
        return json_caption(self.metadata)


class TarSamples:
    """Iterates over the samples of a shard once.

    Which members make a sample, and in which order samples come, is up to
    `ncclean.data.sample_groups`. A json that follows its sample late still reaches
    `late_metadata`.

    Raises `ShardError` at the end of the iteration if the file is not a tar, or is cut short.
    By then every sample before the cut has been yielded, the broken one as `sample_truncated`.
    """

    def __init__(
        self,
        shard: ShardRef,
        caption_key: str | None = None,
        opened: Callable[[], BinaryIO] | None = None,
        locate: bool = False,
    ) -> None:
        """`opened` gives the shard's stream where somebody has opened it ahead.

        With `locate`, samples tell where their members lie; the json of `late_metadata` is then
        in `late_members`.
        """
        self.shard = shard
        self._open = opened or shard.open
        self.caption_key = caption_key.lower() if caption_key else None
        self.bytes_read = 0  # of the tar, headers and padding included
        self._locate = locate
        self._located: Member | None = None  # the member just read
        self._groups = SampleGroups(lambda row, key: _Group(row, key, self.caption_key))

    @property
    def samples(self) -> int:
        """Samples begun so far."""
        return self._groups.samples

    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]:
        """By row, the fields of a json that came after its sample had been yielded."""
        return {row: group.metadata for row, group in self._groups.late.items()}

    @property
    def late_members(self) -> dict[int, Member]:
        """By row, where that json lies."""
        return {row: group.located[-1] for row, group in self._groups.late.items()}

    def __iter__(self) -> Iterator[Sample]:
        groups = self._groups
        failure: Exception | None = None
        try:
            for key, extension, data in self._members():
                group = groups.current
                if group is None or key != group.key or extension in group.members:
                    yield from map(self._sample, groups.turn_to(key, extension))
                    group = cast(_Group, groups.current)
                group.members[extension] = data
                if self._located is not None:
                    group.located.append(self._located)
        except _CutMember as error:
            failure = error
            yield from map(self._sample, groups.cut(error.key))
        except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
            failure = error
        yield from map(self._sample, groups.end())
        if failure is not None:
            what = (
                f"is cut short after {self.samples} samples" if self.samples else "cannot be read"
            )
            raise ShardError(f"{what}: {_reason(failure)}", self.samples) from failure

    def _sample(self, group: _Group) -> Sample:
        sample = Sample(
            row=group.row, key=group.key, metadata=group.metadata, members=group.located
        )
        if group.is_repeat:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        if group.is_cut:
            sample.reject(SkipReason.SAMPLE_TRUNCATED, "the shard ends inside this sample")
        image = next((data for ext, data in group.members.items() if is_image(ext)), None)
        if image is None:
            sample.reject(SkipReason.IMAGE_MISSING)
        elif not image:
            sample.reject(SkipReason.IMAGE_CORRUPT, "zero bytes")
        self._read_caption(sample, group)
        if sample.status is SkipReason.OK:
            sample.image = image
        return sample

    def _read_caption(self, sample: Sample, group: _Group) -> None:
        raw = group.caption
        if raw is None:
            sample.reject(SkipReason.CAPTION_MISSING)
            return
        try:
            text = raw if isinstance(raw, str) else raw.decode("utf-8")
            text.encode("utf-8")  # a json may smuggle in lone surrogates
        except UnicodeError:
            sample.reject(SkipReason.CAPTION_NOT_TEXT, "not UTF-8")
            return
        if "\0" in text:
            sample.reject(SkipReason.CAPTION_NOT_TEXT, "contains NUL")
            return
        sample.caption = text.strip()
        if not sample.caption:
            sample.reject(SkipReason.CAPTION_MISSING, "empty")

    def _members(self) -> Iterator[tuple[str, str, bytes]]:
        """Key, lower-case extension and content of each member that belongs to a sample."""
        with self._open() as stream:
            if self.shard.size == 0:
                raise tarfile.ReadError("the file is empty")
            with tarfile.open(
                fileobj=stream, mode="r|*", bufsize=_TAR_BUFFER, tarinfo=_Header
            ) as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # else all are kept
                    self.bytes_read = tar.offset
                    place = sample_member(member.name) if member.isreg() else None
                    if place is None:
                        continue
                    key, extension = place
                    if self._locate:
                        self._located = Member(extension, member.offset, tar.offset)
                    yield key, extension, _content(tar, member, key)
                end = getattr(tar, "header_error", None)
                if end is not None and not isinstance(end, _END_OF_ARCHIVE):
                    # tarfile takes this for a regular end; a shard cut between two members, or
                    # with garbage in its middle, would pass for whole.
                    raise tarfile.ReadError(_reason(end) + ", no end-of-archive marker")


class _Header(tarfile.TarInfo):
    """Remembers why the last header could not be read."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:  # type: ignore[override]
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            tarfile_.header_error = error  # type: ignore[attr-defined]
            raise


class _CutMember(tarfile.ReadError):
    """The shard ends inside a member; `key` is that of its sample."""

    def __init__(self, key: str) -> None:
        super().__init__("unexpected end of data")
        self.key = key


def sample_uid(metadata: dict[str, Any], shard: str, key: str) -> str:
    """The json's `uid`, else 32 hex digits of a hash of shard name and key."""
    uid = metadata.get("uid")
    if isinstance(uid, str) and uid:
        return utf8(uid)
    if isinstance(uid, int) and not isinstance(uid, bool):
        return str(uid)
    return hashed_uid(shard, key)


def hashed_uid(shard: str, key: str) -> str:
    """The uid of a sample that has none: 32 hex digits of a hash of shard name and key."""
    return hashlib.blake2b(f"{shard}/{key}".encode(), digest_size=16).hexdigest()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, key: str) -> bytes:
    extracted = tar.extractfile(member)
    try:
        data = extracted.read() if extracted is not None else b""
    except tarfile.ReadError as error:
        raise _CutMember(key) from error
    if len(data) != member.size:
        raise _CutMember(key)
    return data


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
