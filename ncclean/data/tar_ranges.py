"""Copy members of a tar, and ranges of several: their bytes, headers and padding included."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO

from ncclean.data.tar import reason_of
from ncclean.data.tar_walk import BLOCK, TarMember, TarWalk, ordinary_header
from ncclean.data.unpacking import UNPACKING_ERRORS, unpacked
from ncclean.errors import ShardError

_BUFFER_BYTES = 1 << 20
_READ_BUFFER = 64 << 10  # of headers
_MOST_PADDING = 64 << 20  # zeros copied at most


@contextlib.contextmanager
def local_tar(
    opened: Callable[[], BinaryIO], is_remote: bool, problems: list[str]
) -> Iterator[IO[bytes]]:
    """Open a tar as an uncompressed local file; fetch or unpack others temporarily.

    What truncates the tar is added to `problems`. Raises `ShardError` for a tar that cannot be read
    at all.
    """
    with contextlib.ExitStack() as stack:
        try:
            raw = stack.enter_context(opened())
            stream = unpacked(raw)
        except (OSError, ValueError) as error:
            raise ShardError(f"cannot be read: {reason_of(error)}") from error
        if stream is raw and not is_remote:
            yield raw
            return
        local = stack.enter_context(tempfile.TemporaryFile())
        for data in _pieces(stream, problems):
            if data.strip(b"\0"):
                local.write(data)
            else:  # a hole: a few megabytes of zeros unpack to gigabytes
                local.seek(len(data), os.SEEK_CUR)
        local.truncate()
        yield local


def from_start(file: IO[bytes]) -> BinaryIO:
    """Open a file once more, even if renamed since; both share one position."""
    again = open(os.dup(file.fileno()), "rb", _READ_BUFFER)  # noqa: SIM115  the caller closes it
    again.seek(0)
    return again


def _pieces(stream: IO[bytes], problems: list[str]) -> Iterator[bytes]:
    """Yield the rest of a stream, as far as it can be read."""
    read = getattr(stream, "read1", stream.read)
    try:
        while data := read(_BUFFER_BYTES):
            yield data
    except UNPACKING_ERRORS as error:
        problems.append(f"cannot be read to its end: {error}")


class RangeWriter:
    """Writes bytes, and byte ranges of a source file, to a file.

    Adjacent ranges are read together, into a large buffer: measured on ranges of three samples,
    this is 1.6 times as fast as copying each inside the kernel (sendfile, copy_file_range).
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out  # buffered
        self._source = 0
        self._start = self._end = 0

    def read_from(self, source: IO[bytes]) -> None:
        """Take further ranges from another source file."""
        self.flush()
        self._source = source.fileno()

    def copy(self, start: int, end: int) -> None:
        if start != self._end:
            self.flush()
            self._start = start
        self._end = end

    def copy_rest(self, start: int) -> None:
        """Copy the source up to its end, but stop within endless zeros."""
        self.flush()
        zeros = 0
        while zeros < _MOST_PADDING and (data := self.read(start, start + _BUFFER_BYTES)):
            zeros = 0 if data.strip(b"\0") else zeros + len(data)
            self._out.write(data)
            start += len(data)

    def write(self, data: bytes) -> None:
        self.flush()
        self._out.write(data)

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._source, end - start, start)

    def flush(self) -> None:
        """Write the ranges that have been collected."""
        start, end = self._start, self._end
        self._start = self._end = 0
        while start < end:
            data = self.read(start, min(end, start + _BUFFER_BYTES))
            if not data and end - start >= BLOCK:
                raise ShardError("the file has become shorter while it was copied")
            # A tar may be cut in the padding of its last member, whose content is complete.
            self._out.write(data or bytes(end - start))
            start += len(data) or end - start


END_OF_ARCHIVE = bytes(2 * BLOCK)
_LARGEST_OWNER, _LATEST = 8**7, 8**11  # limits of the header's octal fields


def member_bytes(name: str, content: bytes, like: tarfile.TarInfo | None = None) -> bytes:
    """Return header, content and padding of a tar member, with mode, time and owner of another.

    Without another, it has neither time nor owner, so equal content gives equal bytes.
    """
    info = _header(name, len(content))
    if like is not None:
        info.mode, info.uname, info.gname = like.mode, like.uname, like.gname
        info.uid = like.uid if 0 <= like.uid < _LARGEST_OWNER else 0
        info.gid = like.gid if 0 <= like.gid < _LARGEST_OWNER else 0
        info.mtime = int(like.mtime) if 0 <= like.mtime < _LATEST else 0
    return _encoded(info) + content + bytes(-len(content) % BLOCK)


def with_content(raw: bytes, content: bytes) -> bytes:
    """Replace the content of a tar member, given as bytes, with headers that state the new size."""
    if ordinary_header(raw[:BLOCK]) is None:
        info, _ = read_member(raw)
        return member_bytes(info.name, content, info)
    header = bytearray(raw[:BLOCK])
    header[124:136] = b"%011o\0" % len(content)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % BLOCK)


def member_header(name: str, size: int) -> bytes:
    """Return tar headers, without time and owner, for a member whose content is copied."""
    return _encoded(_header(name, size))


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Append a member to an open tar, in the tar's format, without time and owner."""
    tar.addfile(_header(name, len(content)), io.BytesIO(content))


def read_member(raw: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Return header and content of one member from its bytes; a sparse file has no content."""
    member = read_header(raw)
    info = tarfile.TarInfo.frombuf(
        raw[member.header : member.header + BLOCK], "utf-8", "surrogateescape"
    )
    info.name = member.name
    return info, read_content(raw)


def read_header(raw: bytes) -> TarMember:
    """Parse a tar member's headers at the beginning of `raw`."""
    ordinary = ordinary_header(raw[:BLOCK])
    if ordinary is not None:
        return TarMember(ordinary[0], 0, 0, BLOCK, ordinary[1], False)
    return next(iter(TarWalk(io.BytesIO(raw))))


def read_content(raw: bytes) -> bytes:
    """Return the content of one member from its bytes; that of a sparse file is empty."""
    member = read_header(raw)
    return b"" if member.is_sparse else raw[member.content :][: member.size]


def _header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def _encoded(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
