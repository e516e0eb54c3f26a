"""Byte ranges of a tar: a shard as an uncompressed local file, and ranges of it copied."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO

from ncclean.data.tar import reason_of
from ncclean.data.tar_walk import BLOCK
from ncclean.data.unpacking import UNPACKING_ERRORS, unpacked
from ncclean.errors import ShardError

_BUFFER_BYTES = 1 << 20
_READ_BUFFER = 64 << 10  # of headers
_MOST_PADDING = 64 << 20  # zeros that are copied


@contextlib.contextmanager
def local_tar(
    opened: Callable[[], BinaryIO], is_remote: bool, problems: list[str]
) -> Iterator[IO[bytes]]:
    """Open a tar as an uncompressed local file; others are fetched or unpacked for the time.

    What keeps one from being whole is added to `problems`. Raises `ShardError` for one that cannot
    be read at all.
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
    """Open a file once more, whatever its name is by now; both have one position."""
    again = open(os.dup(file.fileno()), "rb", _READ_BUFFER)  # noqa: SIM115  the caller closes it
    again.seek(0)
    return again


def _pieces(stream: IO[bytes], problems: list[str]) -> Iterator[bytes]:
    """The rest of a stream, as far as it can be read."""
    read = getattr(stream, "read1", stream.read)
    try:
        while data := read(_BUFFER_BYTES):
            yield data
    except UNPACKING_ERRORS as error:
        problems.append(f"cannot be read to its end: {error}")


class RangeWriter:
    """Writes bytes, and ranges of a source, to a file; ranges that touch are read in one piece.

    What is read is gathered in a large buffer: measured on ranges of three samples, 1.6 times as
    fast as copying each inside the kernel (sendfile, copy_file_range).
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out  # buffered
        self._source = 0
        self._start = self._end = 0

    def read_from(self, source: IO[bytes]) -> None:
        """Take further ranges from another file."""
        self.flush()
        self._source = source.fileno()

    def copy(self, start: int, end: int) -> None:
        if start != self._end:
            self.flush()
            self._start = start
        self._end = end

    def copy_rest(self, start: int) -> None:
        """Copy to the end of the source, but for zeros without end."""
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
        """Write the range that was copied but not yet written."""
        start, end = self._start, self._end
        self._start = self._end = 0
        while start < end:
            data = self.read(start, min(end, start + _BUFFER_BYTES))
            if not data and end - start >= BLOCK:
                raise ShardError("the file has become shorter while it was copied")
            # A tar may be cut in the padding of its last member, whose content is whole.
            self._out.write(data or bytes(end - start))
            start += len(data) or end - start
