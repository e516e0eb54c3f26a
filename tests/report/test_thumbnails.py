"""Pictures from the shards: whatever a shard holds, a picture or a reason."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from ncclean.data.fetch import ImageFetcher
from ncclean.data.images.resolve import resolve_images
from ncclean.data.open_image import ImageRejected
from ncclean.data.shards import resolve_shards
from ncclean.report.thumbnails import Pictured, encode_thumbnail
from ncclean.report.thumbnails import read_thumbnails as read_by_places
from tests import hostile


def opened(url):
    return Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))


def read_thumbnails(pairs, shards):
    """The thumbnails of a table without places."""
    return read_by_places(pairs, shards, {}, ImageFetcher())


def pair(shard, key, row, status="ok", error=None):
    return Pictured(shard=shard, key=key, row=row, status=status, error=error)


def test_keeps_the_shape_and_stays_within_the_bytes():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 900, 3), np.uint8))
    data = hostile.encoded(noise, quality=95)
    roomy = encode_thumbnail(data, 1_000_000)
    assert (roomy.width, roomy.height) == (288, 192)
    assert opened(roomy.url).size == (288, 192)
    tight = encode_thumbnail(data, 3000)
    assert tight.width < roomy.width
    assert len(base64.b64decode(tight.url.split(",", 1)[1])) <= 3000
    assert opened(tight.url).format == "WEBP"


def test_small_pictures_are_not_enlarged_and_carry_no_metadata():
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    small = encode_thumbnail(hostile.encoded(hostile.photo(40, 30), exif=exif), 100_000)
    assert (small.width, small.height) == (40, 30)
    assert b"secret" not in base64.b64decode(small.url.split(",", 1)[1])


@pytest.mark.parametrize("name", hostile.images())
def test_every_hostile_image_is_a_picture_or_rejected(name):
    _, data, status = hostile.images()[name]
    if status == "ok":
        assert encode_thumbnail(data, 50_000).url.startswith("data:image/webp;base64,")
    elif data:
        with pytest.raises(ImageRejected):
            encode_thumbnail(data, 50_000)


def test_reads_the_chosen_pairs_with_reasons_for_the_others(tmp_path):
    hostile.write_hostile(tmp_path)
    (tmp_path / "cut_in_image.tar").rename(tmp_path / "cut.tar")
    pairs = [
        pair("images", "plain", 0),
        pair("images", "html", 20, "image_corrupt", "not an image"),
        pair("images", "bomb", 23, "image_too_large"),
        pair("structure", "twice", 3, "duplicate_key", "the key occurs earlier in the shard"),
        pair("structure", "no_image", 1, "image_missing"),
        pair("structure", "gone", 99),
        pair("cut", "c", 2, "ok"),
        pair("elsewhere", "a", 0),
    ]
    thumbnails = read_thumbnails(pairs, resolve_shards([str(tmp_path)]))
    reasons = {place: picture.reason for place, picture in thumbnails.pictures.items()}
    assert thumbnails.count(pairs) == 1
    assert thumbnails.count([pairs[0], *pairs[:2]]) == 2  # two captions of an image
    assert thumbnails.pictures["images", 0].url
    assert reasons["images", 20] == "not an image"
    assert "pixels" in reasons["images", 23]
    assert "earlier" in reasons["structure", 3]
    assert reasons["structure", 1] == "no image"
    assert "no longer where it was scored" in reasons["structure", 99]
    assert "cannot be read" in reasons["cut", 2]
    assert thumbnails.failed_shards.keys() == {"cut"}
    assert thumbnails.missing_shards == ["elsewhere"]


def test_shards_are_found_under_the_names_of_the_table(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        data = hostile.tar_bytes(hostile.sample("a", hostile.JPEG))
        (tmp_path / folder / "0.tar").write_bytes(data)
    both = resolve_shards([str(tmp_path / "x"), str(tmp_path / "y")])
    pairs = [pair("x/0", "a", 0), pair("y/0", "a", 0)]
    assert read_thumbnails(pairs, both).count(pairs) == 2
    assert read_thumbnails([pair("0", "a", 0)], both).missing_shards == ["0"]  # which of the two?
    alone = resolve_shards([str(tmp_path / "x")])  # `as_scored` gives it the name `x/0`
    assert read_thumbnails([pair("x/0", "a", 0)], alone).missing_shards == ["x/0"]


@pytest.mark.parametrize("status", ["caption_missing", "caption_not_text", "caption_too_large"])
def test_a_sample_that_only_lacks_a_caption_is_not_said_to_lack_its_image(tmp_path, status):
    (tmp_path / "a.jpg").write_bytes(hostile.JPEG)
    (tmp_path / "a.txt").write_bytes(b"")
    shards = resolve_images([str(tmp_path)])
    shown = read_thumbnails([pair(shards[0].name, "a", 0, status, "empty")], shards)
    assert shown.pictures[shards[0].name, 0].reason.startswith("not shown: it has no caption")
