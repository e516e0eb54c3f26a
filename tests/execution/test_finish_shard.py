"""From an encoded shard to its table: values stand at the rows that have scores."""

import numpy as np
import pyarrow as pa

from ncclean.base import schema
from ncclean.execution.finish_shard import scattered, score_table
from ncclean.scoring.columns import BlockScores


def test_values_stand_at_the_rows_that_have_scores():
    ok = np.array([True, False, True])
    beauty = scattered(pa.array([0.5, 0.25], pa.float32()), ok, pa.float32())
    assert beauty.to_pylist() == [0.5, None, 0.25]


def test_a_column_without_values_is_null_in_every_row():
    ok = np.array([True, False, True])
    facts = {"uid": pa.array(["a", "b", "c"])}
    scores = BlockScores(2, {"similarity": np.array([0.1, 0.2], np.float32)})
    table = score_table(facts, ok, scores, {"age": pa.nulls(3, pa.int32())})
    assert table.schema.names == [*schema.SCORES.names, "age"]
    assert table["similarity"].to_pylist() == [np.float32(0.1), None, np.float32(0.2)]
    assert table["uid"].to_pylist() == ["a", "b", "c"]
    for name in ("i2t_rank", "noise_probability", "calibration_group", "age"):
        assert table[name].null_count == 3
