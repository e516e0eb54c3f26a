"""The table of neighbours and its summary, of a search whose every result is another number."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.neighbour_search.corpus import Corpus
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import Neighbours
from ncclean.neighbour_search.table import neighbour_metadata, summarize, write_neighbours
from tests.neighbour_search.simulated import distinct_of

# Pairs 0 and 2 share an image, 1, 2 and 3 a caption; the last two are captions of one image. There
# are two blocks.
PAIRS = pa.table({
    "uid": list("abcdee"), "shard": ["0"] * 6, "key": list("abcdee"),
    "caption_number": pa.array([0, 0, 0, 0, 0, 1], pa.int16()),
})  # fmt: skip
RESULT = Neighbours(
    corpus=Corpus(
        pairs=pa.concat_tables([PAIRS.slice(0, 2), PAIRS.slice(2)]),
        own=np.full(6, 0.5),
        distinct={"image": distinct_of(np.array([0, 1, 2, 3, 4, 4])),
                  "text": distinct_of(np.array([0, 1, 1, 2, 3, 4]))},
        dim=4, starts=[0, 2, 6], left_out=2,
    ),
    groups={
        "image": np.array([0, 1, 0, 3, 4, 4]), "image_size": np.array([2, 1, 2, 1, 2, 2]),
        "images": np.array([2, 1, 2, 1, 1, 1]), "same_image": np.array([0, 1, 2, 3, 4, 4]),
        "text": np.array([0, 1, 1, 1, 4, 5]), "text_size": np.array([1, 3, 3, 3, 1, 1]),
        "pair": np.arange(6), "pair_size": np.ones(6, np.int32),
    },
    similarity={"image": np.array([1.0, 1.0, 0.85, 1.0, 1.0]),
                "text": np.array([1.0, 1.0, 0.97, 1.0, 1.0])},
    clusters=np.array([3, 3, 5, 5, 8], np.int32),
    captions=np.array([0, 1, 2, 0, 4, 0], np.int32),
    images=np.array([0, 0, 7, 8, 9, 0], np.int32),
    terms={"image": np.array([0.0, math.nan, 0.1, 0.2, 0.3, 0.0]), "text": np.full(6, 0.02)},
    matches={"similarity": np.linspace(0.1, 0.5, 5), "nearest": np.array([0, 1, 0, 1, 1]),
             "compared": np.array([0.1, 0.2, 0.3, 0.4, 0.6])},
    contamination_threshold=0.45,
    facts={
        "pairs": 6, "left_out": 2, "repeated_uids": 1, "distinct_images": 5, "distinct_texts": 6,
        "whitened": True, "exact": False, "image_threshold": 0.8, "text_threshold": 0.9,
        "index_image": "image lists", "index_text": "text lists", "image_recall": 0.91,
        "text_recall": 0.94, "image_to_text_recall": 0.95, "text_to_image_recall": 0.92,
        "image_duplicate_recall": 0.93, "text_duplicate_recall": 0.96, "reference_images": 2,
        "contamination_threshold": 0.45,
    },
)  # fmt: skip


@pytest.mark.parametrize("rows", [2, 100])
def test_each_column_is_that_of_its_modality(tmp_path, monkeypatch, rows):
    """A row group at a time, and all at once."""
    monkeypatch.setattr("ncclean.neighbour_search.table.ROW_GROUP_ROWS", rows)
    reference = pa.array(["x", "y"])
    write_neighbours(UPath(tmp_path / "n.parquet"), RESULT, {"k": "30"}, reference)
    table = pq.read_table(tmp_path / "n.parquet")
    found = {name: table[name].to_pylist() for name in table.column_names}
    assert found["image_group"] == ["a", None, "a", None, None, None]
    assert found["text_group"] == [None, "b", "b", "b", None, None]
    assert found["pair_group"] == [None] * 6
    none = None
    assert found["image_group_similarity"] == pytest.approx([1.0, none, 0.85, none, none, none])
    assert found["text_group_similarity"] == pytest.approx([none, 1.0, 1.0, 0.97, none, none])
    assert found["better_captions"] == [0, 1, 2, 0, 4, 0]
    assert found["better_images"] == [0, 0, 7, 8, 9, 0]
    assert found["mutual_nearest"] == [True, False, False, False, False, True]
    assert found["lemon_score"] == pytest.approx([0.6, None, 1.1, 1.6, 2.1, 0.6])
    assert found["cluster"] == [3, 3, 5, 5, 8, 8]
    assert found["nearest_reference"] == ["x", "y", "x", "y", "y", "y"]
    assert found["contaminated"] == [False] * 4 + [True] * 2


def test_without_a_reference_its_columns_are_null(tmp_path):
    alone = dataclasses.replace(RESULT, matches=None)
    write_neighbours(UPath(tmp_path / "n.parquet"), alone, {}, None)
    table = pq.read_table(tmp_path / "n.parquet")
    for name in ("reference_similarity", "nearest_reference", "contaminated"):
        assert table[name].null_count == 6


def test_the_summary_counts_groups_and_pairs():
    """Two captions of an image are neither near-duplicates nor two contaminated images."""
    summary = summarize(RESULT, "n.parquet", 1.5)
    assert (summary.pairs, summary.left_out, summary.repeated_uids) == (6, 2, 1)
    assert (summary.image_groups, summary.image_duplicates) == (1, 1)
    assert (summary.text_groups, summary.text_duplicates) == (1, 2)
    assert (summary.pair_groups, summary.pair_duplicates) == (0, 0)
    assert (summary.mutual_nearest, summary.clusters, summary.contaminated) == (2, 3, 1)
    metadata = neighbour_metadata(NeighbourOptions(), summary)
    assert metadata["image_to_text_recall"] == "0.95"
    assert {"out", "seconds"}.isdisjoint(metadata)
