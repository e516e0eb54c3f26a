"""Decisions of `ncclean explain` over a selection: what changes, comes back and goes."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.errors import InputError
from ncclean.explaining.fixes import FIXES
from ncclean.exporting.plan import open_selection, plan_selection
from ncclean.exporting.uid_file import export_uids


def write_fixes(path, rows):
    """`rows` are key, number of the caption, and the right caption or None."""
    table = [
        {"uid": f"u{key}", "caption_number": number, "caption": text, "shard": "a", "key": key,
         "decision": "correct" if text else "drop", "reviewer": "r", "time": None}
        for key, number, text in rows
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(table, FIXES), path)
    return str(path)


def write_selection(path, keys, **further):
    columns = {
        "uid": [f"u{key}" for key in keys], "shard": ["a"] * len(keys), "key": keys,
        "weight": pa.array([2.0] * len(keys), pa.float32()), "split": pa.nulls(len(keys)),
    }  # fmt: skip
    pq.write_table(pa.table(columns | further), path)
    return str(path)


def rows(selection, fixes):
    connection = open_selection(selection, fixes)
    return connection.execute(
        "SELECT key, uid, weight, captions, mended FROM scores ORDER BY key"
    ).fetchall()


def test_captions_change_come_back_and_go(tmp_path):
    selection = write_selection(tmp_path / "s.parquet", ["x", "y", "z", "z"])
    fixes = write_fixes(tmp_path / "f.parquet", [("w", 0, "W"), ("y", 0, None), ("z", 0, "Z")])
    assert rows(selection, fixes) == [
        ("w", "uw", 1.0, None, ["W"]),
        ("x", "ux", 2.0, None, [None]),
        ("z", "uz", 2.0, None, ["Z"]),
        ("z", "uz", 2.0, None, ["Z"]),  # was drawn twice, and still is
    ]


def test_of_several_captions_those_that_come_back_are_the_last(tmp_path):
    selection = write_selection(
        tmp_path / "s.parquet", ["x", "x", "y"],
        caption_number=pa.array([2, 1, 0], pa.int16()),
        caption_rank=pa.array([0, 1, 0], pa.int16()),
        caption=pa.array([None, "kept", None]),
    )  # fmt: skip
    fixes = write_fixes(
        tmp_path / "f.parquet",
        [("x", 0, "first"), ("x", 2, "third"), ("y", 0, None), ("y", 1, "Y")],
    )
    assert rows(selection, fixes) == [
        ("x", "ux", 2.0, [2, 1, 0], ["third", "kept", "first"]),
        ("y", "uy", 1.0, [1], ["Y"]),
    ]


def test_other_captions_are_not_overruled_in_silence(tmp_path, refused):
    fixes = write_fixes(tmp_path / "f.parquet", [("x", 0, "right")])
    for caption, is_fine in (("right", True), ("another", False), (None, True)):
        selection = write_selection(
            tmp_path / "s.parquet", ["x"], caption=pa.array([caption], pa.string())
        )
        if is_fine:
            with pytest.raises(InputError, match="shard"):  # there is none to plan for
                plan_selection(selection, [], 10, repeat=False, fixes=fixes)
        else:
            refused(plan_selection, selection, [], 10, repeat=False, fixes=fixes)


def test_fixes_of_another_corpus_or_two_of_a_pair_are_refused(tmp_path, refused):
    """Every corpus of img2dataset has a shard 00000 with a sample 000000000."""
    selection = write_selection(tmp_path / "s.parquet", ["x", "y"], uid=["other", "other too"])
    fixes = write_fixes(tmp_path / "f.parquet", [("x", 0, "X"), ("w", 0, "W")])
    refused(plan_selection, selection, [], 10, repeat=False, fixes=fixes)
    refused(export_uids, selection, UPath(tmp_path / "uids.npy"), fixes)
    selection = write_selection(tmp_path / "s.parquet", ["x", "y"])
    fixes = write_fixes(tmp_path / "f.parquet", [("x", 0, "X"), ("x", 0, "another")])
    refused(plan_selection, selection, [], 10, repeat=False, fixes=fixes)
