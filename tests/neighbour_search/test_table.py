"""The table of neighbours and its summary, of a search whose every result is another number."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.neighbour_search.better_matches import BetterMatches
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.result import CorpusNeighbours, ReferenceMatches, Side
from ncclean.neighbour_search.table import neighbour_metadata, summarize, write_neighbours

# Pairs 0 and 2 share an image, 1, 2 and 3 a caption; the last two are captions of one image.
PAIRS = pa.table({
    "uid": list("abcdee"), "shard": ["0"] * 6, "key": list("abcdee"),
    "caption_number": pa.array([0, 0, 0, 0, 0, 1], pa.int16()),
})  # fmt: skip
IMAGE = Side(
    distinct=4, threshold=0.8, group=np.array([0, 1, 0, 3, 4, 4]),
    sizes=np.array([2, 1, 0, 1, 2, 0]), members=np.array([2, 1, 0, 1, 1, 0]),
    similarity=np.array([1.0, 1.0, 0.85, 1.0, 1.0, 1.0]),
    index="image lists", recall=0.91, across_recall=0.92, duplicate_recall=0.93,
)  # fmt: skip
TEXT = Side(
    distinct=5, threshold=0.9, group=np.array([0, 1, 1, 1, 4, 5]),
    sizes=np.array([1, 3, 0, 0, 1, 1]), members=np.array([1, 3, 0, 0, 1, 1]),
    similarity=np.array([1.0, 1.0, 0.95, 0.97, 1.0, 1.0]),
    index="text lists", recall=0.94, across_recall=0.95, duplicate_recall=0.96,
)  # fmt: skip
RESULT = CorpusNeighbours(
    image=IMAGE, text=TEXT, whiten=True, is_exact=False, pair_group=np.arange(6),
    pair_sizes=np.ones(6, np.int32),
    better=BetterMatches(
        np.array([0, 1, 2, 0, 4, 0], np.int32), np.array([0, 0, 7, 8, 9, 0], np.int32)
    ),
    lemon=np.array([0.5, math.nan, 0.7, 0.8, 0.9, 1.0], np.float32),
    cluster=np.array([3, 3, 5, 5, 8, 8], np.int32), left_out=2, repeated_uids=1,
    reference=ReferenceMatches(
        np.linspace(0.1, 0.6, 6), np.array([0, 1, 0, 1, 0, 1]), np.arange(6) > 3, 0.45
    ),
)  # fmt: skip


@pytest.mark.parametrize("rows", [2, 100])
def test_each_column_is_that_of_its_modality(tmp_path, monkeypatch, rows):
    """A row group at a time, and all at once."""
    monkeypatch.setattr("ncclean.neighbour_search.table.ROW_GROUP_ROWS", rows)
    reference = pa.array(["x", "y"])
    write_neighbours(UPath(tmp_path / "n.parquet"), PAIRS, RESULT, {"k": "30"}, reference)
    table = pq.read_table(tmp_path / "n.parquet")
    found = {name: table[name].to_pylist() for name in table.column_names}
    assert found["image_group"] == ["a", None, "a", None, None, None]
    assert found["text_group"] == [None, "b", "b", "b", None, None]
    assert found["pair_group"] == [None] * 6
    none = None
    assert found["image_group_similarity"] == pytest.approx([1.0, none, 0.85, none, none, none])
    assert found["text_group_similarity"] == pytest.approx([none, 1.0, 0.95, 0.97, none, none])
    assert found["better_captions"] == [0, 1, 2, 0, 4, 0]
    assert found["better_images"] == [0, 0, 7, 8, 9, 0]
    assert found["mutual_nearest"] == [True, False, False, False, False, True]
    assert found["lemon_score"] == pytest.approx([0.5, None, 0.7, 0.8, 0.9, 1.0])
    assert found["cluster"] == [3, 3, 5, 5, 8, 8]
    assert found["nearest_reference"] == ["x", "y", "x", "y", "x", "y"]
    assert found["contaminated"] == [False] * 4 + [True] * 2


def test_without_a_reference_its_columns_are_null(tmp_path):
    alone = dataclasses.replace(RESULT, reference=None)
    write_neighbours(UPath(tmp_path / "n.parquet"), PAIRS, alone, {})
    table = pq.read_table(tmp_path / "n.parquet")
    for name in ("reference_similarity", "nearest_reference", "contaminated"):
        assert table[name].null_count == 6


def test_the_summary_counts_and_names_the_directions():
    """A caption is found from an image by the lists of captions, and vice versa."""
    summary = summarize(RESULT, "n.parquet", 1.5, reference_images=2)
    assert (summary.pairs, summary.left_out, summary.repeated_uids) == (6, 2, 1)
    assert (summary.image_groups, summary.image_duplicates) == (2, 2)
    assert (summary.text_groups, summary.text_duplicates) == (1, 2)
    assert (summary.pair_groups, summary.pair_duplicates) == (0, 0)
    assert (summary.image_recall, summary.text_recall) == (0.91, 0.94)
    assert (summary.image_to_text_recall, summary.text_to_image_recall) == (0.95, 0.92)
    assert (summary.image_duplicate_recall, summary.text_duplicate_recall) == (0.93, 0.96)
    assert (summary.index_image, summary.index_text) == ("image lists", "text lists")
    assert (summary.distinct_images, summary.distinct_texts) == (4, 5)
    assert (summary.mutual_nearest, summary.clusters, summary.contaminated) == (2, 3, 2)
    metadata = neighbour_metadata(NeighbourOptions(), summary)
    assert metadata["image_to_text_recall"] == "0.95"
    assert {"out", "seconds"}.isdisjoint(metadata)
