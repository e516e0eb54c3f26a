"""Reading ahead: order, bounds, and an end in every case."""

import threading
import time

import pytest

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.shards import resolve_shards
from ncclean.data.stream import StreamReader
from tests import hostile

SPEC = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        members = [m for i in range(100) for m in hostile.sample(f"{number}-{i}", hostile.JPEG)]
        (tmp_path / f"{number}.tar").write_bytes(hostile.tar_bytes(members))
    return resolve_shards([str(tmp_path)])


def reader(shards, **options):
    return StreamReader(shards, ImageDecoder(SPEC), **{"threads": 3, "prefetch": 64, **options})


def test_samples_come_in_order_without_their_bytes(shards):
    with reader(shards) as streams:
        for number, stream in enumerate(streams):
            decoded = list(stream)
            assert [d.sample.key for d in decoded] == [f"{number}-{i}" for i in range(100)]
            assert all(d.pixels.shape == (3, 32, 32) for d in decoded)
            assert all(d.sample.image is None for d in decoded)
            assert stream.error is None
            assert list(stream) == []


def test_reading_ahead_is_bounded(shards, monkeypatch):
    decoded = []
    lock = threading.Lock()
    original = ImageDecoder.__call__

    def counting(self, data):
        with lock:
            decoded.append(1)
        return original(self, data)

    monkeypatch.setattr(ImageDecoder, "__call__", counting)
    with reader(shards, prefetch=32, threads=1) as streams:
        next(iter(streams))
        time.sleep(0.5)
        assert len(decoded) <= 48


def test_leaving_early_does_not_hang(shards):
    before = threading.active_count()
    with reader(shards) as streams:
        stream = next(iter(streams))
        next(iter(stream))
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_a_broken_shard_is_an_error_of_its_stream_only(shards, tmp_path):
    (tmp_path / "1.tar").write_bytes(b"not a tar at all")
    with reader(resolve_shards([str(tmp_path)])) as streams:
        found = [(stream.shard.name, len(list(stream)), stream.error) for stream in streams]
    assert [(name, count) for name, count, _ in found] == [("0", 100), ("1", 0), ("2", 100)]
    assert found[0][2] is None
    assert "cannot be read" in str(found[1][2])


def test_a_shard_that_vanishes_is_an_error_of_its_stream_only(shards, tmp_path):
    (tmp_path / "2.tar").unlink()
    with reader(shards) as streams:
        errors = [(list(stream), stream.error)[1] for stream in streams]
    assert errors[:2] == [None, None]
    assert "No such file" in str(errors[2])


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
    with StreamReader(resolve_shards([str(tmp_path)]), decoder, threads=1, prefetch=8) as streams:
        found = [(d.sample.status.value, d.width, d.height) for stream in streams for d in stream]
    assert found == [
        ("ok", 90, 70),
        ("image_too_large", 5000, 4000),
        ("image_corrupt", 90, 70),
        ("image_corrupt", None, None),
    ]
