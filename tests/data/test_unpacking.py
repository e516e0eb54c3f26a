"""Compressed streams: the bytes that were packed, told by content, and an end to bombs."""

import bz2
import gzip
import io
import lzma
import os

import pytest

from ncclean.data.unpacking import UNPACKING_ERRORS, is_packed, unpacked


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_the_bytes_that_were_packed(pack):
    data = os.urandom(3_000_000)
    assert is_packed(io.BytesIO(pack(data))) == (pack is not bytes)
    stream = unpacked(io.BytesIO(pack(data)))
    assert stream.read(1000) == data[:1000]
    assert stream.seek(2_500_000) == stream.tell() == 2_500_000
    assert stream.read() == data[2_500_000:]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_what_grows_a_hundredfold_is_not_read_to_its_end(pack):
    stream = unpacked(io.BytesIO(pack(bytes(200 << 20))))
    with pytest.raises(UNPACKING_ERRORS, match="more than 100 times its size"):
        stream.seek(200 << 20)
    assert 64 << 20 <= stream.tell() < 100 << 20


def test_what_comes_before_a_broken_place_is_read():
    data = bytearray(gzip.compress(os.urandom(500_000)))
    data[-5] ^= 1  # of the checksum
    stream, pieces = unpacked(io.BytesIO(bytes(data))), []
    with pytest.raises(UNPACKING_ERRORS, match="CRC"):
        pieces.extend(iter(lambda: stream.read1(1 << 20), b""))
    assert sum(map(len, pieces)) == 500_000


@pytest.mark.parametrize("magic", [b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\x04\x22\x4d\x18"])
def test_other_compressions_are_named(magic):
    with pytest.raises(ValueError, match="which is not read"):
        unpacked(io.BytesIO(magic + b"rest"))
