"""SQL over score files, and nothing but over score files."""

import functools
import os
import resource
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.report import Report

import ncclean
from ncclean.data.fingerprints import Fingerprint, as_metadata
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


@pytest.fixture
def scores(tmp_path):
    folder = tmp_path / "it's scores"
    folder.mkdir()
    for number in range(2):
        table = pa.table({"uid": [f"{number}a", f"{number}b"], "similarity": [0.1, 0.2 + number]})
        pq.write_table(table, folder / f"part-{number}.parquet")
    (folder / ".ncclean").mkdir()
    pq.write_table(pa.table({"uid": ["hidden"]}), folder / ".ncclean" / "part-9.parquet")
    return folder


def test_nan_that_a_files_statistics_leave_out_is_found(tmp_path):
    values = np.array([0.1, np.nan, 0.3], np.float32)
    pq.write_table(pa.table({"uid": ["a", "b", "c"], "blur": values}), tmp_path / "a.parquet")
    sql = "SELECT count_if(isnan(blur)), count_if(blur < 2), count_if(blur > 2) FROM scores"
    assert query(sql, [str(tmp_path / "a.parquet")]).fetchall() == [(1, 2, 1)]
    where = "SELECT uid FROM scores WHERE isnan(blur)"
    assert query(where, [str(tmp_path / "a.parquet")]).fetchall() == [("b",)]


def test_the_largest_value_is_one_that_is_there(tmp_path):
    """DuckDB 2.0 took NaN for the largest, from statistics of a file that might have some."""
    values = np.array([0.1, 0.2, 0.3])
    pq.write_table(pa.table({"status": ["ok"] * 3, "blur": values}), tmp_path / "a.parquet")
    sql = "SELECT min(blur), max(blur) FROM scores WHERE status = 'ok'"
    assert query(sql, [str(tmp_path / "a.parquet")]).fetchall() == [(0.1, 0.3)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_times_are_the_same_in_each_time_zone(tmp_path, zone):
    times = pa.array(["2026-03-29T23:30:00Z"]).cast(pa.timestamp("us", "Asia/Tokyo"))
    pq.write_table(pa.table({"taken": times}), tmp_path / "scores.parquet")
    code = f"""
import pyarrow.parquet as pq
from ncclean.storage.grouping import group_labels
from ncclean.storage.joined import query
file = {str(tmp_path / "scores.parquet")!r}
(found,) = query("SELECT taken::VARCHAR, day(taken) FROM scores", [file]).fetchall()
print(*found, *group_labels("day(taken)", pq.read_table(file)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TZ": zone}, capture_output=True, text=True
    )
    assert found.stdout.strip() == "2026-03-29 23:30:00+00 29 29", found.stderr


def test_folder_file_glob_and_several(scores):
    count = "SELECT count(*) FROM scores"
    assert query(count, [str(scores)]).fetchall() == [(4,)]
    assert query(count, [str(scores / "part-0.parquet")]).fetchall() == [(2,)]
    assert query(count, [str(scores / "*.parquet")]).fetchall() == [(4,)]
    both = [str(scores / "part-0.parquet"), str(scores / "part-1.parquet")]
    assert query(count, both).fetchall() == [(4,)]


def test_pairs_that_would_count_twice(tmp_path, refused):
    """Files of the same shard do not, if a table was split; nor does a shard of the same name."""
    of_shard = {"here": Fingerprint(9, "aa", "v"), "there": Fingerprint(9, "bb", "v")}

    def table(name, shard, rows):
        columns = {"shard": ["00000"] * len(rows), "row": rows, "caption_number": [0] * len(rows)}
        metadata = as_metadata({"00000": of_shard[shard]})
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
        return str(path)

    whole, start, rest = (
        table(n, "here", r) for n, r in (("a", [0, 1, 2]), ("b", [0]), ("c", [1]))
    )
    count = "SELECT count(*) FROM scores"
    assert query(count, [start, rest]).fetchall() == [(2,)]
    assert query(count, [whole, table("d", "there", [0, 1, 2])]).fetchall() == [(6,)]
    for name, path in (("e", start), ("f", rest)):  # nothing says which pairs these are
        pq.write_table(pq.read_table(path, columns=["shard"]), tmp_path / f"{name}.parquet")
    unnamed = [str(tmp_path / "e.parquet"), str(tmp_path / "f.parquet")]
    assert query(count, unnamed).fetchall() == [(2,)]
    refused(query, count, [start, rest, whole])
    refused(query, count, [start, start])


def test_describe_and_with_are_queries(scores):
    assert query("DESCRIBE scores", [str(scores)]).fetchall()[0][:2] == ("uid", "VARCHAR")
    assert query("WITH t AS (SELECT 1 AS a) SELECT a FROM t", [str(scores)]).fetchall() == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{other}')",
        "SELECT * FROM '{other}'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "COPY scores TO '{scores}/part-0.parquet'",
        "COPY (SELECT 1) TO '{other}'",
        "ATTACH '{other}' AS db",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; DROP VIEW scores",
        "EXPLAIN ANALYZE COPY scores TO '{scores}/part-0.parquet'",
        "SELECT * FROM nothing",
        "SELEC 1",
        "",
    ],
)
def test_anything_else_is_refused_and_touches_nothing(scores, tmp_path, sql, refused):
    other = tmp_path / "other.csv"
    other.write_text("secret\n1\n")
    before = (scores / "part-0.parquet").read_bytes()
    refused(query, sql.format(other=other, scores=str(scores).replace("'", "''")), [str(scores)])
    assert other.read_text() == "secret\n1\n"
    assert (scores / "part-0.parquet").read_bytes() == before


def test_missing_unfinished_and_foreign_files(tmp_path, refused):
    refused(query, "SELECT 1", [str(tmp_path / "none.parquet")])
    (tmp_path / "s.parquet.work").mkdir()
    refused(query, "SELECT 1", [str(tmp_path / "s.parquet")])
    (tmp_path / "run" / ".ncclean").mkdir(parents=True)
    refused(query, "SELECT 1", [str(tmp_path / "run")])
    (tmp_path / "text.parquet").write_text("no parquet")
    refused(query, "SELECT 1", [str(tmp_path / "text.parquet")])


_ONE_OF_MANY = """
import os, sys
os.getpid = lambda: 7  # as in every container
from ncclean.storage.catalog import temporary_folder

folder = temporary_folder()
folder.mkdir()
print(folder, flush=True)
sys.stdin.readline()
print(folder.is_dir(), flush=True)
"""


def test_processes_of_one_number_keep_their_temporary_folders(tmp_path):
    """Containers that share a folder: the end of one removes nothing of the other."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    start = functools.partial(
        subprocess.Popen,
        [sys.executable, "-c", _ONE_OF_MANY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with start() as first, start() as second:
        for process in (first, second):
            process.stdout.readline()
        second.communicate("\n")
        answer, _ = first.communicate("\n")
    assert answer.strip() == "True"
    assert list(tmp_path.iterdir()) == []


# Score tables whose footers lie, or that are cut: rows or a sentence, and no memory.

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
