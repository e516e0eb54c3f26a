"""Rows of one image in a table: one sample with a caption of each, wherever the rows are."""

import pytest

from ncclean.data.images import columns
from ncclean.data.images.columns import by_image, image_of, key_of
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.text_rows import BrokenRow
from ncclean.data.images.text_tables import TextTable
from ncclean.data.layout import Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.errors import ShardError


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
    monkeypatch.setattr("ncclean.data.images.text_tables.MOST_ROWS", 2)
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


def test_whole_numbers_are_keys_also_as_floats():
    """Pandas stores integers with gaps as floats."""
    keys = [key_of({"key": value}, "a.jpg") for value in (7, 7.0, float("nan"), None, "")]
    assert keys == ["7", "7", "a", "a", "a"]
