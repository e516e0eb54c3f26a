"""Which members make a sample, and which of them is its picture: alike for all who read a tar."""

import io
import random
import tarfile

import pytest

from ncclean.data.fetch import ImageFetcher
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import parse_json, picture_of
from ncclean.data.samples import NO_PLACE
from ncclean.data.shard_index import images_of, index_shard, pairs_of
from ncclean.data.shards import resolve_shards
from ncclean.data.sources import resolve_sources
from ncclean.data.tar import LocatedSamples, TarSamples
from ncclean.data.tar_ranges import read_content


def write(path, names, shift=0):
    """A tar whose members contain their names."""
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            data = b'{"width": 3}' if name.endswith("json") else name.encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return resolve_shards([str(path)])[0]


def pairs(shard):
    """Key, picture and caption of each sample, as names of members, by row."""
    reader = TarSamples(shard)
    samples = sorted(reader, key=lambda sample: sample.row)
    assert [sample.row for sample in samples] == list(range(len(samples)))
    return [(one.key, (one.image or b"").decode(), one.caption) for one in samples], reader.further


DEPTH = [f"{key}.{ending}" for key in "abc" for ending in ("depth.png", "jpg", "seg.png", "txt")]
EDITED = ["a.edit.jpg", "a.edit.txt", "a.jpg", "a.txt", "b.jpg", "b.txt"]
SHOP = [f"shop.de.{n:04d}.{ending}" for n in range(20) for ending in ("jpg", "txt")]
DATES = [f"22.{n:02d}.{ending}" for n in range(5) for ending in ("png", "txt", "json")]


def of_key(*keys, picture="jpg"):
    return [(key, f"{key}.{picture}", f"{key}.txt") for key in keys]


@pytest.mark.parametrize("order", ["by name", "by kind", "reversed", "shuffled"])
@pytest.mark.parametrize(
    ("names", "expected", "images", "split"),
    [
        (DEPTH, of_key("a", "b", "c"), {"depth.png": 3, "seg.png": 3}, 0),
        (EDITED, of_key("a", "a.edit", "b"), {}, 1),
        (SHOP, of_key(*(f"shop.de.{n:04d}" for n in range(20))), {}, 20),
        (DATES, of_key(*(f"22.{n:02d}" for n in range(5)), picture="png"), {}, 5),
        (["v/x.left.png", "v/x.right.png", "v/x.txt"], [("v/x", "v/x.left.png", "v/x.txt")],
         {"right.png": 1}, 0),
        (["a.orig.jpg", "a.orig.txt"], of_key("a.orig"), {}, 1),
        (["a.jpg", "a.json", "a.txt", "a.depth.png", "a.depth.json"], of_key("a"),
         {"depth.png": 1}, 0),
    ],
    ids=["depth", "edited", "shop", "dates", "left and right", "original", "json without a text"],
)  # fmt: skip
def test_every_picture_with_a_caption_is_a_sample(tmp_path, names, expected, images, split, order):
    names = list(names)
    if order == "by kind":
        names.sort(key=lambda name: name.partition(".")[2].rpartition(".")[::-1])
    elif order == "reversed" and expected[0][1] != "v/x.left.png":  # the first one counts there
        names.reverse()
    elif order == "shuffled" and expected[0][1] != "v/x.left.png":
        random.Random(0).shuffle(names)
    shard = write(tmp_path / "s.tar", names)
    read, further = pairs(shard)
    assert sorted(read) == sorted(expected)
    assert (further.images, further.split_keys) == (images, split)
    assert not further.captions
    # Who copies, injects noise, or shows pictures has the same samples.
    data = (tmp_path / "s.tar").read_bytes()
    keys = [key for key, _, _ in expected]
    pictures = {key: picture.encode() for key, picture, _ in expected}
    located = sorted(LocatedSamples(shard), key=lambda one: one.row)
    assert [one.key for one in located] == [key for key, _, _ in read]
    for one in located:
        member = one.members[one.picture]
        assert read_content(data[member.begin : member.end]) == pictures[one.key]
    for there in ({one.key: one.place for one in TarSamples(shard)}, dict.fromkeys(keys, NO_PLACE)):
        assert dict(ImageFetcher().fetch(shard, there)) == pictures
    places = images_of(pairs_of(index_shard(shard))).to_pylist()
    assert [read_content(data[one["begin"] : one["end"]]).decode() for one in places] == [
        picture for _, picture, _ in read
    ]


