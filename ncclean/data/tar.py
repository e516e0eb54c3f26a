"""Reads the samples of a webdataset shard, ordinary or not, in input order.

`webdataset` itself drops or merges what is unusual (it raises on duplicate keys and cuts a
sample whose members are interleaved with another's); a cleaning tool must account for each.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ncclean.data.member_samples import CutMember, MemberSamples
from ncclean.data.sample_groups import sample_member
from ncclean.data.samples import CaptionKeys, Member, Sample
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

# tarfile copies what is left of its buffer at every read: a large one costs more than it saves.
_TAR_BUFFER = 16 << 10
_END_OF_ARCHIVE = tarfile.EOFHeaderError  # type: ignore[attr-defined]


class TarSamples(MemberSamples):
    """Iterates over the samples of a shard once.

    Raises `ShardError` at the end of the iteration if the file is not a tar, or is cut short.
    By then every sample before the cut has been yielded, the broken one as `sample_truncated`.
    """

    def __init__(
        self,
        shard: ShardRef,
        caption_key: CaptionKeys = None,
        opened: Callable[[], BinaryIO] | None = None,
        locate: bool = False,
    ) -> None:
        """`opened` gives the shard's stream where somebody has opened it ahead.

        With `locate`, samples tell where their members lie; the json of `late_metadata` is then
        in `late_members`.
        """
        super().__init__(caption_key)
        self.shard = shard
        self._open = opened or shard.open
        self.bytes_read = 0  # of the tar, headers and padding included
        self._locate = locate

    @property
    def late_members(self) -> dict[int, Member]:
        """By row, where that json lies."""
        return {row: group.located[-1] for row, group in self._groups.late.items()}

    def __iter__(self) -> Iterator[Sample]:
        try:
            yield from self._grouped()
        except (CutMember, tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
            what = (
                f"is cut short after {self.samples} samples" if self.samples else "cannot be read"
            )
            raise ShardError(f"{what}: {_reason(error)}", self.samples) from error

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
                if not _is_at_end(tar):
                    raise tarfile.ReadError("more data after an end-of-archive marker")


class _Header(tarfile.TarInfo):
    """Remembers why the last header could not be read."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:  # type: ignore[override]
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            tarfile_.header_error = error  # type: ignore[attr-defined]
            raise


def _is_at_end(tar: tarfile.TarFile) -> bool:
    """Whether nothing but zeros is left: a shard with a hole, or two in one file, has more."""
    while data := tar.fileobj.read(_TAR_BUFFER):
        if data.strip(b"\0"):
            return False
    return True


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, key: str) -> bytes:
    extracted = tar.extractfile(member)
    try:
        data = extracted.read() if extracted is not None else b""
    except tarfile.ReadError as error:
        raise CutMember(key) from error
    if len(data) != member.size:
        raise CutMember(key)
    return data


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
