"""Tables of images with broken lines, row groups and names: what each row becomes."""

import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.image_layouts import read, statuses


@pytest.mark.skipif(sys.version_info < (3, 11), reason="with NUL a row is row_broken there")
def test_lines_of_a_csv_that_are_broken(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    text = (
        "\ufefffile_name,text\r\n"
        "a.jpg,fine\n"
        "a.jpg,with, a comma\r\n"
        "a.jpg\n"
        "\n"
        'a.jpg,"two\nlines"\r'
        "a.jpg,\n"
        "a.jpg,nul \0 inside\n"
    )
    (tmp_path / "t.csv").write_bytes(text.encode() + b"a.jpg,\xff\xfe\n")
    (sample, broken), errors = read(tmp_path / "t.csv")
    assert errors == []
    assert (broken.status.value, broken.error[:12]) == ("row_broken", "3 fields und")
    assert sample.status.value == "ok"  # the other rows are of one image
    assert [(c.text, c.status.value, c.error) for c in sample.captions] == [
        ("fine", "ok", None),
        (None, "caption_missing", None),
        ("two\nlines", "ok", None),
        (None, "caption_missing", "empty"),
        (None, "caption_not_text", "contains NUL"),
        (None, "caption_not_text", "not UTF-8"),
    ]


def test_a_quote_that_is_never_closed_costs_one_row(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    rows = "".join(f"{number},a.jpg,caption {number}\n" for number in range(20_000))
    (tmp_path / "t.csv").write_text('key,file_name,text\nx,a.jpg,"open\n' + rows)
    samples, _ = read(tmp_path / "t.csv")
    assert statuses(samples) == ["row_broken", *["ok"] * 20_000]


def test_lines_of_a_jsonl_that_are_broken(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    good = json.dumps({"File_Name": "a.jpg", "Text": "fine", "n": 3})
    deep = "[" * 100_000
    (tmp_path / "t.jsonl").write_text(f"\ufeff{good}\n{{\n\n[1]\n{deep}\n{good[:-1]}\n")
    samples, _ = read(tmp_path / "t.jsonl")
    assert statuses(samples) == ["ok", *["row_broken"] * 4]
    assert samples[0].metadata == {"file_name": "a.jpg", "text": "fine", "n": 3}


def test_a_row_group_that_cannot_be_read_keeps_its_rows(tmp_path):
    table = pa.table(
        {"jpg": [os.urandom(2000) for _ in range(30)], "caption": [f"c {n}" for n in range(30)]}
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=10, compression="zstd")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = column.data_page_offset
    data[begin : begin + 40] = b"\xff" * 40
    path.write_bytes(data)
    samples, errors = read(path)
    assert len(samples) == 30
    assert statuses(samples) == [*["ok"] * 10, *["row_broken"] * 10, *["ok"] * 10]
    assert [sample.row for sample in samples] == list(range(30))
    assert len(errors) == 1
    assert "row group 1 cannot be read" in errors[0]


def thrift_varint(value):
    """A positive i64 as Parquet's footer has it."""
    value, out = value << 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_rows_that_a_footer_does_not_tell_of_are_a_failure(tmp_path):
    """All of its row groups claim to be empty: not one row would be missed."""
    table = pa.table({"jpg": [b"x"] * 5001, "caption": ["c"] * 5001})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    data = path.read_bytes()
    count = thrift_varint(5001)
    last = data.rindex(b"\x16" + count)  # field 3 of the row group; the file's own comes before
    path.write_bytes(data[:last] + b"\x16\x80\x00" + data[last + 1 + len(count) :])
    assert pq.ParquetFile(path).metadata.row_group(0).num_rows == 0
    _, errors = read(path)
    assert len(errors) == 1
    assert "5001 were announced" in errors[0]


def test_a_column_whose_name_is_no_text_does_not_end_the_run(tmp_path):
    for name in "ab":
        pq.write_table(pa.table({"jpg": [b"x"], "caption": ["c"]}), tmp_path / f"{name}.parquet")
    path = tmp_path / "a.parquet"
    path.write_bytes(path.read_bytes().replace(b"caption", b"capt\x91on"))
    samples, errors = read(tmp_path)
    assert len(samples) == 1
    assert "not UTF-8" in errors[0]


def test_a_byte_that_is_no_text_costs_one_caption_of_a_list(tmp_path):
    texts = pa.array([b"a dog", b"a \xff cat", b"a cow"]).view(pa.string())
    captions = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), texts)
    pq.write_table(pa.table({"jpg": [b"x", b"y"], "captions": captions}), tmp_path / "t.parquet")
    samples, errors = read(tmp_path)
    assert errors == []
    assert [one.status.value for sample in samples for one in sample.captions] == [
        "ok",
        "caption_not_text",
        "ok",
    ]
