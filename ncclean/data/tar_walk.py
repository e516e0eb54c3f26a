"""Walk the members of a tar by their headers: contents are read on request.

Python's tarfile allocates whatever a header announces, expands sparse files, and takes a broken
header for the end. Here a header never causes allocation, and every kind of end is distinguished.
An ordinary header takes five microseconds, where tarfile takes thirty.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from ncclean.data.unpacking import PIECE_BYTES, UNPACKING_ERRORS

# What reading a tar with broken bytes raises.
TAR_ERRORS = (tarfile.TarError, *UNPACKING_ERRORS)

BLOCK = tarfile.BLOCKSIZE
_REGULAR = (ord("0"), 0)
_LONGEST_HEADER = 1 << 20  # with a long name, or other attributes, of the next member
_LONGEST_NAME = 4096  # bytes, Linux's longest path
_MOST_PADDING = 64 << 20  # zeros after the end of the archive
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE)
_WITHOUT_CONTENT = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE,
    tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE,
)  # fmt: skip
# GNU's sparse members: where a header says that blocks of further holes follow.
_MORE_IN_HEADER, _MORE_IN_BLOCK = 482, 504


class TarMember(NamedTuple):
    """A regular file in a tar: where its headers `begin`, and its `content` of `size` bytes.

    `header` is the header with the owner. A sparse file's content omits its holes.
    """

    name: str
    begin: int
    header: int
    content: int
    size: int
    is_sparse: bool

    def moved(self, by: int) -> TarMember:
        """Return the same member of a tar that begins `by` bytes later in a file."""
        begin, header, content = self.begin + by, self.header + by, self.content + by
        return self._replace(begin=begin, header=header, content=content)

    @property
    def end(self) -> int:
        """The offset at which the padding of the tar member ends."""
        return self.content + self.size + -self.size % BLOCK


class TarWalk:
    """Iterates once over the regular files of an uncompressed tar.

    Calls `on_link` with the name of each link, which `tar` writes for a file's second name. Raises
    one of `TAR_ERRORS` if the tar is broken, has no end, or continues after it.
    """

    def __init__(
        self, stream: IO[bytes], on_link: Callable[[str], None] = lambda name: None
    ) -> None:
        self._stream, self._on_link = stream, on_link
        self._position = 0
        self._length: int | None = None  # known if the stream can seek
        if stream.seekable():
            self._length = stream.seek(0, os.SEEK_END)
            stream.seek(0)

    def __iter__(self) -> Iterator[TarMember]:
        while (member := self._next()) is not None:
            yield member
            self._go_to(member.end)
        self._check_end()

    def read(self, member: TarMember) -> bytes:
        """Read the content of the current tar member. Raises `EOFError` if the tar ends in it."""
        self._go_to(member.content)
        data = self._take(member.size)
        if len(data) < member.size:
            raise EOFError("unexpected end of data")
        return data

    def skip(self, member: TarMember) -> None:
        """Skip the content of the current tar member. Raises `EOFError` if the tar ends in it."""
        end = member.content + member.size
        self._go_to(end)
        if self._position < end:
            raise EOFError("unexpected end of data")

    def _next(self) -> TarMember | None:
        begin, name, size, is_sparse = self._position, None, None, False
        while True:
            header, block = self._position, self._take(BLOCK)
            if len(block) < BLOCK:
                raise tarfile.ReadError("unexpected end of data, no end-of-archive marker")
            ordinary = ordinary_header(block)
            if ordinary is not None and header == begin:  # nearly always
                return TarMember(ordinary[0], begin, begin, self._position, ordinary[1], False)
            if not block.strip(b"\0"):
                return None
            kind, own_name, own_size = _header(block)
            if kind == tarfile.GNUTYPE_LONGNAME:
                name = _text(self._extended(own_size).partition(b"\0")[0])
            elif kind in _EXTENDED:
                records = pax_records(self._extended(own_size))
                is_sparse = is_sparse or any(key.startswith(b"GNU.sparse") for key in records)
                name = _named(records) or name
                size = _number(records[b"size"]) if b"size" in records else size
            elif kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
                self._pass(own_size)
            else:
                name, size = name or own_name, own_size if size is None else size
                if kind == tarfile.GNUTYPE_SPARSE:
                    is_sparse = True
                    self._pass_holes(block)
                if kind in tarfile.REGULAR_TYPES:
                    if len(name) > _LONGEST_NAME:
                        raise tarfile.ReadError(f"a name of {len(name):,} characters")
                    return TarMember(name, begin, header, self._position, size, is_sparse)
                if kind in _LINKS:
                    self._on_link(name)
                if kind not in _WITHOUT_CONTENT:
                    self._pass(size)
                begin, name, size, is_sparse = self._position, None, None, False

    def _extended(self, size: int) -> bytes:
        if size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"an extended header of {size:,} bytes")
        data = self._take(size + -size % BLOCK)
        if len(data) < size:
            raise tarfile.ReadError("unexpected end of data, no end-of-archive marker")
        return data[:size]

    def _pass(self, size: int) -> None:
        self._go_to(self._position + size + -size % BLOCK)

    def _pass_holes(self, header: bytes) -> None:
        """Skip the blocks that list further holes of a sparse file."""
        has_more = header[_MORE_IN_HEADER]
        while has_more:
            block = self._take(BLOCK)
            has_more = block[_MORE_IN_BLOCK] if len(block) == BLOCK else 0

    def _take(self, size: int) -> bytes:
        if self._length is not None and self._position + size > self._length:
            size = max(0, self._length - self._position)  # do not allocate for missing bytes
        data = self._stream.read(size)
        self._position += len(data)
        return data

    def _go_to(self, position: int) -> None:
        """Move to a position, or to the end if that comes first."""
        if self._length is None:
            while self._position < position:
                if not self._take(min(position - self._position, PIECE_BYTES)):
                    break
        elif position != self._position:
            self._position = self._stream.seek(min(position, self._length))

    def _check_end(self) -> None:
        """Check that only zeros are left: a shard with a hole, or two in one file, has more."""
        begin = self._position
        while data := self._take(PIECE_BYTES):
            if data.strip(b"\0"):
                raise tarfile.ReadError("more data after an end-of-archive marker")
            if self._position - begin > _MOST_PADDING:
                raise tarfile.ReadError("far more zeros than an end-of-archive marker has")


def ordinary_header(header: bytes) -> tuple[str, int] | None:
    """Return name and size from a regular file's tar header with a short ASCII name, or None."""
    if header[156] not in _REGULAR or header[257:262] != b"ustar" or header[345]:
        return None
    # Adler's sum is that of the bytes and 1, modulo 65521: the fastest that Python has.
    total = zlib.adler32(header[156:], zlib.adler32(b" " * 8, zlib.adler32(header[:148])))
    try:
        name = header[: header.index(0, 0, 100)].decode("ascii")
        size, checksum = int(header[124:135], 8), int(header[148:156].strip(b" \0"), 8)
    except ValueError:  # a name of 100 bytes or not in ASCII, or a base-256 size
        return None
    is_sound = size >= 0 and (checksum + 1 - (total & 0xFFFF)) % 65521 == 0
    return (name, size) if is_sound and not name.endswith("/") else None


def pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header. Raises `tarfile.ReadError` for malformed ones."""
    records: dict[bytes, bytes] = {}
    begin = 0
    while begin < len(data) and data[begin]:
        blank = data.find(b" ", begin, begin + 8)
        digits = data[begin : max(blank, begin)]
        end = begin + int(digits) if digits.isdigit() else begin
        if not begin < blank < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError("a broken extended header")
        key, _, value = data[blank + 1 : end - 1].partition(b"=")
        records[key] = value
        begin = end
    return records


def _header(block: bytes) -> tuple[bytes, str, int]:
    """Return type, name and size. Raises `tarfile.ReadError` for an invalid header."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise tarfile.ReadError(f"{error}, no end-of-archive marker") from error
    if info.size < 0:
        raise tarfile.ReadError("a member of negative size")
    return info.type, info.name, info.size


def _named(records: dict[bytes, bytes]) -> str:
    return _text(records.get(b"GNU.sparse.name") or records.get(b"path") or b"")


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 20:
        raise tarfile.ReadError("a size that is no number")
    return int(value)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
