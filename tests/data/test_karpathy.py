"""Karpathy's `dataset_*.json`: splits, several captions, and files that are broken or hostile."""

import json

import pytest
from ncclean_pipelines.inject_noise import InjectNoise

from ncclean.data.images import json_list
from ncclean.data.images.json_list import JsonList
from ncclean.data.images.layout import ImageLayout
from ncclean.data.options import SourceOptions
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from tests import object_store
from tests.data.image_layouts import read, statuses, write_karpathy

PAIRS = [(f"{number:05d}", b"image %d" % number, f"caption {number}") for number in range(40)]


@pytest.fixture
def source(tmp_path):
    return write_karpathy(PAIRS, tmp_path / "c")


def changed(source, change):
    """The file after `change` of its list of images."""
    images = json.loads(source.read_text())["images"]
    change(images)
    source.write_text(json.dumps({"images": images}))
    return source


@pytest.mark.parametrize(
    ("named", "numbers"),
    [
        (["val"], range(1, 40, 4)),
        (["train", "restval"], range(0, 40, 2)),
        (["restval", "train"], range(0, 40, 2)),  # in the order of the file
        ([], range(40)),
    ],
)
@pytest.mark.parametrize("rows", [3, 1000])
def test_a_split_is_read_alone(source, monkeypatch, named, numbers, rows):
    monkeypatch.setattr(ImageLayout, "unit_rows", rows)
    samples, errors = read(source, split=named)
    assert not errors
    assert [sample.row for sample in samples] == [place % rows for place in range(len(numbers))]
    assert [sample.image for sample in samples] == [b"image %d" % number for number in numbers]
    assert [sample.caption for sample in samples] == [f"caption {number}" for number in numbers]


def test_noise_is_injected_into_a_split_alone(source, tmp_path):
    options = {"source_options": SourceOptions(split=["val"]), "noise": {"ncr": 0.5}}
    assert (
        InjectNoise(shards=[str(source)], out=str(tmp_path / "n"), **options).run().summary.pairs
        == 10
    )


def test_units_of_other_splits_are_other_versions(source):
    """Or the table of one split would be taken for that of another."""
    splits = ([], ["train"], ["val"], ["train", "restval"], ["restval", "train"])
    units = [resolve_sources([str(source)], options=SourceOptions(split=one))[0] for one in splits]
    assert len({unit.version for unit in units}) == 4
    assert units[3] == units[4]


def test_a_byte_offset_is_of_the_image_even_after_other_scripts(source, monkeypatch):
    def foreign(images):
        for image in images:
            image["sentences"][0]["raw"] = "雪の中の犬 🐕 " + image["sentences"][0]["raw"]

    changed(source, foreign)
    text = json.loads(source.read_text())
    source.write_text(json.dumps(text, ensure_ascii=False, indent=3), "utf-8")
    monkeypatch.setattr(ImageLayout, "unit_rows", 4)
    monkeypatch.setattr(json_list, "_BLOCK", 100)
    data = source.read_bytes()
    for shard in resolve_sources([str(source)]):
        row = json.JSONDecoder().raw_decode(data[shard.offset :].decode().lstrip(", \n"))[0]
        assert row["imgid"] == shard.rows[0]
    samples, errors = read(source)
    assert not errors
    assert [sample.caption for sample in samples] == [f"雪の中の犬 🐕 {pair[2]}" for pair in PAIRS]


def test_the_images_lie_below_another_root(source, tmp_path):
    moved = tmp_path / "elsewhere.json"
    source.rename(moved)
    assert set(statuses(read(moved)[0])) == {"image_missing"}
    samples, _ = read(moved, image_root=str(source.parent))
    assert [sample.image for sample in samples] == [image for _, image, _ in PAIRS]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda text: text[: len(text) // 2], "is broken at byte|ends in the middle"),
        (lambda text: text.replace('"imgid": 30', '"imgid": ' + 50_000 * "["), "nested too deeply"),
        (
            lambda text: text.replace("caption 30", 6_000_000 * "x"),
            "more than 4,194,304 characters",
        ),
        (
            lambda text: text.replace('"filename"', '"x": 1}], "filename"', 31).replace(
                '"x": 1}], ', "", 30
            ),
            "broken behind its list `images` at byte",
        ),
        (lambda text: text[:-1] + ', "images": []}', "list `images` twice"),
    ],
)
def test_a_file_that_is_broken_in_the_middle_says_so(source, damage, expected):
    source.write_text(damage(source.read_text()))
    samples, errors = read(source)
    assert len(errors) == 1
    with pytest.raises(ShardError, match=expected):
        raise ShardError(errors[0])
    assert 10 < len(samples) <= 40


@pytest.mark.parametrize("damaged", ["images", "rest"])
def test_what_is_broken_is_named_by_its_byte(source, damaged, monkeypatch):
    monkeypatch.setattr(json_list, "_BLOCK", 100)
    text = json.dumps(json.loads(source.read_text()) | {"dataset": "ü?"}, ensure_ascii=False)
    text = text.replace("caption 3", "雪 3")
    mark = '"imgid": 30' if damaged == "images" else '"dataset"'
    source.write_text(text.replace(mark, "?" + mark), "utf-8")
    place = source.read_bytes().index(b"?" + mark.encode())
    with JsonList(str(source), "images") as rows:
        rows.seek(0)
        with pytest.raises(ShardError, match=f" at byte {place:,}: Expecting property name"):
            list(rows)


@pytest.mark.parametrize("text", [" " * (2 << 20) + '{"images": [{}]}', b"\xff\xfe\x00{"])
def test_other_json_is_no_source(tmp_path, text, refused):
    place = tmp_path / "other.json"
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(resolve_sources, [str(place)])


def test_memory_does_not_grow_with_the_file(source, monkeypatch):
    """What was read is let go: the buffer never holds much more than a block and an image."""
    monkeypatch.setattr(json_list, "_BLOCK", 512)
    with JsonList(str(source), "images") as rows:
        rows.seek(0)
        longest = max(len(rows._buffer) for _ in rows)
    assert longest < 2000 < source.stat().st_size


def test_in_an_object_store(source):
    with object_store.s3():
        object_store.upload(source.parent / "images", "s3://corpus/c/images")
        object_store.filesystem().put_file(str(source), "corpus/c/c.json")
        samples, errors = read("s3://corpus/c/c.json", split=["val"])
    assert not errors
    assert [sample.image for sample in samples] == [b"image %d" % n for n in range(1, 40, 4)]
