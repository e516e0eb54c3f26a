"""The index of a shard: its pairs as scoring counts them, their captions, and where images lie."""

import gzip
import hashlib
import json

from ncclean.data.captions import error_of
from ncclean.data.shard_index import images_of, index_shard, is_packed_index, pairs_of, samples_in
from ncclean.data.shards import resolve_shards
from ncclean.data.tar_members import read_content
from tests import hostile

OTHER = hostile.encoded(hostile.photo(seed=3))
MEMBERS = [
    ("a.jpg", hostile.JPEG),
    ("a.txt", b"a red circle"),
    ("b.txt", b"no image"),
    ("c.jpg", OTHER),
    ("d.jpg", hostile.JPEG),
    ("d.json", json.dumps({"caption": "  \u00fc  "}).encode()),
    ("c.cls", b"7"),
    ("c.caption", b"a blue square"),
    ("a.json", b"{}"),
]


def shard(folder, data: bytes, name: str = "s.tar"):
    (folder / name).write_bytes(data)
    return resolve_shards([str(folder / name)])[0]


def test_captions_and_images(tmp_path):
    data = hostile.tar_bytes(MEMBERS)
    index = index_shard(shard(tmp_path, data))
    assert index["row"].to_pylist() == [0, 1, 2, 3]
    assert index["text"].to_pylist() == ["a red circle", None, "a blue square", "\u00fc"]
    assert (samples_in(index), error_of(index), is_packed_index(index)) == (4, "", False)
    pairs = pairs_of(index)
    assert pairs["row"].to_pylist() == [0, 2, 3]
    assert pairs["changeable"].to_pylist() == [True, True, False]
    images = zip(images_of(pairs).to_pylist(), (hostile.JPEG, OTHER, hostile.JPEG), strict=True)
    for place, image in images:
        assert read_content(data[place["begin"] : place["end"]]) == image
        digest = hashlib.blake2b(image, digest_size=8).digest()
        assert place["hash"] == int.from_bytes(digest, "little")


def test_the_captions_of_an_image_have_one(tmp_path):
    """Those that cannot be used are listed."""
    record = {"caption": ["one", None, "two", " "]}
    members = [
        ("a.jpg", OTHER), ("a.json", json.dumps(record).encode()), ("b.jpg", hostile.JPEG),
    ]  # fmt: skip
    index = index_shard(shard(tmp_path, hostile.tar_bytes(members)))
    assert index["row"].to_pylist() == [0, 0, 0, 0, 1]
    assert index["number"].to_pylist() == [0, 1, 2, 3, 0]
    assert index["text"].to_pylist() == ["one", None, "two", None, None]
    assert len(images_of(pairs_of(index))) == 1


def test_a_caption_key_names_the_caption(tmp_path):
    members = [("a.jpg", OTHER), ("a.alt", b"words"), ("a.txt", b"others")]
    index = index_shard(shard(tmp_path, hostile.tar_bytes(members)), "ALT")
    assert index["text"].to_pylist() == ["words"]


def test_a_shard_that_breaks_off_has_what_came_before_and_says_why(tmp_path):
    whole = hostile.tar_bytes(MEMBERS[:4])
    index = index_shard(shard(tmp_path, whole[: whole.rindex(b"c.jpg") + 600]))
    assert pairs_of(index)["row"].to_pylist() == [0]
    assert "cut short" in error_of(index)


def test_a_shard_without_samples(tmp_path):
    index = index_shard(shard(tmp_path, hostile.tar_bytes([("README", b"none")])))
    assert (samples_in(index), len(pairs_of(index)), len(images_of(pairs_of(index)))) == (0, 0, 0)


def test_a_shard_that_is_not_there_is_an_error(tmp_path, refused):
    gone = shard(tmp_path, hostile.tar_bytes(MEMBERS))
    (tmp_path / "s.tar").unlink()
    refused(index_shard, gone)


def test_a_compressed_shard_is_indexed_by_what_is_in_it(tmp_path):
    data = hostile.tar_bytes(MEMBERS)
    plain = index_shard(shard(tmp_path, data))
    index = index_shard(shard(tmp_path, gzip.compress(data), "t.tar"))  # by its bytes, not its name
    assert is_packed_index(index)
    assert index.equals(plain)
