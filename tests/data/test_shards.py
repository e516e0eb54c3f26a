import gzip
import hashlib
import json
import os

import pytest
from upath import UPath

from ncclean.data.captions import error_of
from ncclean.data.shard_index import images_of, index_shard, is_packed_index, pairs_of, samples_in
from ncclean.data.shards import resolve_shards
from ncclean.data.tar_ranges import read_content
from ncclean.errors import InputError
from tests import hostile


@pytest.fixture
def folder(tmp_path):
    for name in ("00002.tar", "00000.tar", "00001.tar", "notes.txt", "x.tar.gz"):
        (tmp_path / name).write_bytes(b"12345")
    return tmp_path


def names(*sources):
    return [shard.name for shard in resolve_shards(sources)]


def test_folder_is_sorted_and_takes_tars_only(folder):
    assert names(str(folder)) == ["00000", "00001", "00002", "x"]


def test_file_glob_braces_and_list(folder):
    assert names(str(folder / "00001.tar")) == ["00001"]
    assert names(str(folder / "0000[02].tar")) == ["00000", "00002"]
    assert names(str(folder / "{00001..00002}.tar")) == ["00001", "00002"]
    listing = folder / "list.txt"
    listing.write_text(f"# comment\n{folder}/00002.tar\n\n{folder}/{{00000..00001}}.tar\n")
    assert names(f"@{listing}") == ["00002", "00000", "00001"]


def test_a_shard_rewritten_behind_a_link_has_changed(folder):
    """Whether the link was scored, or what it leads to, or whether it leads elsewhere now."""
    first, second, link = folder / "v1", folder / "v2", folder / "current"
    for place, time in ((first, 1), (second, 2)):
        place.mkdir()
        (place / "0.tar").write_bytes(b"12345")
        os.utime(place / "0.tar", ns=(time, time))
    link.symlink_to(first)

    def fingerprint(place):
        return resolve_shards([str(place)])[0].fingerprint

    by_link, by_path = fingerprint(link), fingerprint(first)
    assert not by_link.has_changed(by_path)
    os.utime(first / "0.tar", ns=(3, 3))
    assert by_link.has_changed(fingerprint(first))
    assert by_path.has_changed(fingerprint(link))
    link.unlink()
    link.symlink_to(second)
    assert by_link.has_changed(fingerprint(link))
    assert not by_path.has_changed(fingerprint(second))  # a copy elsewhere has another time


def test_url(folder):
    shards = resolve_shards([f"file://{folder}/*.tar"])
    assert [shard.name for shard in shards] == ["00000", "00001", "00002"]
    with shards[0].open() as stream:
        assert stream.read() == b"12345"
    assert shards[0].size == 5


def test_order_of_sources_is_kept(folder):
    assert names(str(folder / "00002.tar"), str(folder / "00000.tar")) == ["00002", "00000"]


def test_equal_file_names_are_told_apart_by_folder(tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        (tmp_path / parent / "00000.tar").write_bytes(b"")
    shards = resolve_shards([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [shard.name for shard in shards] == ["a/00000", "b/00000"]
    assert [shard.part_name for shard in shards] == [
        "part-a__00000.parquet",
        "part-b__00000.parquet",
    ]


def test_version_changes_with_the_file(folder):
    import os

    versions = set()
    for later in (0, 1, 400_000_000):  # nanoseconds
        os.utime(folder / "00000.tar", ns=(10**18, 10**18 + later))
        versions.add(resolve_shards([str(folder / "00000.tar")])[0].version)
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.tar", "nowhere.tar does not exist"),
        ("no*where.tar", "matches no file"),
        ("@nowhere.txt", "list of shards nowhere.txt"),
        ("{a,b}.tar", "a.tar does not exist"),
        ("nosuch://bucket/x", "cannot be opened"),
    ],
)
def test_what_is_not_there_is_named(source, message):
    with pytest.raises(InputError, match=message.replace("*", ".")):
        resolve_shards([source])


def test_empty_folder_nothing_and_twice(tmp_path, folder, refused):
    (tmp_path / "empty").mkdir()
    refused(resolve_shards, [str(tmp_path / "empty")])
    refused(resolve_shards, [])
    refused(resolve_shards, [str(folder), str(folder / "00000.tar")])


def test_many_objects_of_a_folder_are_asked_for_by_listing_it(tmp_path):
    from tests import object_store

    for number in range(130):
        (tmp_path / f"{number:05d}.tar").write_bytes(b"1" * number)
    with object_store.s3() as store:
        object_store.upload(tmp_path, "s3://corpus/shards")
        asked = [f"s3://corpus/shards/{number:05d}.tar" for number in range(3)]
        one_by_one = resolve_shards(asked)
        store.requests.clear()
        listed = resolve_shards(["s3://corpus/shards"])
        in_braces = resolve_shards(["s3://corpus/shards/{00000..00129}.tar"])
        assert not [path for method, path in store.requests if method == "HEAD"]
    assert [shard.size for shard in listed] == list(range(130))
    assert listed == in_braces
    assert listed[:3] == one_by_one  # versions too: what was scored is not scored again


def test_names_that_differ_in_case_alone_get_more_folders(tmp_path):
    """Their parts would be one file where `A` is `a`."""
    for name in ("a/X.tar", "b/x.tar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"12345")
    names = [shard.name for shard in resolve_shards([f"{tmp_path}/a", f"{tmp_path}/b"])]
    assert names == ["a/X", "b/x"]


# The index of a shard: its pairs as scoring counts them, their captions, and where images lie.

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


def test_an_object_named_with_brackets_is_itself(tmp_path):
    """As a pattern, its name would match another one."""
    folder = f"memory://{tmp_path.name}"
    for name in ("k[1].tar", "k1.tar"):
        UPath(f"{folder}/{name}").write_bytes(b"x")
    assert [shard.name for shard in resolve_shards([f"{folder}/k[1].tar"])] == ["k[1]"]
    assert [shard.name for shard in resolve_shards([f"{folder}/k[12].tar"])] == ["k1"]
