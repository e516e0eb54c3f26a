"""Decisions and causes that anybody may have written: rows, or a sentence that names the file."""

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base.schema import CAUSES, DECISIONS
from ncclean.base.stores import location
from ncclean.explaining.cause_table import read_causes
from ncclean.selection.decided import Decisions
from ncclean.storage.catalog import connect
from ncclean.storage.decisions import journal_of, read_decisions, write_decisions
from ncclean.storage.entries import Entries

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
ROW = {"uid": "a", "decision": "drop", "time": NOW.isoformat()}


def table(**columns):
    usual = {
        "uid": ["a"], "caption_number": [0], "decision": ["drop"], "caption": [None],
        "reviewer": ["me"], "time": pa.array([NOW], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    return pa.table(usual | columns)


@pytest.mark.parametrize("number", [99_999, 10**30, -1, float("inf"), 1.5, [1]])
def test_lines_whose_caption_number_no_caption_has_are_refused(number, tmp_path, refused):
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps({**ROW, "caption_number": number}))
    refused(read_decisions, str(file))


@pytest.mark.parametrize(
    "columns",
    [
        {"time": pa.array([None], pa.timestamp("us", "UTC"))},
        {"uid": pa.array([None], pa.string())},
        {"caption_number": [-1]},
        {"caption_number": [99_999]},
        {"uid": [{"x": 1}]},
    ],
)
def test_rows_that_are_no_decisions_are_refused(columns, tmp_path, refused):
    pq.write_table(table(**columns), tmp_path / "d.parquet")
    refused(read_decisions, str(tmp_path / "d.parquet"))


@pytest.mark.parametrize(("schema", "read"), [(DECISIONS, read_decisions), (CAUSES, read_causes)])
def test_a_few_bytes_that_stand_for_millions_of_rows_are_not_read(schema, read, tmp_path, refused):
    """Repeated values take no bytes: a table of one megabyte would fill ten gigabytes."""
    count = 5_000_000
    nulls = pa.table([pa.nulls(count, field.type) for field in schema], schema)
    pq.write_table(nulls, tmp_path / "t.parquet")
    refused(read, str(tmp_path / "t.parquet"))


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
    entries = Entries(journal_of(out).with_suffix(".entries"))
    for one in (line, naive):
        entries.add(one)
    decisions = Decisions.read([str(out)])
    assert {uid for uid, _ in decisions.by_pair} == {"a", "c"}
    with connect([str(out)]) as connection:
        decisions.create_table(connection)


LAST, BEYOND = "9999-12-31T23:30:00+00:00", "9999-12-31T23:30:00-23:00"  # the year 10000 in UTC


def test_times_beyond_the_calendar_are_no_decisions(tmp_path, refused):
    out = tmp_path / "d.parquet"
    journal = tmp_path / ".ncclean" / "d.parquet.jsonl"
    journal.parent.mkdir()
    lines = [
        {"batch": number, "decision": "drop", "reviewer": "x", "time": time, "pairs": [[time, 0]]}
        for number, time in enumerate((LAST, BEYOND, "0001-01-01T00:00:00+14:00"))
    ]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = read_decisions(str(out))
    assert [decision.uid for decision in kept] == [LAST]
    write_decisions(
        location(str(out)), pa.Table.from_pylist([d._asdict() for d in kept], DECISIONS)
    )
    journal.unlink()
    assert read_decisions(str(out)) == kept
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"uid": "a", "decision": "drop", "time": BEYOND}))
    refused(read_decisions, str(lines))


@pytest.mark.parametrize("time", [2**62, -(2**62)])
def test_a_time_that_python_lacks_is_refused(time, tmp_path, refused):
    path = tmp_path / "d.parquet"
    times = pa.array([time], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(table(time=times), path)
    refused(read_decisions, str(path))


def test_decisions_in_other_zones_are_in_the_order_of_time(tmp_path):
    early, late = "2026-01-01T12:00:00+09:00", "2026-01-01T11:00:00+00:00"
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        "".join(
            json.dumps({"uid": time, "decision": "drop", "time": time}) + "\n"
            for time in (late, early)
        )
    )
    times = {decision.uid: decision.time for decision in read_decisions(str(lines))}
    assert times[early] < times[late]
    assert times[early] == datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.timezone.utc)


def test_of_one_file_the_latest_decision_counts_and_only_corrections_have_captions(tmp_path):
    """As people sort sheets, the newest first, and with the caption that a table shows beside."""
    file = tmp_path / "d.csv"
    file.write_text(
        "uid,decision,time,caption\n"
        "a,drop,2026-01-02,\na,keep,2026-01-01,A dog.\nb,keep,2026-01-01,\n"
        "c,correct,2026-01-01,A cat.\n"
    )
    found = {one.uid: (one.decision, one.caption) for one in read_decisions(str(file))}
    assert found == {"a": ("drop", None), "b": ("keep", None), "c": ("correct", "A cat.")}
