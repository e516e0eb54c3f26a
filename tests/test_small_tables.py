"""Small tables that people hand on: the same rows in each form, and bounds that hold for all."""

import json
import resource
import subprocess
import sys
import textwrap
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.auditing.answers import read_answers
from ncclean.base import small_tables
from ncclean.base.small_tables import read_parquet, read_rows
from ncclean.storage.decisions import read_decisions
from tests import object_store
from tests.footers import UNPACKED, rewrite_footer, set_field, set_rows

ROWS = [
    {"uid": "a", "answer": "match", "time": "2026-01-01T00:00:00+00:00", "decision": "keep"},
    {"uid": "b", "answer": "mismatch", "time": "2026-01-02T00:00:00+00:00", "decision": "drop"},
]
ENDINGS = ("csv", "tsv", "json", "jsonl", "parquet")


def written(folder, ending, rows=ROWS):
    path = folder / f"t.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "json":
        path.write_text(json.dumps(rows))
    elif ending == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    else:
        between = "," if ending == "csv" else "\t"
        lines = [rows[0].keys(), *(row.values() for row in rows)]
        path.write_text("".join(between.join(line) + "\n" for line in lines))
    return str(path)


def bomb(path, count=300, size=100_000_000):
    """Rows that share one text, which takes a few kilobytes."""
    words = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array(["x" * size]))
    usual = {name: [value] * count for name, value in ROWS[0].items()}
    columns = {**usual, "uid": words}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    return str(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_form_has_the_same_decisions_and_answers(tmp_path, ending):
    path = written(tmp_path, ending)
    assert [(one.uid, one.decision, one.time.day) for one in read_decisions(path)] == [
        ("a", "keep", 1),
        ("b", "drop", 2),
    ]
    assert read_answers(path).by_pair == {("a", None): "match", ("b", None): "mismatch"}


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_one_line_is_one_row(tmp_path, ending):
    path = written(tmp_path, ending, ROWS[:1])
    assert [one.uid for one in read_decisions(path)] == ["a"]
    assert read_answers(path).by_pair == {("a", None): "match"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_missing_column_is_named(tmp_path, ending, refused):
    path = written(tmp_path, ending)
    refused(read_rows, path, ["uid", "wish", "star"], what="wishes")


@pytest.mark.parametrize("text", ["uid,answer\na,\0match\n", f"uid,answer\na,{'x' * 200_000}\n"])
def test_csv_that_python_does_not_read(tmp_path, text, refused):
    (tmp_path / "a.csv").write_text(text)
    refused(read_answers, str(tmp_path / "a.csv"))


def test_json_that_holds_no_rows(tmp_path, refused):
    (tmp_path / "a.json").write_text("3")
    for read in (read_answers, read_decisions):
        refused(read, str(tmp_path / "a.json"))


def test_a_table_in_a_store(tmp_path, refused):
    path = written(tmp_path, "parquet")
    with object_store.s3():
        with open(path, "rb") as file:
            object_store.filesystem().pipe_file("corpus/t.parquet", file.read())
        assert [one.uid for one in read_decisions("s3://corpus/t.parquet")] == ["a", "b"]
        refused(read_decisions, "s3://corpus/none.parquet")


@pytest.mark.parametrize("lie", [None, set_field(UNPACKED, 1000)])
def test_a_text_of_100_mb_for_all_rows(tmp_path, lie, refused):
    """In 20 KB, also where the footer says that it unpacks to nothing."""
    path = bomb(tmp_path / "t.parquet")
    if lie is not None:
        rewrite_footer(tmp_path / "t.parquet", lie)
    used, begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, time.monotonic()
    refused(read_decisions, path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - used < 1 << 20
    assert time.monotonic() - begin < 60


def test_values_and_rows_are_counted(tmp_path, monkeypatch, refused):
    refused(read_decisions, bomb(tmp_path / "t.parquet", size=1_000_000))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"uid": pa.nulls(2_000_001, pa.string())}), path)
    refused(read_parquet, str(path), ["uid"], what="uids")
    rewrite_footer(path, set_rows(2, 2_000_001))
    refused(read_parquet, str(path), ["uid"], what="uids")
    monkeypatch.setattr(small_tables, "_LARGEST_FILE", 100)
    refused(read_parquet, str(path), ["uid"], what="uids")


@pytest.mark.parametrize("body", ["import os; os.abort()", "while True: pass"])
def test_what_ends_or_holds_the_reader_is_a_sentence(tmp_path, monkeypatch, body, refused):
    """A library that aborts, and one that never returns."""
    monkeypatch.setattr(small_tables, "isolated", lambda module: [sys.executable, "-c", body])
    monkeypatch.setattr(small_tables, "_SECONDS", 1)
    refused(read_decisions, written(tmp_path, "parquet"))


def test_nothing_beside_the_data_is_imported(tmp_path):
    path = written(tmp_path, "parquet")
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('imported')")
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.remove('')
        from ncclean.storage.decisions import read_decisions
        print(len(read_decisions({path!r})))
        """
    )
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert answer.stdout.strip() == "2", answer.stderr
