"""Which samples go where, and how often."""

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import ShardRef
from ncclean.exporting.plan import (
    ExportTask,
    copies_of,
    count_by_shard,
    digits_of,
    open_selection,
    plan_export,
    repeat_scale,
)

SHARDS = [ShardRef(name, f"/in/{name}.tar", 1, "") for name in ("b", "a", "c")]


def described(tasks):
    return [[(s.name, s.first, s.count) for s in task.segments] for task in tasks]


def test_shards_are_cut_in_the_order_of_the_input():
    tasks = plan_export({"a": 5, "b": 3, "c": 4}, SHARDS, 4)
    assert [task.number for task in tasks] == [0, 1, 2]
    assert described(tasks) == [[("b", 0, 3), ("a", 0, 1)], [("a", 1, 4)], [("c", 0, 4)]]


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    samples_per_shard=st.integers(1, 60),
)
def test_every_sample_goes_to_one_place_and_only_the_last_shard_is_not_full(
    counts, samples_per_shard
):
    shards = [ShardRef(f"{n:02d}", f"/in/{n:02d}.tar", 1, "") for n in range(len(counts))]
    tasks = plan_export({s.name: n for s, n in zip(shards, counts, strict=True)}, shards,
                        samples_per_shard)  # fmt: skip
    assert all(task.samples == samples_per_shard for task in tasks[:-1])
    assert 0 < tasks[-1].samples <= samples_per_shard
    places = [
        (segment.name, place)
        for task in tasks
        for segment in task.segments
        for place in range(segment.first, segment.first + segment.count)
    ]
    assert places == [(s.name, n) for s, c in zip(shards, counts, strict=True) for n in range(c)]


def test_nothing_selected_is_no_shard():
    assert plan_export({}, SHARDS, 10) == []


def test_a_shard_that_is_not_there_is_named(refused):
    refused(plan_export, {"a": 1, "z": 1}, SHARDS, 10)


def test_copies_by_hand():
    uids = np.array([f"{n:032x}" for n in range(3)])
    assert copies_of(uids, np.array([0.0, 1.0, 4.0]), 1.0).tolist() == [0, 1, 4]
    assert copies_of(uids, np.array([0.0, 1.0, 4.0]), 0.5)[[0, 2]].tolist() == [0, 2]


@given(st.floats(0, 5), st.floats(0.1, 3))
def test_copies_are_the_weight_rounded_and_right_on_average(weight, scale):
    uids = np.array([f"{n:032x}" for n in range(2000)])
    copies = copies_of(uids, np.full(2000, weight), scale)
    wanted = weight * scale
    assert set(copies.tolist()) <= {int(wanted), int(wanted) + 1}
    assert abs(copies.mean() - wanted) < 0.05  # 4.5 standard errors of a fair coin
    assert np.array_equal(copies, copies_of(uids, np.full(2000, weight), scale))


def selection(path, weights, **columns):
    n = len(weights)
    fields = {
        "uid": [f"{k:032x}" for k in range(n)], "shard": ["a"] * (n - 1) + ["b"],
        "key": [str(k) for k in range(n)], "weight": pa.array(weights, pa.float32()),
        "split": ["retain"] * n,
    }  # fmt: skip
    pq.write_table(pa.table({**fields, **columns}), path)
    return str(path)


def test_the_mean_weight_is_written_once(tmp_path):
    connection = open_selection(selection(tmp_path / "s.parquet", [1.0, 2.0, 3.0, 2.0]))
    assert repeat_scale(connection, "s.parquet") == pytest.approx(0.5)
    assert count_by_shard(connection, None) == {"a": 3, "b": 1}
    assert count_by_shard(connection, 0.5)["b"] == 1
    assert count_by_shard(connection, 2.0) == {"a": 12, "b": 4}


def test_a_shard_of_many_rows_is_counted_whole(tmp_path):
    """Copies are counted some 100,000 rows at a time."""
    connection = open_selection(selection(tmp_path / "s.parquet", [2.0] * 230_000))
    assert count_by_shard(connection, 1.0) == {"a": 459_998, "b": 2}


def test_weights_of_nothing_and_tables_that_are_no_selection_are_refused(tmp_path, refused):
    connection = open_selection(selection(tmp_path / "s.parquet", [0.0, 0.0]))
    refused(repeat_scale, connection, "s.parquet")
    pq.write_table(pa.table({"uid": ["1"], "shard": ["a"], "key": ["k"]}), tmp_path / "t.parquet")
    refused(open_selection, str(tmp_path / "t.parquet"))


def test_an_image_has_the_weight_of_its_best_caption(tmp_path):
    columns = {
        "key": ["x", "x", "y"],
        "caption_number": pa.array([0, 1, 0], pa.int16()),
        "caption_rank": pa.array([1, 0, 0], pa.int16()),
        "shard": ["a"] * 3,
        "uid": ["x", "x", "y"],
    }
    connection = open_selection(selection(tmp_path / "s.parquet", [3.0, 1.0, 2.0], **columns))
    rows = connection.execute("SELECT key, uid, weight, captions FROM scores ORDER BY key")
    assert rows.fetchall() == [("x", "x", 1.0, [1, 0]), ("y", "y", 2.0, [0])]


@pytest.mark.parametrize(
    ("captions", "fits"),
    [
        (pa.nulls(1), True),
        (pa.array(["a dog"]), True),
        (pa.array(["a dog"]).dictionary_encode(), True),
        (pa.array([3]), False),
        (pa.array([["a dog"]]), False),
    ],
)
def test_a_column_caption_must_be_text(tmp_path, captions, fits, refused):
    """For whoever exports the selection, and for whoever trains on it."""
    path = str(tmp_path / "s.parquet")
    table = pa.table({"uid": ["1"], "shard": ["a"], "key": ["k"], "weight": [1.0], "split": ["x"]})
    pq.write_table(table.append_column("caption", captions), path)
    for read in (open_selection, SelectionReader):
        if fits:
            read(path)
            continue
        refused(read, path)
    if fits:
        (sample,) = SelectionReader(path).samples("a")["k"]
        assert sample.text == captions[0].as_py()


@pytest.mark.parametrize("weight", ["-1", "'nan'::FLOAT", "'inf'::FLOAT"])
def test_weights_that_are_none_are_refused(weight, refused):
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW scores AS SELECT unnest([2.0, {weight}]) AS weight")
    refused(repeat_scale, connection, "s.parquet")


@pytest.mark.parametrize(("shards", "digits"), [(0, 5), (100_000, 5), (100_001, 6)])
def test_names_of_shards_have_the_digits_of_the_last(shards, digits):
    assert digits_of([ExportTask(0, ())] * shards) == digits
