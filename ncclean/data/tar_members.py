"""One member of a tar: its bytes, headers and padding included, written and read."""

from __future__ import annotations

import io
import tarfile

from ncclean.data.tar_walk import BLOCK, TarMember, TarWalk, ordinary_header

END_OF_ARCHIVE = bytes(2 * BLOCK)
_LARGEST_OWNER, _LATEST = 8**7, 8**11  # what the octal fields of a header hold


def member_bytes(name: str, content: bytes, like: tarfile.TarInfo | None = None) -> bytes:
    """Header, content and padding of a tar member, with mode, time and owner of another.

    Without another it has neither time nor owner, so that equal content gives equal bytes.
    """
    info = _header(name, len(content))
    if like is not None:
        info.mode, info.uname, info.gname = like.mode, like.uname, like.gname
        info.uid = like.uid if 0 <= like.uid < _LARGEST_OWNER else 0
        info.gid = like.gid if 0 <= like.gid < _LARGEST_OWNER else 0
        info.mtime = int(like.mtime) if 0 <= like.mtime < _LATEST else 0
    return _encoded(info) + content + bytes(-len(content) % BLOCK)


def with_content(raw: bytes, content: bytes) -> bytes:
    """The member `raw` with another content, and headers that tell the size of this one."""
    if ordinary_header(raw[:BLOCK]) is None:
        info, _ = read_member(raw)
        return member_bytes(info.name, content, info)
    header = bytearray(raw[:BLOCK])
    header[124:136] = b"%011o\0" % len(content)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % BLOCK)


def member_header(name: str, size: int) -> bytes:
    """Tar headers, without time and owner, for a member whose content is copied."""
    return _encoded(_header(name, size))


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Append a member to an open tar, in the tar's format, without time and owner."""
    tar.addfile(_header(name, len(content)), io.BytesIO(content))


def read_member(raw: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Header and content of one member from its bytes in the tar; a sparse file has none."""
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
    """The content of one member from its bytes in the tar; that of a sparse file is empty."""
    member = read_header(raw)
    return b"" if member.is_sparse else raw[member.content :][: member.size]


def _header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def _encoded(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
