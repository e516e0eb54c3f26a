"""The index of a shard: its pairs as scoring counts them, their captions, and where images lie."""

import gzip
import hashlib
import io
import json

import numpy as np
import pytest

from ncclean.data.shard_index import Role, ShardIndex, index_shard, open_tar
from ncclean.data.shards import resolve_shards
from ncclean.data.tar_members import read_content
from ncclean.errors import InputError
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


def test_pairs_captions_members(tmp_path):
    data = hostile.tar_bytes(MEMBERS)
    index = index_shard(shard(tmp_path, data))
    assert (index.samples, index.pairs, index.error) == (4, 3, "")
    assert index.rows.tolist() == [0, 2, 3]
    assert [index.caption(pair) for pair in range(3)] == ["a red circle", "a blue square", "ü"]
    assert index.changeable.tolist() == [True, True, False]
    roles = [(pair, Role(role)) for pair, role, *_ in index.members.tolist()]
    assert roles == [
        (0, Role.IMAGE), (0, Role.CAPTION), (1, Role.IMAGE), (2, Role.IMAGE), (2, Role.JSON),
        (1, Role.OTHER), (1, Role.CAPTION), (0, Role.JSON),
    ]  # fmt: skip
    for pair, image in enumerate((hostile.JPEG, OTHER, hostile.JPEG)):
        begin, end = index.members[index.images[pair], 2:4]
        assert read_content(data[begin:end]) == image
        digest = hashlib.blake2b(image, digest_size=8).digest()
        assert index.image_hash[pair] == int.from_bytes(digest, "little")


def test_the_first_of_several_images_counts(tmp_path):
    members = [("a.png", OTHER), ("a.jpg", hostile.JPEG), ("a.txt", b"words")]
    index = index_shard(shard(tmp_path, hostile.tar_bytes(members)))
    assert index.members[index.images[0]].tolist()[:2] == [0, Role.IMAGE]
    assert index.images.tolist() == [0]


def test_a_caption_key_names_the_caption(tmp_path):
    members = [("a.jpg", OTHER), ("a.alt", b"words"), ("a.txt", b"others")]
    index = index_shard(shard(tmp_path, hostile.tar_bytes(members)), "ALT")
    assert index.caption(0) == "words"
    assert index.members[:, 1].tolist() == [Role.IMAGE, Role.NAMED, Role.CAPTION]


def test_a_shard_that_breaks_off_has_what_came_before_and_says_why(tmp_path):
    whole = hostile.tar_bytes(MEMBERS[:4])
    index = index_shard(shard(tmp_path, whole[: whole.rindex(b"c.jpg") + 600]))
    assert index.rows.tolist() == [0]
    assert "cut short" in index.error


def test_a_shard_that_is_not_there_is_an_error(tmp_path):
    gone = shard(tmp_path, hostile.tar_bytes(MEMBERS))
    (tmp_path / "s.tar").unlink()
    with pytest.raises(InputError, match=r"s\.tar"):
        index_shard(gone)


def test_bytes_and_back(tmp_path):
    index = index_shard(shard(tmp_path, hostile.tar_bytes(MEMBERS)))
    again = ShardIndex.from_bytes(index.to_bytes())
    for name in ShardIndex.__dataclass_fields__:
        assert np.array_equal(getattr(again, name), getattr(index, name)), name


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -1])
def test_torn_bytes_are_no_index(tmp_path, cut):
    data = index_shard(shard(tmp_path, hostile.tar_bytes(MEMBERS))).to_bytes()
    with pytest.raises(ValueError, match="not a shard index"):
        ShardIndex.from_bytes(data[:cut])


def test_an_empty_archive_is_no_index():
    buffer = io.BytesIO()
    np.savez(buffer, samples=np.int64(1))
    with pytest.raises(ValueError, match="not a shard index"):
        ShardIndex.from_bytes(buffer.getvalue())


def test_a_compressed_shard_is_indexed_by_what_is_in_it(tmp_path):
    data = hostile.tar_bytes(MEMBERS)
    plain = index_shard(shard(tmp_path, data))
    packed = shard(tmp_path, gzip.compress(data), "t.tar")  # by its bytes, not its name
    index = index_shard(packed)
    assert (plain.compressed, index.compressed) == (False, True)
    assert np.array_equal(index.members, plain.members)
    with open_tar(packed) as stream:
        assert stream.read() == data
