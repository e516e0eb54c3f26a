"""Decisions and causes that anybody may have written: rows, or a sentence that names the file."""

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.errors import InputError
from ncclean.explaining.cause_table import read_causes
from ncclean.schema import CAUSES, DECISIONS
from ncclean.selection.decided import Decisions
from ncclean.storage.catalog import connect
from ncclean.storage.decisions import journal_of, read_decisions
from ncclean.stores import location

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
ROW = {"uid": "a", "decision": "drop", "time": NOW.isoformat()}


def table(**columns):
    usual = {
        "uid": ["a"], "caption_number": [0], "decision": ["drop"], "caption": [None],
        "reviewer": ["me"], "time": pa.array([NOW], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    return pa.table(usual | columns)


@pytest.mark.parametrize("number", [99_999, 10**30, -1, float("inf"), 1.5, [1]])
def test_lines_whose_caption_number_no_caption_has_are_refused(number, tmp_path):
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps({**ROW, "caption_number": number}))
    with pytest.raises(InputError, match=r"d\.jsonl, line 1"):
        read_decisions(str(file))


@pytest.mark.parametrize(
    "columns",
    [
        {"time": pa.array([2**62], pa.timestamp("us", "UTC"))},
        {"time": pa.array([None], pa.timestamp("us", "UTC"))},
        {"uid": pa.array([None], pa.string())},
        {"caption_number": [-1]},
        {"caption_number": [99_999]},
        {"uid": [{"x": 1}]},
    ],
)
def test_rows_that_are_no_decisions_are_refused(columns, tmp_path):
    pq.write_table(table(**columns), tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"d\.parquet"):
        read_decisions(str(tmp_path / "d.parquet"))


@pytest.mark.parametrize(("schema", "read"), [(DECISIONS, read_decisions), (CAUSES, read_causes)])
def test_a_few_bytes_that_stand_for_millions_of_rows_are_not_read(schema, read, tmp_path):
    """Repeated values take no bytes: a table of one megabyte would fill ten gigabytes."""
    count = 5_000_000
    nulls = pa.table([pa.nulls(count, field.type) for field in schema], schema)
    pq.write_table(nulls, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet .* announces 5,000,000 rows"):
        read(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": [["a", 99_999]]},
        {"pairs": [["a", 0]], "decision": "correct"},
        {"pairs": [["a", 0]], "decision": "correct", "captions": [["x"]]},
        {"pairs": [[None, 0]]},
        {"pairs": [["\ud800", 0]]},
        {"pairs": [["b", 0]], "reviewer": "\ud800"},
        {"time": "no time"},
    ],
)
def test_lines_of_a_journal_that_are_no_decisions_are_passed_over(change, tmp_path):
    out = location(str(tmp_path / "d.parquet"))
    pq.write_table(table(), str(out))
    usual = {"batch": 1, "decision": "drop", "reviewer": "me", "pairs": [["b", 0]]}
    line = {**usual, "time": NOW.isoformat(), **change}
    naive = {**usual, "pairs": [["c", 0]], "time": "2026-01-02T00:00:00"}  # without a zone
    journal_of(out).parent.mkdir()
    journal_of(out).write_text(f"{json.dumps(line)}\n{json.dumps(naive)}\n")
    decisions = Decisions.read([str(out)])
    assert {uid for uid, _ in decisions.by_pair} == {"a", "c"}
    with connect([str(out)]) as connection:
        decisions.create_table(connection)
