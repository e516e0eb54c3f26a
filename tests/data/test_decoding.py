"""Decoding ahead: order, bounds, and an end in every case."""

import threading
import time

import pytest

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.decoding import decoded_shard
from ncclean.data.shards import resolve_shards
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
