"""Weights of training images out of a score table."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.errors import InputError
from ncclean.evaluation.sample_weights import SampleWeights


def table(tmp_path, rows, names=("shard", "key", "status", "osa_weight")):
    path = tmp_path / "s.parquet"
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path
    )
    return str(path)


ROWS = [
    ("0", "a", "ok", 0.1),
    ("0", "b", "ok", 0.3),
    ("1", "a", "ok", 0.0),
    ("1", "c", "image_corrupt", 9.0),
    ("1", "d", "ok", None),
]


def test_by_shard_and_key(tmp_path):
    keys = ["1/a", "0/b", "0/a", "1/c", "1/d", "2/z"]
    found = SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(keys, list("abacdz"))
    mean = 0.4 / 3
    expected = [0, 0.3 / mean, 0.1 / mean, math.nan, math.nan, math.nan]
    np.testing.assert_allclose(found.numpy(), expected)


def test_by_key_where_the_shards_had_other_names(tmp_path):
    path = table(tmp_path, ROWS[1:])
    found = SampleWeights((path,), "osa_weight + 1").of(["x/b", "x/a"], ["b", "a"])
    np.testing.assert_allclose(found.numpy(), [1.3 / 1.15, 1 / 1.15])
    with pytest.raises(InputError, match="several rows of the image a"):
        SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(["x/a"], ["a"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("osa_weigth", "no column.*osa_weight"),
        ("-osa_weight", "numbers from 0 on, not all of them 0; these lie from -0.3 to -0"),
        ("0 * osa_weight", "not all of them 0"),
        ("1e308 * 1e10 * (1 + osa_weight)", "--weights"),
        ("CAST(NULL AS DOUBLE)", "no training image has a value"),
    ],
)
def test_wrong_weights(tmp_path, weights, message):
    with pytest.raises(InputError, match=message):
        SampleWeights((table(tmp_path, ROWS),), weights).of(["0/a", "0/b", "1/a"], list("aba"))


def test_wrong_tables(tmp_path):
    with pytest.raises(InputError, match="no row of the training images, such as q"):
        SampleWeights((table(tmp_path, ROWS),), "osa_weight").of(["q/q"], ["q"])
    path = table(tmp_path, [(0.5,)], ("osa_weight",))
    with pytest.raises(InputError, match="has no column shard"):
        SampleWeights((path,), "osa_weight").of(["0/a"], ["a"])
