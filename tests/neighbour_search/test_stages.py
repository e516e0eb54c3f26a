"""Queries over all pairs and sets of rows, against the same at once in memory."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ncclean.base.progress import SILENT
from ncclean.errors import InputError
from ncclean.neighbour_search import stages as stages_module
from ncclean.neighbour_search.stages import DisjointSets, Stages
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder

BY_KEY = "SELECT key, row FROM numbered ORDER BY key, row"


def stages(folder):
    return Stages(ArrayFolder(str(folder)), InProcess(), SILENT)


@pytest.mark.parametrize("rows", [0, 1, 300, 600_000])
def test_a_query_is_written_in_the_order_of_its_rows(tmp_path, rows):
    keys = np.random.default_rng(0).integers(0, rows // 3 + 1, rows).astype(np.int32)
    key = pa.chunked_array([pa.array(some) for some in np.array_split(keys, 3)])
    sorted_rows = stages(tmp_path).select("sorted", BY_KEY, key=key)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(sorted_rows["row"], order)
    np.testing.assert_array_equal(sorted_rows["key"], keys[order])
    assert sorted_rows["row"].dtype == np.int32


@pytest.mark.parametrize("values", [1, 7, 1 << 18])
@pytest.mark.parametrize("most", [1, 9, 400])
def test_the_first_row_with_an_equal_value(tmp_path, monkeypatch, values, most):
    monkeypatch.setattr(stages_module, "VALUES", values)
    one, other = np.random.default_rng(most).integers(0, most, (2, 300))
    first, sizes = np.zeros((2, 300), np.int32)
    stages(tmp_path).first_rows("(one, other)", first, sizes, one=one, other=other)
    _, firsts, inverse, counts = np.unique(
        [one, other], axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    np.testing.assert_array_equal(first, firsts[inverse.ravel()])
    np.testing.assert_array_equal(sizes, counts[inverse.ravel()])


def test_a_query_is_not_run_again(tmp_path):
    one = stages(tmp_path).select("sorted", BY_KEY, key=np.array([3, 1, 2]))
    other = stages(tmp_path).select("sorted", BY_KEY, key=np.array([7]))
    np.testing.assert_array_equal(one["key"], other["key"])


def test_what_exceeds_the_memory_is_sorted_on_the_disk(tmp_path, monkeypatch):
    """The column and its sorted copy take 16 MB."""
    monkeypatch.setattr(stages_module, "SQL_MEMORY", "12MB")
    keys = np.random.default_rng(0).permutation(1_000_000)
    sorted_rows = stages(tmp_path).select("sorted", BY_KEY, key=keys)
    np.testing.assert_array_equal(sorted_rows["key"], np.arange(1_000_000))
    monkeypatch.setattr(stages_module, "SQL_MEMORY", "1MB")
    with pytest.raises(InputError, match="cannot sort key"):
        stages(tmp_path).select("again", BY_KEY, key=keys)
    assert not (tmp_path / "again.arrays").exists()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", [3, 1 << 18])
def test_disjoint_sets_are_the_connected_components(seed, values, monkeypatch):
    monkeypatch.setattr(stages_module, "VALUES", values)
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, 60, (2, 30))
    if seed == 0:  # a chain, from its end
        one, other = np.arange(59, 0, -1), np.arange(58, -1, -1)
    sets = DisjointSets(parent := np.zeros(60, np.int32))
    for some in np.array_split(np.arange(len(one)), 4):
        sets.join(one[some], other[some])
    sets.finish()
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(60, 60))
    label = connected_components(graph, directed=False)[1]
    np.testing.assert_array_equal(parent, np.unique(label, return_index=True)[1][label])
