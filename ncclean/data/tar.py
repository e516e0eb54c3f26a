"""One webdataset shard to its samples, in input order, whatever the shard looks like.

`webdataset` itself drops or merges what is unusual (it raises on duplicate keys and cuts a
sample whose members are interleaved with another's); a cleaning tool must account for each.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ncclean.data.names import split_name
from ncclean.data.samples import Member, Sample, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

IMAGE_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")
)
# tarfile copies what is left of its buffer at every read: a large one costs more than it saves.
_TAR_BUFFER = 16 << 10
# webdataset's own: members called __something__ describe the shard, not a sample.
_SHARD_METADATA = re.compile(r"__[^/]*__($|/|\.)")
# How many incomplete samples may wait for members that come later in the shard.
_WAITING_SAMPLES = 8192
_WAITING_BYTES = 256 << 20
_END_OF_ARCHIVE = tarfile.EOFHeaderError  # type: ignore[attr-defined]
_LATE = -1  # row of a group that seems to be metadata of a sample handed out before


@dataclass(slots=True)
class _Group:
    """The members of one sample as far as they have been read."""

    row: int
    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    located: list[Member] = field(default_factory=list)
    truncated: bool = False
    _parsed: tuple[bytes, dict[str, Any]] | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the json member, parsed once."""
        raw = self.members.get("json")
        if raw is None:
            return {}
        if self._parsed is None or self._parsed[0] is not raw:
            self._parsed = raw, _parse_json(raw)
        return self._parsed[1]

    @property
    def size(self) -> int:
        return sum(map(len, self.members.values()))


class TarSamples:
    """Iterates over the samples of a shard once.

    A sample is the members that share a key. It is handed out when its image and caption are
    there and the next key begins; one that lacks either waits, in case its members are
    interleaved with others. So samples may come out of order: `Sample.row` is the order of first
    appearance. A json that follows its sample late still reaches `late_metadata`.

    Raises `ShardError` at the end of the iteration if the file is no tar, or breaks off; every
    sample before that has been handed out by then, the broken one as `sample_truncated`.
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
        self.samples = 0
        self.bytes_read = 0  # of the tar, headers and padding included
        self.late_metadata: dict[int, dict[str, Any]] = {}
        self.late_members: dict[int, Member] = {}
        self._locate = locate
        self._located: Member | None = None  # the member just read
        self._rows: dict[str, int] = {}  # key -> row of its sample, once handed out
        self._waiting: dict[str, _Group] = {}
        self._waiting_bytes = 0

    def __iter__(self) -> Iterator[Sample]:
        current: _Group | None = None
        failure: Exception | None = None
        try:
            for key, extension, data in self._members():
                if current is None or key != current.key or extension in current.members:
                    if current is not None:
                        yield from self._settle(current)
                    current = self._resume(key, extension) or self._begin(key, extension)
                current.members[extension] = data
                if self._located is not None:
                    current.located.append(self._located)
        except _CutMember as error:
            failure = error
            if current is None or current.key != error.key:
                if current is not None:
                    yield from self._settle(current)
                current = self._resume(error.key, "") or self._begin(error.key, "")
            current.truncated = True
        except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
            failure = error
        if current is not None:
            yield from self._settle(current, last=True)
        for group in self._waiting.values():
            yield self._finish(group)
        if failure is not None:
            what = f"breaks off after {self.samples} samples" if self.samples else "cannot be read"
            raise ShardError(f"{what}: {_reason(failure)}", self.samples) from failure

    def _begin(self, key: str, extension: str) -> _Group:
        if key in self._rows and extension == "json":
            return _Group(_LATE, key)  # most likely metadata of a sample handed out before
        self.samples += 1
        return _Group(self.samples - 1, key)

    def _resume(self, key: str, extension: str) -> _Group | None:
        """The waiting group that a member belongs to, if it has no such member yet."""
        group = self._waiting.get(key)
        if group is None or extension in group.members:
            return None
        self._waiting_bytes -= group.size
        return self._waiting.pop(key)

    def _settle(self, group: _Group, last: bool = False) -> Iterator[Sample]:
        """Hand out a group that is complete, or let it wait for the rest of its members."""
        if group.row == _LATE:
            if set(group.members) == {"json"}:
                self.late_metadata[self._rows[group.key]] = group.metadata
                for member in group.located:
                    self.late_members[self._rows[group.key]] = member
                return
            group.row = self.samples  # more came under the key: a sample of its own after all
            self.samples += 1
        if last or self._is_complete(group):
            yield self._finish(group)
            return
        if group.key in self._waiting:  # the same members twice: the earlier one is done waiting
            earlier = self._waiting.pop(group.key)
            self._waiting_bytes -= earlier.size
            yield self._finish(earlier)
        self._waiting[group.key] = group
        self._waiting_bytes += group.size
        while len(self._waiting) > _WAITING_SAMPLES or self._waiting_bytes > _WAITING_BYTES:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            self._waiting_bytes -= oldest.size
            yield self._finish(oldest)

    def _is_complete(self, group: _Group) -> bool:
        has_image = any(is_image(extension) for extension in group.members)
        return has_image and self._caption_bytes(group, group.metadata) is not None

    def _finish(self, group: _Group) -> Sample:
        metadata = group.metadata
        sample = Sample(row=group.row, key=group.key, metadata=metadata, members=group.located)
        if group.key in self._rows and self._rows[group.key] != group.row:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        self._rows.setdefault(group.key, group.row)
        if group.truncated:
            sample.reject(SkipReason.SAMPLE_TRUNCATED, "the shard breaks off in this sample")
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
        raw = self._caption_bytes(group, sample.metadata)
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

    def _caption_bytes(self, group: _Group, metadata: dict[str, Any]) -> bytes | str | None:
        if self.caption_key is not None:
            member = group.members.get(self.caption_key)
            return member if member is not None else _string(metadata.get(self.caption_key))
        for extension in ("txt", "caption"):
            if extension in group.members:
                return group.members[extension]
        return _string(metadata.get("caption")) or _string(metadata.get("text"))

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
                    if not member.isreg() or _SHARD_METADATA.match(member.name):
                        continue
                    key, extension = split_name(member.name)
                    if key is None:
                        continue
                    extension = _text(extension).lower()
                    if self._locate:
                        self._located = Member(extension, member.offset, tar.offset)
                    yield _text(key), extension, _content(tar, member, _text(key))
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
    given = metadata.get("uid")
    if isinstance(given, str) and given:
        return _text(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
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


def is_image(extension: str) -> bool:
    return extension.rsplit(".", 1)[-1] in IMAGE_EXTENSIONS


def _parse_json(raw: bytes) -> dict[str, Any]:
    """The fields of a json member under lower-case names (LAION writes TEXT and URL).

    A broken json costs its fields, not the sample: the caption may lie beside it.
    """
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return {str(k).lower(): v for k, v in parsed.items()} if isinstance(parsed, dict) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: str) -> str:
    """Names in a tar may hold any bytes; Parquet strings must be UTF-8."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
