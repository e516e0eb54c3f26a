"""The file of the pairs: what the table knows, and what it does not."""

import numpy as np
import pytest
from ncclean_pipelines.explain import Explain

from ncclean.base.progress import SILENT
from ncclean.errors import InputError
from ncclean.explaining.prepared_pairs import prepare_pairs
from ncclean.explaining.working_folder import Work
from tests.explaining.tables import columns, judged, write


def prepare(folder, values, by=()):
    scores = write(folder / "scores.parquet", values)
    return prepare_pairs(Work(folder, None), [scores], (), by, None, None, SILENT)


def test_pairs_are_counted_and_read_once(tmp_path):
    values = judged(columns(1000))
    values["status"][:100] = ["image_corrupt"] * 100
    pairs = prepare(tmp_path, values, by=["width % 2"])
    assert (pairs.rows, pairs.scored) == (1000, 900)
    assert pairs.by == (("width % 2", "width % 2", "_by_0"),)
    with pairs.opened() as connection:
        rows = connection.execute("SELECT count(*), min(_by_0), max(_by_0) FROM pairs").fetchall()
    assert rows == [(900, 0, 1)]
    again = prepare(tmp_path, judged(columns(10)), by=["width % 2"])
    assert (again.rows, again.scored) == (1000, 900)


def test_probabilities_that_nobody_knows_are_no_outcome(tmp_path):
    """An estimator that cannot tell near misses has none: that is said, and not tested."""
    values = judged(columns(1000))
    values["near_miss_probability"] = np.full(1000, None, object)
    pairs = prepare(tmp_path, values)
    assert pairs.unknown == ["near miss"]
    assert [outcome.name for outcome in pairs.values.outcomes] == ["mismatch"]
    done = Explain(
        scores=[str(tmp_path / "scores.parquet")], out=str(tmp_path / "causes.parquet")
    ).run()
    assert done.summary.unknown == ("near miss",)
    assert any("by near miss is not known" in str(line) for line in done.shown)


def test_a_table_that_knows_no_probability_is_refused(tmp_path):
    values = judged(columns(100))
    values["noise_probability"] = np.full(100, None, object)
    with pytest.raises(InputError, match="none of its noise probabilities is known"):
        prepare(tmp_path, values)
