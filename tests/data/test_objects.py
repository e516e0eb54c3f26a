"""Pairs that Python holds, as a source of commands."""

import io
import tempfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import ncclean
from ncclean.data.objects import is_paths, write_pairs
from ncclean.errors import InputError


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def picture(seed=0, mode="RGB"):
    values = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(seed=0):
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "0.png").write_bytes(encoded())
    return tmp_path / "0.png"


class Dataset:
    """What `datasets.Dataset` has of methods, and its images as it stores them."""

    column_names = ("image", "text")

    def __init__(self, table):
        self._table = table

    def with_format(self, name):
        assert name == "arrow"
        return self

    def iter(self, batch_size):
        return (pa.Table.from_batches([one]) for one in self._table.to_batches(batch_size))


STORED = pa.table({
    "image": [{"bytes": encoded(), "path": None}, {"bytes": encoded(1), "path": "1.png"}],
    "text": ["a", "b"], "label": pa.array([3, None], pa.int16()),
})  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        [(picture(), "a"), (encoded(1), "b")],
        [[picture(), "a"], [picture(1), "b"]],
        iter([(picture(), "a"), (picture(1), "b")]),
        [{"image": picture(), "text": "a"}, {"image": encoded(1), "text": "b"}],
        pd.DataFrame({"image": [picture(), picture(1)], "text": ["a", "b"]}),
        pd.DataFrame({"jpg": [encoded(), encoded(1)], "text": ["a", "b"], "n": [1.5, np.nan]}),
        Dataset(STORED),
        STORED,
    ],
)
def test_pairs_of_all_kinds(source):
    place, count = write_pairs(source)
    table = pq.read_table(place)
    assert count == len(table) == 2
    assert table.column("text").to_pylist() == ["a", "b"]
    images = table.column(next(n for n in ("image", "jpg") if n in table.column_names)).to_pylist()
    for seed, image in enumerate(images):
        data = image["bytes"] if isinstance(image, dict) else image
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), np.asarray(picture(seed)))


def test_paths_are_read_from_the_folder_that_is_named(file, monkeypatch):
    frame = pd.DataFrame({"file_name": ["0.png", "lost.png"], "caption": ["a", "b"], "n": [1, 2]})
    for source, root, here in (
        ([(file, "a"), ("lost.png", "b")], None, "/"),
        (frame, None, file.parent),
        (frame, str(file.parent), "/"),
    ):
        monkeypatch.chdir(here)
        table = pq.read_table(write_pairs(source, root)[0])
        found = [image["bytes"] for image in table.column("image").to_pylist()]
        assert found == [file.read_bytes(), None]
    assert table.column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK", "F"])
def test_pictures_of_any_mode(mode):
    table = pq.read_table(write_pairs([(picture(mode=mode), "a")])[0])
    assert Image.open(io.BytesIO(table.column("image")[0].as_py()["bytes"])).size == (32, 24)


def test_a_picture_keeps_how_it_is_to_be_turned():
    turned = picture()
    turned.getexif()[0x0112] = 6
    table = pq.read_table(write_pairs([(turned, "a")])[0])
    stored = Image.open(io.BytesIO(table.column("image")[0].as_py()["bytes"]))
    assert stored.getexif()[0x0112] == 6


def test_what_pandas_has_no_value_for_is_missing():
    frame = pd.DataFrame({"image": [encoded(), encoded(1)], "text": ["a", np.nan]})
    for source in (
        frame,
        frame.to_dict("records"),
        list(zip(frame.image, frame.text, strict=True)),
    ):
        assert pq.read_table(write_pairs(source)[0]).column("text").to_pylist() == ["a", None]


def test_a_named_index_of_pandas_is_a_column():
    frame = pd.DataFrame({"key": ["x", "y"], "image": [encoded(), encoded(1)], "text": ["a", "b"]})
    for drop in (True, False):
        rows = frame.set_index("key", drop=drop).iloc[::-1]
        assert pq.read_table(write_pairs(rows)[0]).column("key").to_pylist() == ["y", "x"]


def test_pandas_with_a_column_twice_or_one_only_is_refused():
    frame = pd.DataFrame([[encoded(), "a", "b"]], columns=["image", "text", "text"])
    for source in (frame, frame["image"]):
        with pytest.raises(InputError):
            write_pairs(source)


def test_what_the_first_rows_lack_has_a_type_too():
    rows = [{"image": encoded(n), "text": "a", "note": None} for n in range(300)]
    table = pq.read_table(write_pairs([*rows, {"image": encoded(), "text": "b", "note": "x"}])[0])
    assert table.column("note").to_pylist()[-2:] == [None, "x"]


def test_columns_of_later_rows_are_kept():
    rows = [{"image": encoded(n), "text": "a"} for n in range(300)]
    for first in (rows[:9], rows):
        table = pq.read_table(
            write_pairs([*first, {"image": encoded(), "text": "b", "url": "x"}])[0]
        )
        assert table.column("url").to_pylist() == [None] * len(first) + ["x"]


