"""Rows of csv and jsonl files: as many rows out as lines in, wherever a unit begins."""

import json
import os
import sys

import pytest

from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.text_rows import BrokenRow, TextRows
from ncclean.errors import ShardError
from tests.data.image_layouts import read, statuses


def rows_in(path, text, **options):
    path.write_text(text, newline="", **options)
    with TextRows(str(path)) as rows:
        return list(rows)


def fields(rows):
    return [None if isinstance(row, BrokenRow) else list(row.values()) for row in rows]


def table(broken, *, columns="key,file_name,text", rows=30, at=10, line="{n},{n}.jpg,caption {n}"):
    lines = [line.format(n=n) for n in range(rows)]
    lines[at] = broken
    return "\n".join([columns, *lines]) + "\n"


@pytest.mark.parametrize(
    "broken",
    ['10,10.jpg,"a quote that is never closed', '10,"10.jpg,caption', '"10,10.jpg,caption'],
)
@pytest.mark.parametrize(
    "later",
    ["20,20.jpg,caption 20", '20,20.jpg,"caption 20"', '20,20.jpg,a 5" disk', '20,20.jpg,5"',
     '20,20.jpg,""', '20,20.jpg,"two\nlines"', '20,20.jpg,"', '"20","20.jpg","caption"'],
)  # fmt: skip
def test_a_quote_that_is_not_closed_costs_its_own_row(tmp_path, broken, later):
    text = table(broken).replace("20,20.jpg,caption 20", later)
    rows = rows_in(tmp_path / "t.csv", text)
    assert len(rows) == 30
    found = fields(rows)
    lost = [number for number, row in enumerate(found) if row is None]
    assert lost in ([10], [10, 20])
    whole = [row for number, row in enumerate(found) if number not in (10, 20)]
    others = [number for number in range(30) if number not in (10, 20)]
    assert whole == [[f"{n}", f"{n}.jpg", f"caption {n}"] for n in others]


def test_captions_of_several_lines_stay_one_row(tmp_path):
    text = table('10,10.jpg,"a dog, a cat\nand, on the mat,\n""a"" bird.jpg,\r\n\nend"')
    rows = fields(rows_in(tmp_path / "t.csv", text))
    assert len(rows) == 30
    assert rows[10][2] == 'a dog, a cat\nand, on the mat,\n"a" bird.jpg,\r\n\nend'


@pytest.mark.parametrize(
    ("broken", "row"),
    [
        ('10,10.jpg,5" disk', ["10", "10.jpg", '5" disk']),
        ('10,10.jpg,"5" disk', ["10", "10.jpg", "5 disk"]),
        ("10,10.jpg", ["10", "10.jpg"]),
        ("10,10.jpg,a,b", None),
        ("key,file_name,text", None),
        ("Key , file_name,TEXT", None),
        ("10,10.jpg," + "x" * (1 << 20) + "x", None),
        # Python 3.10 reads no NUL in a csv.
        (
            "10,10.jpg,nul \0 inside",
            ["10", "10.jpg", "nul \0 inside"] if sys.version_info >= (3, 11) else None,
        ),
    ],
)
def test_lines_that_are_odd(tmp_path, broken, row):
    rows = fields(rows_in(tmp_path / "t.csv", table(broken)))
    assert len(rows) == 30
    assert rows[10] == row
    assert rows[11] == ["11", "11.jpg", "caption 11"]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_ends_of_lines_separators_and_byte_order_marks(tmp_path, end, mark, bom):
    text = bom + table("10,10.jpg,caption 10").replace("\n", end).replace(",", mark)
    rows = fields(rows_in(tmp_path / "t.csv", text))
    assert rows == [[f"{n}", f"{n}.jpg", f"caption {n}"] for n in range(30)]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.json"])
def test_a_byte_order_mark_belongs_to_no_name(tmp_path, name, monkeypatch):
    """Also before a quote, in a csv with all of its fields quoted."""
    monkeypatch.setattr(ImageLayout, "unit_rows", 2)
    lines = [json.dumps({"file_name": f"{n}.jpg", "text": f"caption é {n}"}) for n in range(5)]
    mark = "\t" if name == "t.tsv" else ","
    rows = [f'"{n}.jpg"{mark}"caption é {n}"' for n in range(5)]
    texts = {"t.json": f"[{','.join(lines)}]", "t.jsonl": "\n".join(lines)}
    text = texts.get(name, "\r\n".join([f'"file_name"{mark}"text"', *rows]))
    (tmp_path / name).write_text(text, encoding="utf-8-sig", newline="")
    samples, errors = read(tmp_path / name)
    assert errors == []
    assert [one.caption for one in samples] == [f"caption é {n}" for n in range(5)]


def test_units_begin_where_rows_do(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageLayout, "unit_rows", 7)
    (tmp_path / "é.jpg").write_bytes(b"x")
    text = table('10,é.jpg,"open', line="{n},é.jpg,caption {n} é").replace("caption 13 é", '"a\nb"')
    (tmp_path / "t.csv").write_text(text)
    samples, errors = read(tmp_path / "t.csv")
    assert errors == []
    assert [sample.key for sample in samples] == [f"{n}" if n != 10 else "000000010"
                                                  for n in range(30)]  # fmt: skip
    assert statuses(samples).count("row_broken") == 1


def test_many_quotes_that_are_not_closed_take_no_longer_than_they_are(tmp_path):
    line = '{n},{n}.jpg,"open {n}'
    rows = rows_in(tmp_path / "t.csv", table("10,10.jpg,caption", rows=20_000, line=line))
    assert len(rows) == 20_000


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("file_name,text\na.jpg,x\n".encode("utf-16"), "iconv"),
        ("file_name,text\na.jpg,x\n".encode("utf-16-le"), "iconv"),
        (b"PK\x03\x04", "spreadsheet"),
        (bytes(1 << 20), "is empty"),
        (b"file_name," * (4 << 20), "more than"),
        (b'file_name,"text\n' + b"a.jpg,x\n" * 5, "names of its columns"),
    ],
)
def test_files_that_are_no_text_tables_are_said(tmp_path, data, what):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(ShardError, match=what):
        TextRows(str(tmp_path / "t.csv"))
    samples, errors = read(tmp_path / "t.csv")
    assert samples == []
    assert what in errors[0]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_metadata_that_is_no_file_is_a_unit_that_cannot_be_read(tmp_path, name, kind):
    (tmp_path / "a.jpg").write_bytes(b"image")
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    samples, errors = read(tmp_path)
    assert samples == []
    assert f"is a {kind}" in errors[0]


def test_a_line_without_an_end_costs_what_follows(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"image")
    good = json.dumps({"file_name": "a.jpg", "text": "fine"}) + "\n"
    with (tmp_path / "t.jsonl").open("w") as file:
        file.write(good)
        os.truncate(file.fileno(), 1 << 40)
        file.flush()
    samples, errors = read(tmp_path / "t.jsonl")
    assert statuses(samples) == ["ok"]
    assert "more than" in errors[0]
