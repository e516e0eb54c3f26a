"""Tables that mean harm: broken lines, places that are no images, texts that unpack to gigabytes.

See `attacks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests import hostile
from tests.attacks import Attack
from tests.footers import UNPACKED, lengthen_histograms, rewrite_footer, set_field

_ROWS = 20
_HALF = _ROWS // 2


def table(
    data: bytes | Callable[[], bytes] | None = None, name: str = "t.csv", **rows: str
) -> Callable[[Path], None]:
    """Writes a table of an image and captions; `rows` replaces lines of an ordinary csv by number.

    `data` are its bytes instead, or a function that makes them. The image lies beside it.
    """

    def write(folder: Path) -> None:
        (folder / "a.jpg").write_bytes(hostile.JPEG)
        lines = [f"{number},a.jpg,caption {number}" for number in range(_ROWS)]
        for number, line in rows.items():
            lines[int(number.removeprefix("row"))] = line
        text = "\n".join(["key,file_name,text", *lines]) + "\n"
        given = data() if callable(data) else data
        (folder / name).write_bytes(text.encode() if given is None else given)

    return write


def json_lines(*others: str) -> Callable[[Path], None]:
    """Writes a table of json lines with `others` among ordinary ones."""
    lines = [json.dumps({"key": str(n), "file_name": "a.jpg", "text": f"caption {n}"})
             for n in range(_ROWS)]  # fmt: skip
    lines[_HALF:_HALF] = others
    return table("".join(f"{line}\n" for line in lines).encode(), "t.jsonl")


def with_ordinary(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of images and captions, and the same with others beside or in place of them.

    Others are arrays, or functions that make one.
    """
    ordinary = {
        "key": pa.array([f"row{number}" for number in range(_ROWS)]),
        "jpg": pa.array([hostile.JPEG] * _ROWS),
        "caption": pa.array([f"caption {number}" for number in range(_ROWS)]),
    }
    others = {name: made() if callable(made) else made for name, made in columns.items()}
    return ordinary, {**ordinary, **others}


def parquet(**columns: pa.Array | Callable[[], pa.Array]) -> Callable[[Path], None]:
    """Writes images and captions as Parquet, twice: one with `columns`, see `with_ordinary`."""

    def write(folder: Path) -> None:
        ordinary, changed = with_ordinary(columns)
        for name, table in (("t", changed), ("z", ordinary)):
            pq.write_table(
                pa.table(table),
                folder / f"{name}.parquet",
                compression="zstd",
                store_schema=False,
                row_group_size=_HALF,
            )

    return write


def karpathy(
    change: Callable[[list[Any]], object], cut: int | None = None
) -> Callable[[Path], None]:
    """Writes images with captions as Karpathy's json; `change` is done to their list.

    With `cut` only so many characters of the file are left.
    """

    def write(folder: Path) -> None:
        for number in range(_ROWS):
            (folder / f"{number}.jpg").write_bytes(hostile.JPEG)
        images: list[Any] = [
            {"filename": f"{number}.jpg", "sentences": [{"raw": f"caption {number}"}]}
            for number in range(_ROWS)
        ]
        change(images)
        text = json.dumps({"images": images})
        (folder / "t.json").write_text(text[:cut])

    return write


def _broken_images(images: list[Any]) -> None:
    images[3], images[4] = 7, {"split": "val"}
    images[5]["filename"] = "../../etc/passwd"
    images[6]["sentences"] = [{}, {"raw": " "}, {"raw": "a dog"}]


def nulls(folder: Path) -> None:
    """Twenty million rows of nothing in some kilobytes."""
    parquet()(folder)
    rows = 20_000_000
    columns = {"jpg": pa.nulls(rows, pa.binary()), "caption": pa.nulls(rows, pa.string())}
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=rows)


def _histograms(folder: Path) -> None:
    """Level histograms of a wrong length, at which Arrow's accessor ends the process."""
    parquet()(folder)
    rewrite_footer(folder / "t.parquet", lengthen_histograms)


def _heic(folder: Path) -> None:
    table()(folder)
    for number in range(_HALF):
        (folder / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(64))
    (folder / "t.csv").write_text(
        "file_name,text\n" + "".join(f"{n}.heic,c\n" for n in range(_HALF)) + "a.jpg,fine\n"
    )


