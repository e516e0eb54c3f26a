"""Page sizes are those that Arrow goes by, whatever the footer says."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.data import parquet_pages
from ncclean.data.parquet_bounds import inflated_columns, rows_at_once
from ncclean.data.parquet_footer import read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from ncclean.data.parquet_table import read_table
from tests import object_store
from tests.data.image_layouts import read
from tests.data.test_parquet_bounds import READ
from tests.footers import PACKED, UNPACKED, rewrite_footer, set_field

MEGABYTE = 1 << 20


def letters(size, seed=0):
    drawn = np.random.default_rng(seed).integers(97, 123, size).astype(np.uint8)
    return drawn.tobytes().decode()


def sizes(path):
    (chunks,) = read_chunks(UPath(path))
    return with_page_sizes(UPath(path), chunks)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_headers_add_up_to_a_footer_that_tells_the_truth(tmp_path, compression, version):
    path = tmp_path / "t.parquet"
    columns = {"text": [letters(1000, n) for n in range(300)], "number": list(range(300))}
    pq.write_table(
        pa.table(columns),
        path,
        compression=compression,
        use_dictionary=False,
        data_page_version=version,
        data_page_size=50_000,
        write_batch_size=20,
    )
    (chunks,) = read_chunks(UPath(path))
    told = sizes(path)
    # A footer counts the headers of pages, too: some fifty bytes each.
    assert [one.unpacked for one in told] == [one.unpacked for one in chunks]
    assert 50_000 <= told[0].largest <= 100_000
    rewrite_footer(path, set_field(UNPACKED, 1))
    lied = sizes(path)
    for one, true in zip(lied, told, strict=True):
        assert 0.9 * true.unpacked < one.unpacked <= 1.1 * true.unpacked
        assert one.largest == true.largest


def test_rows_are_few_where_a_page_is_large(tmp_path):
    path = tmp_path / "t.parquet"
    text = letters(100_000) * 320  # of which a dictionary of a few packed kilobytes is made
    pq.write_table(pa.table({"text": [text] * 4}), path, compression="zstd")
    assert 4 <= rows_at_once(sizes(path), 64) <= 16


def test_columns_whose_pages_do_not_fit_into_memory_together(tmp_path, monkeypatch):
    from ncclean.data import parquet_bounds

    path = tmp_path / "t.parquet"
    megabytes = {"a": 5, "b": 1, "c": 6, "d": 2}
    columns = {name: [letters(size * MEGABYTE)] for name, size in megabytes.items()}
    pq.write_table(pa.table(columns), path)
    assert inflated_columns(sizes(path)) == {}
    monkeypatch.setattr(parquet_bounds, "_PAGES_BYTES", 9 * MEGABYTE)
    assert list(inflated_columns(sizes(path))) == ["c"]


def test_headers_that_cannot_be_read_are_left_to_arrow(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [letters(1000)] * 3}), path, use_dictionary=False)
    (chunks,) = read_chunks(UPath(path))
    data = bytearray(path.read_bytes())
    data[chunks[0].begin : chunks[0].begin + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert sizes(path)[0].largest == 0


def in_a_store(path):
    (chunks,) = read_chunks(UPath(path))
    return with_page_sizes(UPath(path), chunks)


@pytest.mark.parametrize("small", [4 << 20, 3000], ids=["whole chunks", "their first bytes"])
def test_pages_of_a_file_in_a_store_are_looked_at(tmp_path, monkeypatch, small):
    monkeypatch.setattr(parquet_pages, "_SMALL_CHUNK", small)
    path, rows = tmp_path / "t.parquet", 64
    huge = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (100 * MEGABYTE)])
    )
    columns = {"jpg": [b"image"] * rows, "one": huge, "text": [letters(1000, n) for n in range(64)]}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    rewrite_footer(path, set_field(UNPACKED, 1000))
    rewrite_footer(path, set_field(PACKED, 1 << 40, slice(0, 1)))  # beyond the end of the file
    with object_store.s3() as store:
        object_store.filesystem().put_file(str(path), "corpus/t.parquet")
        store.requests.clear()
        remote = in_a_store("s3://corpus/t.parquet")
        asked = len(store.requests)
    assert list(inflated_columns(remote)) == ["one"]
    local = sizes(path)
    assert remote[1].largest == local[1].largest > 100 * MEGABYTE
    assert remote[0] == local[0]
    if small > 3000:
        assert remote == local
    assert asked <= len(columns) + 4  # one a chunk, those of the footer, and its size


def test_rows_of_a_file_in_a_store_whose_footer_lies(tmp_path):
    path, rows = tmp_path / "t.parquet", 8
    huge = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (100 * MEGABYTE)])
    )
    columns = {"jpg": [b"image"] * rows, "caption": ["fine"] * rows, "one": huge}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    rewrite_footer(path, set_field(UNPACKED, 1000))
    with object_store.s3():
        object_store.filesystem().put_file(str(path), "corpus/t.parquet")
        samples, errors = read("s3://corpus/t.parquet")
    assert errors == []
    assert [sample.caption for sample in samples] == ["fine"] * rows
    assert not any("one" in sample.metadata for sample in samples)


def lists_of(text, values, kind):
    """Eight lists: the text once in the first, `values` times in the last, else "short"."""
    numbers = np.concatenate([[0], np.ones(6), np.zeros(values)]).astype(np.int32)
    ends = [0, 1, 2, 3, 4, 5, 6, 7, 7 + values]
    words = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array([text, "short"]))
    if kind == "map":
        return pa.MapArray.from_arrays(ends, pa.array(["k"] * len(numbers)), words)
    if kind == "struct":
        words = pa.StructArray.from_arrays([words, pa.array(numbers)], ["value", "from"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), words)


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
@pytest.mark.parametrize("name", ["other", "caption"])
def test_a_list_whose_dictionary_holds_one_huge_text(tmp_path, name, kind):
    """Of a row with 400 times the text, the column is left out; the other rows are read."""
    path, rows = tmp_path / "t.parquet", 8
    lists = lists_of("x" * (20 * MEGABYTE), 400, kind)
    columns = {"jpg": [b"image"] * rows, "caption": ["fine"] * rows, name: lists}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    done = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=60, check=True
    )
    statuses, errors, megabytes, _ = json.loads(done.stdout)
    assert errors == []
    if name == "other":
        assert statuses == {"ok": rows}
    else:
        assert statuses.pop("row_broken") == 1
        assert sum(statuses.values()) == rows - 1
    assert megabytes < 800


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list, pa.list_view])
@pytest.mark.parametrize("store_schema", [True, False])
def test_captions_in_lists_are_what_they_were(tmp_path, list_type, store_schema):
    path = tmp_path / "t.parquet"
    captions = [["a", "b"], [], None, ["a", None, "long " * 300]]
    columns = {
        "jpg": pa.array([b"image"] * 4),
        "caption": pa.array(captions, list_type(pa.string())),
    }
    try:
        pq.write_table(pa.table(columns), path, store_schema=store_schema)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow writes no such lists")
    samples, _ = read(str(path))
    texts = [[caption.text for caption in sample.captions] for sample in samples]
    assert texts == [["a", "b"], [None], [None], ["a", None, ("long " * 300).strip()]]


def test_a_list_of_millions_of_equal_texts(tmp_path):
    path, values = tmp_path / "t.parquet", 20_000_000
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(values, np.int32)), pa.array(["x"]))
    lists = pa.ListArray.from_arrays(pa.array([0, values], pa.int32()), words)
    pq.write_table(pa.table({"caption": ["c"], "other": lists}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    assert "other" in inflated_columns(sizes(path))


def test_a_footer_that_lies_takes_no_gigabytes(tmp_path):
    """Two dictionaries of 300 MB in less than a megabyte."""
    path, rows = tmp_path / "t.parquet", 64
    huge = pa.array(["x" * (300 * MEGABYTE)])
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), huge)
    columns = {"jpg": [b"image"] * rows, "caption": ["fine"] * rows, "one": words, "two": words}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    rewrite_footer(path, set_field(UNPACKED, 1000))
    done = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=60, check=True
    )
    statuses, errors, megabytes, _ = json.loads(done.stdout)
    assert statuses == {"ok": rows}
    assert errors == []
    assert megabytes < 500


READ_TABLE = """
import json, resource, sys
from ncclean.data.parquet_table import read_table
from ncclean.errors import ShardError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_table(sys.argv[1], None, None)
    error = ""