def test_numbers_keep_their_fractions_whatever_came_first():
    rows = [{"image": encoded(), "text": "a", "s": value} for value in [1] * 300 + [1.5, None]]
    assert pq.read_table(write_pairs(rows)[0]).column("s").to_pylist() == [1.0] * 300 + [1.5, None]
    with pytest.raises(InputError, match=r"\bs\b"):
        write_pairs([*rows, *({"image": encoded(), "text": "a", "s": "b"} for _ in range(300))])


def test_types_of_a_source_are_kept():
    missing = pa.array([None] * 300 + [0.5], pa.float32())
    tags = pa.array([[1, 2]] * 301, pa.list_(pa.int8(), 2))
    image = pa.array([{"bytes": encoded(), "path": None}] * 301)
    table = pa.table({"image": image, "text": ["a"] * 301, "score": missing, "tags": tags})
    for source in (table, Dataset(table)):
        written = pq.read_table(write_pairs(source)[0])
        assert written.schema.field("score").type == pa.float32()
        assert written.column("tags").equals(table.column("tags"))
        assert written.column("score").to_pylist() == missing.to_pylist()
    words = pd.DataFrame(
        {
            "image": [encoded()] * 2,
            "text": ["a", "b"],
            "words": [np.array(["x"], object), np.array([])],
        }
    )
    assert pq.read_table(write_pairs(words)[0]).column("words").to_pylist() == [["x"], []]
    frame = table.to_pandas()  # whose lists are arrays
    assert pq.read_table(write_pairs(frame)[0]).column("tags").to_pylist() == tags.to_pylist()


def test_a_second_image_stays_where_the_first_is_missing_in_another_row():
    struct = {"bytes": encoded(), "path": None}
    rows = [{"image": struct, "jpg": encoded(1), "text": "a"},
            {"image": None, "jpg": encoded(2), "text": "b"}]  # fmt: skip
    written = pq.read_table(write_pairs(rows)[0])
    held = [
        value["bytes"] if isinstance(value, dict) else value
        for value in written.column("jpg").to_pylist()
    ]
    assert held == [encoded(1), encoded(2)]
    assert written.column("image").to_pylist()[0]["bytes"] == encoded()


def test_images_as_arrays_are_refused_in_words():
    for source in (
        [(np.zeros((4, 4, 3), np.uint8), "a")],
        pd.DataFrame({"image": [np.zeros((4, 4, 3), np.uint8)], "text": ["a"]}),
    ):
        with pytest.raises(InputError, match="fromarray"):
            write_pairs(source)


def test_the_same_pairs_are_the_same_file(temporary):
    first, second, other = (write_pairs([(encoded(n), "a")])[0] for n in (0, 0, 1))
    assert first == second != other
    assert len([one for one in temporary.iterdir() if one.is_dir()]) == 2


@pytest.mark.parametrize(
    "source",
    [{"train": STORED}, [1, 2], 3, [("a.jpg", "a", "b")], iter([]), [(encoded(), object())]],
)
def test_other_objects_are_refused(source, temporary):
    with pytest.raises(InputError):
        write_pairs(source)
    assert not [one for one in temporary.iterdir() if one.is_dir()]


def test_paths_are_no_objects(file):
    assert is_paths("shards/")
    assert is_paths(file)
    assert is_paths([file, "b.tar"])
    assert is_paths(("a.tar",))
    assert not is_paths([("a.jpg", "a dog")])
    assert not is_paths(STORED)


@pytest.mark.usefixtures("rough_shifts")
def test_commands_take_the_folder_and_the_column_of_their_images(file, tmp_path):
    rows = [{"other": "lost.png", "mine": file.name, "text": f"a picture of {n}"} for n in range(3)]
    options = {"image_root": str(file.parent), "image_key": "mine", "model": "demo", "shift": 0.2}
    assert ncclean.score(rows, str(tmp_path / "s.parquet"), **options)["ok"] == 3


@pytest.mark.usefixtures("rough_shifts")
def test_commands_take_them(tmp_path):
    said = []
    source = [(picture(n), f"a picture of {n}") for n in range(5)]
    out = str(tmp_path / "s.parquet")
    scored = ncclean.score(source, out, model="demo", shift=0.2, progress=said.append)
    assert scored["ok"] == 5
    file = str(said[0]).split()[4].rstrip(":")
    assert str(said[0]).startswith(f"5 pairs written to {file}")
    assert ncclean.score([file], out, model="demo", shift=0.2)["rows"] == 5
    ncclean.select(out, str(tmp_path / "x.parquet"), score="similarity", keep_fraction=0.6)
    for shards in (source, file):
        written = ncclean.export(
            str(tmp_path / "x.parquet"), str(tmp_path / "out"), shards=shards, overwrite=True
        )
        assert written["samples"] == 3
