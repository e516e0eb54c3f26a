"""Decompress tars as streams that yield no more than their size can account for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, BinaryIO

from ncclean.base.regular_files import IS_LFS_POINTER, LFS_POINTER

# What unpacking raises if the packed bytes are broken or end too early.
UNPACKING_ERRORS = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
PIECE_BYTES = 1 << 20

_FORMATS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x5d\x00\x00\x80": lzma.open,
}
_NOT_READ = {
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x9d": "compress",
    b"PK\x03\x04": "zip",
}
_LONGEST_MAGIC = 6
# A corpus of images hardly compresses; a few megabytes of zeros unpack to gigabytes.
MOST_UNPACKED = 100  # times the packed bytes
ALWAYS_UNPACKED = 64 << 20


def is_packed(stream: BinaryIO) -> bool:
    """Check whether a file is compressed, by its first bytes."""
    return stream.read(_LONGEST_MAGIC).startswith((*_FORMATS, *_NOT_READ))


def unpacked(stream: BinaryIO) -> IO[bytes]:
    """Decompress a stream, whatever its name; return an uncompressed stream unchanged.

    Reading raises one of `UNPACKING_ERRORS` if it is broken, or unpacks to more than a hundred
    times its size. Raises `ValueError` for an unsupported compression.
    """
    head = stream.read(len(LFS_POINTER))
    stream.seek(0)
    if head == LFS_POINTER:
        raise ValueError(IS_LFS_POINTER)
    for magic, name in _NOT_READ.items():
        if head.startswith(magic):
            raise ValueError(f"it is packed with {name}, which is not read: unpack it, or use gzip")
    for magic, opened in _FORMATS.items():
        if head.startswith(magic):
            return _Unpacked(opened(stream, "rb"), stream)  # type: ignore[return-value]
    return stream


class _Unpacked:
    """A compressed stream that is read from front to back."""

    def __init__(self, stream: Any, packed: BinaryIO) -> None:
        self._stream, self._packed, self._position = stream, packed, 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer only at the end; without a size, all of them."""
        if size >= 0:
            return self._counted(self._stream.read(size))
        return b"".join(iter(lambda: self.read(PIECE_BYTES), b""))

    def read1(self, size: int) -> bytes:
        """Some of the next bytes, as many as can be had before a place that is broken."""
        # A call that fails loses all that it unpacked.
        return self._counted(self._stream.read1(min(size, io.DEFAULT_BUFFER_SIZE)))

    def seek(self, position: int) -> int:
        """Move to a later byte, or as far as the stream goes."""
        while piece := self.read(min(position - self._position, PIECE_BYTES)):
            del piece
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        """Return False: there is no way back."""
        return False

    def close(self) -> None:
        self._stream.close()
        self._packed.close()

    def __enter__(self) -> _Unpacked:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _counted(self, data: bytes) -> bytes:
        self._position += len(data)
        if self._position > ALWAYS_UNPACKED + MOST_UNPACKED * self._packed.tell():
            raise ValueError(f"it unpacks to more than {MOST_UNPACKED} times its size")
        return data
