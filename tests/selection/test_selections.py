"""Small selections of `selections.yaml`: every row, and what is counted."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from upath import UPath

from ncclean.base.schema import DECISIONS
from ncclean.errors import NccleanError
from ncclean.selection.policy import Policy
from ncclean.selection.select import SelectionSummary, select
from ncclean.storage.decisions import Decision, write_decisions

CASES = yaml.safe_load(Path(__file__).with_name("selections.yaml").read_text("utf-8"))
TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
TYPES = {
    "row": pa.int32(), "caption_number": pa.int16(), "similarity": pa.float32(),
    "noise_probability": pa.float32(), "osa_weight": pa.float32(), "text": pa.string(),
    "part_starts": pa.list_(pa.int32()), "part_noise_probabilities": pa.list_(pa.float32()),
}  # fmt: skip
SUMMARY = (
    "rows", "kept", "dropped", "dropped_by_reason", "expected_mismatched_kept",
    "expected_mismatched_dropped", "weight_sum", "forget", "captions_mended", "parts_dropped",
    "parts", "decided", "decided_elsewhere", "decided_alike",
)  # fmt: skip


def write_table(columns, path):
    pq.write_table(
        pa.table({name: pa.array(one, TYPES.get(name)) for name, one in columns.items()}), path
    )
    return str(path)


def table(columns):
    """The columns, and those that every table of scores has."""
    count = len(next(iter(columns.values())))
    names = [f"u{n}" for n in range(count)]
    base = {"uid": names, "shard": ["s"] * count, "key": names, "row": list(range(count))}
    return {**base, "status": ["ok"] * count, **columns}


def write_decided(rows, path):
    decisions = [Decision(*row, "anna", TIME)._asdict() for row in rows]
    write_decisions(UPath(path), pa.Table.from_pylist(decisions, DECISIONS))
    return str(path)


def rounded(value):
    return round(value, 6) if isinstance(value, float) else value


def lines_of(summary: SelectionSummary, rows):
    """What the summary counts, then a line for each row."""
    counts = {name: rounded(getattr(summary, name)) for name in SUMMARY}
    yield ", ".join(f"{name} {value}" for name, value in counts.items() if value is not None)
    for row in rows:
        yield " ".join(f"{name}={rounded(value)!r}" for name, value in row.items())


@pytest.mark.parametrize("name", CASES)
def test_what_is_selected(name, tmp_path, snapshot):
    case, out = CASES[name], UPath(tmp_path / "selection.parquet")
    scores = write_table(table(case["columns"]), tmp_path / "scores.parquet")
    beside = {}
    if "neighbours" in case:
        beside["dedup"] = write_table(case["neighbours"], tmp_path / "neighbours.parquet")
    if "decisions" in case:
        beside["decisions"] = [write_decided(case["decisions"], tmp_path / "decisions.parquet")]
    for policy in case["policies"]:
        try:
            summary = select([scores], out, Policy(**policy), **beside)
        except NccleanError as error:
            snapshot.says(f"refused: {error}")
            continue
        snapshot.says("\n".join(lines_of(summary, pq.read_table(out).to_pylist())))
