"""Score tables whose footers lie, or that are cut: rows or a sentence, and no memory."""

import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.report import Report

import ncclean
from ncclean.errors import InputError
from ncclean.storage.joined import query
from tests.footers import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    PACKED,
    UNPACKED,
    VALUES,
    rewrite_footer,
    set_field,
    set_rows,
)

ROWS, HUGE = 300, 10**12


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "s.parquet"
    columns = {
        "uid": [f"u{n}" for n in range(ROWS)], "shard": ["s"] * ROWS, "key": ["k"] * ROWS,
        "row": pa.array(range(ROWS), pa.int32()), "status": ["ok"] * ROWS, "text": ["t"] * ROWS,
        "similarity": pa.array(np.linspace(0, 1, ROWS), pa.float32()),
        "noise_probability": pa.array(np.linspace(0, 1, ROWS), pa.float32()),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path, row_group_size=100, compression="zstd")
    return path


def ends(path, tmp_path):
    """How each command ends: in rows, or in an error of ours, never in another."""
    commands = {
        "select": lambda: ncclean.select(str(path), str(tmp_path / "k.parquet"), where="true"),
        "query": lambda: query("SELECT max(text), avg(similarity) FROM scores", [str(path)]),
        "report": lambda: Report(scores=[str(path)], out=str(tmp_path / "r.html")).run(),
    }
    found = {}
    for name, command in commands.items():
        try:
            command()
            found[name] = ""
        except InputError as error:
            found[name] = str(error)
    return found


@pytest.mark.parametrize(
    "lie",
    [
        set_rows(HUGE),
        set_rows(3 * HUGE, HUGE),
        set_rows(-1, -1),
        set_rows(0, 0),
        set_field(VALUES, HUGE),
        set_field(DATA_PAGE, HUGE),
        set_field(DATA_PAGE, -5),
        set_field(DICTIONARY_PAGE, HUGE),
        set_field(PACKED, HUGE),
        set_field(PACKED, -10),
        set_field(UNPACKED, HUGE),
    ],
    ids=range(11),
)
def test_a_footer_that_lies(table, tmp_path, lie):
    rewrite_footer(table, lie)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in ends(table, tmp_path).values():
        assert (
            not text
            or "s.parquet" in text
            or "read" in text
            or "Parquet" in text
            or "failed" in text
        )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


@pytest.mark.parametrize("keep", [0, 4, 100, -4, -9])
def test_a_file_that_is_cut(table, tmp_path, keep):
    table.write_bytes(table.read_bytes()[:keep])
    assert all("s.parquet" in text for text in ends(table, tmp_path).values())


def test_a_dictionary_that_stands_for_far_more_than_the_file(table, tmp_path):
    numbers = pa.array(np.zeros(ROWS, np.int32))
    words = pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * 100_000_000]))
    rows = pq.read_table(table)
    rows = rows.set_column(rows.column_names.index("text"), "text", words)
    pq.write_table(rows, table, compression="zstd", store_schema=False)
    assert table.stat().st_size < 200_000
    for text in ends(table, tmp_path).values():
        assert "s.parquet: column text unpacks from" in text
