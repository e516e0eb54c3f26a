"""Pictures in the order of the sample, a few shards and pairs at a time."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ncclean.auditing.sample import draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.data.gate import PixelGate
from ncclean.data.sources import resolve_pairs
from ncclean.judging import pictures
from ncclean.judging.pictures import SamplePictures, encode_jpeg
from tests import hostile


@pytest.fixture(scope="module")
def rows(scored):
    with AuditTable.open([str(scored / "scores.parquet")]) as table:
        return draw_sample(table, 100, seed=0).rows


@pytest.fixture
def together(monkeypatch):
    """The numbers of pairs whose pictures are read together, 4 at first and then up to 20."""
    counts, read = [], pictures.read_thumbnails

    def counting(pairs, *rest, **options):
        counts.append(len(pairs))
        return read(pairs, *rest, **options)

    monkeypatch.setattr(pictures, "read_thumbnails", counting)
    monkeypatch.setattr(pictures, "_FIRST_PAIRS", 4)
    monkeypatch.setattr(pictures, "_MOST_PAIRS", 20)
    return counts


def test_in_the_order_of_the_sample_whatever_is_read_together(rows, corpus, together, monkeypatch):
    shards = resolve_pairs([str(corpus)])
    numbers = [number for number in range(100) if number % 3]
    sample = SamplePictures(rows, shards, 64)
    by_pieces = list(sample.read(numbers))
    assert together == [4, 8, 16, 20, 18]
    assert [number for number, _, _ in by_pieces] == numbers
    uids = rows.column("uid").to_pylist()
    assert [pair.uid for _, pair, _ in by_pieces] == [uids[number] for number in numbers]
    monkeypatch.undo()
    assert list(SamplePictures(rows, shards, 64).read(numbers)) == by_pieces
    assert not sample.missing_shards
    assert not sample.failed_shards


def test_only_the_next_pairs_are_read_ahead(rows, corpus, together):
    reading = SamplePictures(rows, resolve_pairs([str(corpus)]), 64).read(range(100))
    next(reading)
    reading.close()
    assert sum(together) <= 4 + 8


def test_a_shard_that_is_not_there_is_named(rows, corpus):
    shards = [shard for shard in resolve_pairs([str(corpus)]) if not shard.name.endswith("1")]
    sample = SamplePictures(rows, shards, 64)
    without = [picture.reason for _, _, picture in sample.read(range(100)) if picture.url is None]
    assert set(without) == {"shard not among --shards"}
    assert len(sample.missing_shards) == 1


def test_jpegs_keep_their_shape_and_no_metadata():
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 600, 3), np.uint8))
    picture = encode_jpeg(hostile.encoded(noise, exif=exif), 200, PixelGate())
    data = base64.b64decode(picture.url.removeprefix("data:image/jpeg;base64,"))
    opened = Image.open(io.BytesIO(data))
    assert (opened.format, opened.size) == ("JPEG", (200, 100))
    assert b"secret" not in data
    small = encode_jpeg(hostile.encoded(hostile.photo(40, 30)), 200, PixelGate())
    assert (small.width, small.height) == (40, 30)


@pytest.mark.parametrize("name", hostile.images())
def test_hostile_images_are_pictures_or_rejected(name):
    from ncclean.data.decode import ImageRejected

    _, data, status = hostile.images()[name]
    if status == "ok":
        assert encode_jpeg(data, 100, PixelGate()).url.startswith("data:image/jpeg;base64,")
    elif data:
        with pytest.raises(ImageRejected):
            encode_jpeg(data, 100, PixelGate())


def test_shards_that_failed_are_named_wherever_they_are_in_the_sample(monkeypatch):
    def read(self, numbers, encode):
        pairs = [SimpleNamespace(shard="s", row=number) for number in numbers]
        pictures = {("s", number): None for number in numbers}
        failed = {f"of {numbers[0]}": "it is cut"}
        return pairs, SimpleNamespace(pictures=pictures, missing_shards=set(), failed_shards=failed)

    monkeypatch.setattr(SamplePictures, "_read", read)
    pictures = SamplePictures(None, (), 32)
    assert [number for number, _, _ in pictures.read(range(40))] == list(range(40))
    assert set(pictures.failed_shards) == {"of 0", "of 16"}