def test_an_image_key_names_the_picture(tmp_path):
    write(tmp_path / "s.tar", [*DEPTH, "d.jpg", "d.txt"])
    options = SourceOptions(image_key=".Depth.PNG")
    [shard] = resolve_sources([str(tmp_path / "s.tar")], options=options)
    samples = list(TarSamples(shard))
    assert [(one.key, one.image) for one in samples] == [
        ("a", b"a.depth.png"), ("b", b"b.depth.png"), ("c", b"c.depth.png"), ("d", None),
    ]  # fmt: skip
    assert (samples[3].status, samples[3].error) == (
        "image_missing",
        "no member ends in .depth.png",
    )
    for there in ({one.key: one.place for one in samples}, dict.fromkeys("abcd", NO_PLACE)):
        fetched = dict(ImageFetcher().fetch(shard, there))
        assert fetched == {key: f"{key}.depth.png".encode() for key in "abc"}
    assert pairs_of(index_shard(shard))["row"].to_pylist() == [0, 1, 2]


def test_members_in_no_row_are_counted(tmp_path):
    names = ["a.jpg", "a.png", "a.heic", "a.txt", "a.caption", "a.en.txt", ".jpg", "._b.jpg",
             ".txt", "a.cls", "plain"]  # fmt: skip
    read, further = pairs(write(tmp_path / "s.tar", names))
    assert read == of_key("a")
    assert further.images == {"png": 1, "heic": 1, "names without a key": 2}
    assert further.captions == {"caption": 1, "en.txt": 1, "names without a key": 1}


def test_a_key_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Pictures of one key by the first dot, with captions far behind them."""
    monkeypatch.setattr("ncclean.data.sample_groups._WAITING_BYTES", 500)
    names = [f"a.{number:03d}.{ending}" for ending in ("jpg", "txt") for number in range(64)]
    samples = list(TarSamples(write(tmp_path / "s.tar", names)))
    assert len({one.key for one in samples}) == 64
    assert all(one.status != "ok" or one.image == f"{one.key}.jpg".encode() for one in samples)
    assert "caption_missing" in {one.status for one in samples}  # they were not waited for


def test_a_photograph_far_behind_its_depth_map_is_the_picture(tmp_path):
    names = ["a.depth.png", "a.txt", "b.jpg", "b.txt", "c.jpg", "c.txt", "a.jpg"]
    read, further = pairs(write(tmp_path / "s.tar", names))
    assert sorted(read) == of_key("a", "b", "c")
    assert further.images == {"depth.png": 1}


@pytest.mark.parametrize(
    ("extensions", "image_key", "expected"),
    [
        (["depth.png", "jpg", "png"], None, "jpg"),
        (["depth.png", "seg.jpg"], None, "depth.png"),
        (["depth.png", "jpg", "png"], "png", "png"),
        (["jpg"], "png", None),
        (["txt"], None, None),
        (["bin"], "bin", "bin"),
    ],
)
def test_picture_of(extensions, image_key, expected):
    assert picture_of(extensions, image_key) == expected


def test_names_that_would_spoil_a_terminal_are_counted_under_none_of_their_own(tmp_path):
    names = ["a.jpg", "a.txt", "a.\x1b[31m.png", f"a.{'x' * 300}.png", "a.depth.png"]
    _, further = pairs(write(tmp_path / "s.tar", names))
    assert further.images == {"other names": 2, "depth.png": 1}


@pytest.mark.parametrize(
    "raw", [b'{"caption": "a", "Caption": "b"}', b'{"Caption": "b", "caption": "a"}']
)
def test_of_fields_that_differ_in_case_the_lower_one_counts_as_in_tables(raw):
    """Also what `put_at` replaces when a mended caption is exported."""
    assert parse_json(raw) == {"caption": "a"}
    assert parse_json(b'{"TEXT": "a", "Text": "b"}') == {"text": "a"}