except ShardError as raised:
    error = str(raised)
print(json.dumps([error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10]))
"""


@pytest.mark.parametrize("is_list", [False, True])
def test_metadata_of_embeddings_whose_rows_share_one_huge_text(tmp_path, is_list):
    path, rows = tmp_path / "t.parquet", 400
    words = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (20 * MEGABYTE)])
    )
    if is_list:
        words = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), words)
    pq.write_table(pa.table({"caption": words}), path, compression="zstd", store_schema=False)
    done = subprocess.run(
        [sys.executable, "-c", READ_TABLE, path],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    error, megabytes = json.loads(done.stdout)
    assert "column caption unpacks from" in error
    assert megabytes < 800


@pytest.mark.parametrize("rows", [None, (3, 5)])
def test_a_table_read_by_dictionaries_is_what_it_is(tmp_path, monkeypatch, rows):
    from ncclean.data import parquet_bounds

    columns = {
        "caption": [None, *[letters(1000, n % 3) for n in range(9)]],
        "large": pa.array([*"abcdefghi", None], pa.large_string()),
        "lists": pa.array([["a", None], [], None, *[["b"]] * 7], pa.list_(pa.string())),
        "number": list(range(10)),
    }
    path, table = tmp_path / "t.parquet", pa.table(columns)
    pq.write_table(table, path, row_group_size=4)
    monkeypatch.setattr(parquet_bounds, "_PAGES_BYTES", 4000)
    expected = table if rows is None else table.slice(3, 2)
    assert read_table(str(path), None, rows).equals(expected)
    assert read_table(str(path), ["lists", "number"], rows).equals(
        expected.select(["lists", "number"])
    )
