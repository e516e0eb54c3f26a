"""Where the samples of a tar lie: byte ranges to copy or read without unpacking.

An ordinary header is read in two microseconds where tarfile takes thirty, which for the small
files of a web corpus is more than copying them takes; whatever is not ordinary is left to tarfile.
"""

from __future__ import annotations

import mmap
import tarfile
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ncclean.data.names import split_name
from ncclean.errors import ShardError

BLOCK = 512
_REGULAR = (ord("0"), 0)


@dataclass(slots=True)
class MemberSpan:
    """One member: `start` to `end` with its header and padding, its content at `data`."""

    extension: str
    start: int
    data: int
    size: int

    @property
    def end(self) -> int:
        return self.data + -(-self.size // BLOCK) * BLOCK


@dataclass(slots=True)
class SampleSpan:
    """The members of one sample in the order of the tar; they need not lie side by side."""

    key: str
    members: list[MemberSpan] = field(default_factory=list)

    def member(self, extension: str) -> MemberSpan | None:
        """The member with this extension, in lower case."""
        for each in self.members:
            if each.extension == extension:
                return each
        return None


def sample_spans(path: Path, keys: Container[str] | None = None) -> list[SampleSpan]:
    """The samples of an uncompressed local tar in order of appearance, or those with `keys`.

    Of samples that share a key the first counts, as in a score table. A tar that breaks off gives
    the members before that. Raises `ShardError` if the file is no tar.
    """
    spans: dict[str, SampleSpan] = {}
    closed: set[str] = set()  # a second sample of the key has begun
    span: SampleSpan | None = None
    prefix = "/"  # of the names that belong to `span`; no name begins with this one
    for name, start, data, size in _members(path):
        if name.startswith(prefix):  # nearly always: members of a sample lie side by side
            extension = name[len(prefix) :].lower()
        else:
            key, extension = split_name(name)
            prefix, extension = f"{key}.", extension.lower()
            if key is None or (keys is not None and key not in keys) or key in closed:
                span = None
            else:
                span = spans.get(key)
                if span is None:
                    span = spans[key] = SampleSpan(key)
        if span is None:
            continue
        if span.member(extension) is not None:
            closed.add(span.key)
            span = None
            continue
        span.members.append(MemberSpan(extension, start, data, size))
    return list(spans.values())


def _members(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Name, start of the header, start and size of the content of each regular member."""
    length = path.stat().st_size
    if not length:
        raise ShardError("the file is empty", 0)
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        position = 0
        while position + BLOCK <= length:
            header = view[position : position + BLOCK]
            found = _ordinary(header)
            if found is None:
                break
            name, size = found
            data = position + BLOCK
            position = data + -(-size // BLOCK) * BLOCK
            if data + size > length:
                return  # cut inside its content
            yield name, data - BLOCK, data, size
        else:
            return
    if any(header):  # not the end of the archive
        yield from _by_tarfile(path, position)


def _ordinary(header: bytes) -> tuple[str, int] | None:
    """Name and size of a regular file with a short ASCII name; None for anything else."""
    if header[156] not in _REGULAR or header[257:262] != b"ustar" or header[345]:
        return None
    try:
        return header[: header.index(0, 0, 100)].decode("ascii"), int(header[124:135], 8)
    except ValueError:  # a name of 100 bytes, or one that is not ASCII, or a size in base 256
        return None


def _by_tarfile(path: Path, offset: int) -> Iterator[tuple[str, int, int, int]]:
    length = path.stat().st_size
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # else all are kept
                    if member.isreg() and member.offset_data + member.size <= length:
                        name = member.name.encode("utf-8", "replace").decode("utf-8")
                        yield name, member.offset, member.offset_data, member.size
    except (tarfile.TarError, OSError, ValueError) as error:
        if offset == 0:
            raise ShardError(f"cannot be read: {error}", 0) from error
