"""Copies byte ranges of one file to another, as few large reads and writes."""

from __future__ import annotations

import os
from io import FileIO
from typing import IO

from ncclean.errors import ShardError

_BUFFER_BYTES = 1 << 20


class RangeCopier:
    """Copies byte ranges in order; ranges that touch are read in one piece.

    What is read is gathered in a large buffer and written from there: measured on ranges of three
    samples, 1.6 times as fast as copying each inside the kernel (sendfile, copy_file_range).
    """

    def __init__(self, source: IO[bytes], out: FileIO) -> None:
        self._from, self._out = source.fileno(), out
        self._length = os.fstat(self._from).st_size
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._held = 0
        self._start = self._end = 0

    def copy(self, start: int, end: int) -> None:
        if end > self._length:  # cut in the padding of its last member, whose content is whole
            self.write(self.read(start, end) + bytes(end - self._length))
            return
        if start != self._end:
            self._gather()
            self._start = start
        self._end = end

    def write(self, data: bytes) -> None:
        self.flush()
        self._write(memoryview(data))

    def flush(self) -> None:
        """Write the bytes that were copied but not yet written."""
        self._gather()
        self._write(self._buffer[: self._held])
        self._held = 0

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._from, end - start, start)

    def _gather(self) -> None:
        start, end = self._start, self._end
        self._start = self._end = 0
        while start < end:
            if self._held == len(self._buffer):
                self._write(self._buffer)
                self._held = 0
            room = self._buffer[self._held : self._held + end - start]
            count = os.preadv(self._from, [room], start)
            if not count:
                raise ShardError("the file has become shorter while it was copied")
            start, self._held = start + count, self._held + count

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[self._out.write(view) :]
