"""Page sizes are those that Arrow goes by, whatever the footer says."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.data.parquet_bounds import inflated_columns, rows_at_once
from ncclean.data.parquet_footer import read_chunks
from ncclean.data.parquet_pages import with_page_sizes
from tests.data.test_parquet_bounds import READ
from tests.footers import UNPACKED, rewrite_footer, set_field

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
