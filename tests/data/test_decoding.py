"""Decoding ahead: order, bounds, and an end in every case."""

import bz2
import gzip
import io
import lzma
import os
import random
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from ncclean.data.augment import TrainingDecoder, random_crop
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.decoding import decoded_shard
from ncclean.data.open_image import ImageRejected
from ncclean.data.shards import resolve_shards
from ncclean.data.unpacking import UNPACKING_ERRORS, is_packed, unpacked
from tests import hostile

SPEC = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        members = [m for i in range(100) for m in hostile.sample(f"{number}-{i}", hostile.JPEG)]
        (tmp_path / f"{number}.tar").write_bytes(hostile.tar_bytes(members))
    return resolve_shards([str(tmp_path)])


def test_samples_come_in_order_without_their_bytes(shards):
    for number, shard in enumerate(shards):
        stream = decoded_shard(shard, ImageDecoder(SPEC), 3)
        decoded = list(stream)
        assert [d.sample.key for d in decoded] == [f"{number}-{i}" for i in range(100)]
        assert all(d.pixels.shape == (3, 32, 32) for d in decoded)
        assert all(d.sample.image is None for d in decoded)
        assert stream.error is None
        assert set(stream.waited) == {"store", "decode"}


def test_leaving_early_does_not_hang(shards):
    before = threading.active_count()
    samples = iter(decoded_shard(shards[0], ImageDecoder(SPEC), 3))
    next(samples)
    samples.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


@pytest.mark.parametrize("threads", [0, 2])
def test_what_cannot_be_read_is_an_error_at_the_end(shards, tmp_path, threads):
    (tmp_path / "1.tar").write_bytes(b"not a tar at all")
    (tmp_path / "2.tar").unlink()
    streams = [decoded_shard(shard, ImageDecoder(SPEC), threads) for shard in shards]
    assert [len(list(stream)) for stream in streams] == [100, 0, 0]
    assert streams[0].error is None
    assert "cannot be read" in str(streams[1].error)
    assert "No such file" in str(streams[2].error)


def test_a_rejected_image_keeps_the_size_of_its_header(tmp_path):
    """As far as the header tells one; the others go on."""
    members = [
        *hostile.sample("good", hostile.JPEG),
        *hostile.sample("large", hostile.png_header(5000, 4000), ext="png"),
        *hostile.sample("cut", hostile.JPEG[: len(hostile.JPEG) // 2]),
        *hostile.sample("none", b"no image"),
    ]
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
    decoder = ImageDecoder(SPEC, max_pixels=1_000_000)
    (shard,) = resolve_shards([str(tmp_path)])
    found = [(d.sample.status.value, d.width, d.height) for d in decoded_shard(shard, decoder, 1)]
    assert found == [
        ("ok", 90, 70),
        ("image_too_large", 5000, 4000),
        ("image_corrupt", 90, 70),
        ("image_corrupt", None, None),
    ]


# Training crops: the window of the picture that the seed says, whichever way it is decoded.


def slopes(width, height):
    """Red rises from left to right, green from top to bottom, by one a pixel."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    return hostile.encoded(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)


@pytest.mark.parametrize("size", [(240, 120), (120, 240)])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_crop_is_the_window_of_its_seed(size, fast, seed):
    box = random_crop(*size, random.Random(seed))
    assert box.width != box.height
    crop = TrainingDecoder(SPEC, fast=fast).crop(slopes(*size), seed).float()
    assert crop.shape == (3, 32, 32)
    left, right = crop[0, :, 0].mean(), crop[0, :, -1].mean()
    top, bottom = crop[1, 0].mean(), crop[1, -1].mean()
    pixel = torch.tensor([box.width, box.height]) / 32  # of the crop, in those of the picture
    expected = [box.left + pixel[0] / 2, box.left + box.width - pixel[0] / 2]
    expected += [box.top + pixel[1] / 2, box.top + box.height - pixel[1] / 2]
    found = torch.stack([left, right, top, bottom])
    assert torch.allclose(found, torch.stack(expected), atol=3.5)


def test_a_broken_picture_is_rejected_with_its_size():
    with pytest.raises(ImageRejected) as rejected:
        TrainingDecoder(SPEC).crop(hostile.JPEG[: len(hostile.JPEG) // 2], 0)
    assert (rejected.value.width, rejected.value.height) == (90, 70)


# Compressed streams: the bytes that were packed, told by content, and an end to bombs.


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_the_bytes_that_were_packed(pack):
    data = os.urandom(600_000)
    assert is_packed(io.BytesIO(pack(data))) == (pack is not bytes)
    stream = unpacked(io.BytesIO(pack(data)))
    assert stream.read(1000) == data[:1000]
    assert stream.seek(500_000) == stream.tell() == 500_000
    assert stream.read() == data[500_000:]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_what_grows_a_hundredfold_is_not_read_to_its_end(pack):
    stream = unpacked(io.BytesIO(pack(bytes(110 << 20))))
    with pytest.raises(UNPACKING_ERRORS, match="more than 100 times its size"):
        stream.seek(110 << 20)
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
