"""Rows of one image in a table: one sample with a caption of each, wherever the rows are."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.images import columns
from ncclean.data.images.columns import by_image, image_of, key_of
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.text_rows import BrokenRow
from ncclean.data.images.text_tables import TextTable
from ncclean.data.layout import Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.samples import of_caption
from ncclean.errors import ShardError
from tests.data.image_layouts import read


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_of_an_image_are_its_captions(tmp_path, ending):
    """As open_clip's and CLIP_benchmark's tables of Flickr and COCO have them, in any order."""
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(name.encode())
    rows = [
        {"filepath": "a.jpg", "title": "one", "url": "u", "is_noisy": 0},
        {"filepath": "b.jpg", "title": "two", "url": "v", "is_noisy": 0},
        {"filepath": "a.jpg", "title": "three", "url": "u", "is_noisy": 1},
    ]
    path = tmp_path / f"t.{ending}"
    if ending == "csv":
        lines = [",".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    elif ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    (first, second), errors = read(path)
    assert errors == []
    assert (first.key, first.row, second.key, second.row) == ("a", 0, "b", 1)
    assert [(c.number, c.text) for c in first.captions] == [(0, "one"), (1, "three")]
    assert first.metadata["url"] == "u"
    assert list(map(int, first.metadata["is_noisy"])) == [0, 1]
    assert int(second.metadata["is_noisy"]) == 0


def test_rows_with_a_key_stand_for_themselves(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    (tmp_path / "t.csv").write_text("key,file_name,text\n1,a.jpg,one\n2,a.jpg,two\n1,a.jpg,three\n")
    samples, _ = read(tmp_path / "t.csv")
    found = [(sample.key, sample.caption, sample.status.value) for sample in samples]
    assert found == [("1", "one", "ok"), ("2", "two", "ok"), ("1", "three", "duplicate_key")]


def test_a_key_of_two_images_loses_neither(tmp_path):
    for name in ("0/a", "1/a"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.jpg").write_bytes(b"a")
    (tmp_path / "t.csv").write_text("key,file_name,text\na,0/a.jpg,one\na,1/a.jpg,two\n")
    samples, _ = read(tmp_path / "t.csv")
    assert [(one.key, one.status.value) for one in samples] == [("a", "ok"), ("1/a", "ok")]
    rows = [{"key": "a", "image": image, "text": "one"} for image in (b"a", b"b", b"b")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    samples, _ = read(tmp_path / "t.parquet")
    keys = [(one.key, one.status.value) for one in samples]
    assert keys == [("a", "ok"), ("000000001", "ok"), ("000000002", "ok")]


def of(name, number=0):
    return {"path": f"{name}.jpg", "text": f"{name}{number}"}


def test_what_is_put_together(monkeypatch):
    broken = BrokenRow("cut")
    rows = [of("a"), broken, of("b"), of("a", 1)]
    assert list(by_image(rows)) == [[of("a"), of("a", 1)], [broken], [of("b")]]
    monkeypatch.setattr(columns, "MOST_ROWS", 2)
    four = [of("a", number) for number in range(5)]
    assert list(by_image(four)) == [four[:2], four[2:4], four[4:]]
    monkeypatch.setattr(columns, "_MOST_HELD", 12)
    assert list(by_image([of("a"), of("b"), of("a", 1)])) == [[of("a")], [of("b")], [of("a", 1)]]


def test_rows_that_follow_one_another_stay_together(monkeypatch):
    rows = [of(name, number) for name in "abcd" for number in range(5)]
    monkeypatch.setattr(columns, "_MOST_HELD", 3000)  # of about two images
    assert [len(group) for group in by_image(rows)] == [5] * 4


@pytest.mark.parametrize("value", ["x" * 4000, b"x" * 4000, {"a": [{"b": "x" * 4000}]}, [[]] * 99])
def test_anything_in_a_row_counts_as_held(monkeypatch, value):
    monkeypatch.setattr(columns, "_MOST_HELD", 3000)
    taken = 0

    def rows():
        nonlocal taken
        for name in "abcd":
            taken += 1
            yield {**of(name), "more": value}

    next(by_image(rows()))
    assert taken == 1


def test_truth_of_rows_follows_their_captions(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    path = tmp_path / "t.jsonl"

    def truth(*rows, key=None):
        path.write_text("".join(json.dumps({"path": "a.jpg", **row}) + "\n" for row in rows))
        ((sample,), _) = read(path, caption_key=key)
        said = [of_caption(sample.metadata, "is_noisy", c.number) for c in sample.captions]
        return dict(zip([c.text for c in sample.captions], said, strict=True))

    lists = {"captions": ["x", "y"], "is_noisy": False}, {"captions": ["z"], "is_noisy": True}
    assert truth(*lists) == {"x": False, "y": False, "z": True}
    lists = {"captions": ["x", "y"], "is_noisy": [False, True]}, {"captions": "z"}
    assert truth(*lists) == {"x": False, "y": True, "z": None}
    assert truth({"text": "x"}, {"text": "y", "is_noisy": True}) == {"x": None, "y": True}
    rows = {"captions": ["x", "y"], "url": "u"}, {"captions": ["z"], "url": "v"}
    path.write_text("".join(json.dumps({"path": "a.jpg", **row}) + "\n" for row in rows))
    assert read(path)[0][0].metadata["url"] == ["u", "u", "v"]
    keyed = {"a": "x", "b": "y", "is_noisy": False}, {"a": "z", "b": "w", "is_noisy": True}
    assert truth(*keyed, key=("a", "b")) == {"x": False, "z": True, "y": False, "w": True}


def test_a_row_with_its_image_waits_for_nothing():
    image = {"image": b"bytes", "text": "c"}

    def rows():
        yield image
        yield of("a")
        yield image
        raise AssertionError("nobody asked for more")

    groups = by_image(rows())
    assert [next(groups), next(groups), next(groups)] == [[image], [of("a")], [image]]


def test_rows_before_a_failure_come_before_it():
    def rows():
        yield from (of("a"), of("a", 1))
        raise ShardError("cut short")

    groups = by_image(rows())
    assert next(groups) == [of("a"), of("a", 1)]
    with pytest.raises(ShardError, match="cut short"):
        next(groups)


def cuts(path):
    file = SourceFile(TextTable(), str(path))
    return file.layout.cuts(file, Facts(0, ""), SourceOptions())


def test_units_do_not_part_the_rows_of_an_image(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageLayout, "unit_rows", 5)
    names = "aaabbbbbbbbcc"
    path = tmp_path / "t.csv"
    path.write_text("path,text\n" + "".join(f"{name}.jpg,c\n" for name in names))
    assert [cut[:2] for cut in cuts(path)] == [(0, 11), (11, 13)]
    monkeypatch.setattr("ncclean.data.images.row_units.MOST_ROWS", 2)
    found = cuts(path)
    assert [cut[:2] for cut in found] == [(0, 7), (7, 13)]
    data = path.read_bytes()
    assert [data[begin:].startswith(b"b.jpg") for _, _, begin in found] == [False, True]
    keyed = tmp_path / "k.csv"
    keyed.write_text("key,path,text\n" + "".join(f"{n},a.jpg,c\n" for n in range(7)))
    assert [cut[:2] for cut in cuts(keyed)] == [(0, 5), (5, 7)]


def test_the_index_that_pandas_writes_without_a_name_is_no_path():
    row = {"": "0", "filepath": "a.jpg", "title": "a dog"}
    assert image_of(row) == (None, "a.jpg")
    assert key_of(row, "a.jpg") == "a"