def one_huge_text() -> pa.Array:
    """What all rows share: 100 MB that the file holds in a few kilobytes."""
    numbers = pa.array([0] * _ROWS, pa.int32())
    return pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * 100_000_000]))


def _footer_that_lies(folder: Path) -> None:
    """Two columns that nobody asks for unpack to 100 MB each, and the footer says to nothing."""
    parquet(one=one_huge_text(), two=one_huge_text())(folder)
    rewrite_footer(folder / "t.parquet", set_field(UNPACKED, 1000))


def _row_group_overwritten(folder: Path) -> None:
    """The images of the second half of the rows are bytes of nothing."""
    parquet()(folder)
    place = folder / "t.parquet"
    begin = pq.ParquetFile(place).metadata.row_group(1).column(1).data_page_offset
    data = bytearray(place.read_bytes())
    data[begin : begin + 40] = b"\xff" * 40
    place.write_bytes(data)


_SEMICOLONS = "key;file_name;text\n" + "".join(f"{n};a.jpg;caption {n}\n" for n in range(_ROWS))
TABLE_ATTACKS = (
    Attack("csv with a quote that is not closed", table(row10='10,a.jpg,"open'),
           {"ok": 19, "row_broken": 1}),
    Attack("csv with half a line of 2 MB", table(row10="10,a.jpg," + "x" * (2 << 20)),
           {"ok": 19, "row_broken": 1}),
    Attack("csv separated by semicolons",
           table(_SEMICOLONS.encode()), {"ok": 20}),
    Attack("csv that names itself, a device and other folders",
           table(row3="3,t.csv,itself", row4="4,/dev/zero,zeros", row5="5,../..,above",
                 row6="6,none.jpg,gone"),
           {"ok": 16, "image_missing": 3, "image_corrupt": 1}),
    Attack("csv with a row twice", table(row10="9,a.jpg,again"), {"ok": 19, "duplicate_key": 1}),
    Attack("csv in UTF-16", table("key,file_name,text\n0,a.jpg,c\n".encode("utf-16")),
           {}, ("t",)),
    Attack("csv with a line of 20 MB, and rows behind it", table(row10="x" * (20 << 20)),
           {"ok": 10}, ("t",)),
    Attack("Karpathy's json with images that are none", karpathy(_broken_images),
           {"ok": 17, "row_broken": 2, "image_missing": 1, "caption_missing": 2},
           source="t.json"),
    Attack("Karpathy's json that is cut", karpathy(list, cut=-200), {"ok": 16}, ("t",),
           source="t.json"),
    Attack("csv that names HEIC", _heic, {"ok": 1, "image_corrupt": _HALF}),
    Attack("jsonl with lines that are cut, deep and no objects",
           json_lines('{"file_name": "a.', "[" * 100_000, "[1]", "null"),
           {"ok": 20, "row_broken": 4}),
    Attack("jsonl with 100,000 empty objects", json_lines(*["{}"] * 100_000),
           {"ok": 20, "image_missing": 100_000}),
    Attack("Parquet with a text of 100 MB nobody asks for", parquet(other=one_huge_text),
           {"ok": 40}),
    Attack("Parquet with a caption of 100 MB for all rows", parquet(caption=one_huge_text),
           {"ok": 20, "row_broken": 20}),
    Attack("Parquet whose footer says nothing of 200 MB", _footer_that_lies, {"ok": 40}),
    Attack("Parquet with a row group that is overwritten", _row_group_overwritten,
           {"ok": 30, "row_broken": 10}, ("t",)),
    Attack("Parquet with 20 million rows of nulls", nulls, {"ok": 20}, ("t",)),
    Attack("Parquet with level histograms of a wrong length", _histograms,
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Parquet without some captions and images",
           parquet(caption=pa.array([None, *["c"] * (_ROWS - 1)]),
                   jpg=pa.array([*[hostile.JPEG] * (_ROWS - 1), None])),
           {"ok": 38, "caption_missing": 1, "image_missing": 1}),
)  # fmt: skip
