"""Embeddings of several shards in one file: blocks and groups are those of each shard."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.score import Score
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.scoring.null import Histogram
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import ScoreRun

PAIRS = 80


@pytest.fixture
def scored(tmp_path):
    """A table of two shards, whose rows take turns, with three languages; and its manifest."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((PAIRS, 16))
    sides = {"img_emb": image, "text_emb": image + rng.standard_normal((PAIRS, 16))}
    for kind, vectors in sides.items():
        (tmp_path / "e" / kind).mkdir(parents=True)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(tmp_path / "e" / kind / f"{kind}_0.npy", vectors.astype(np.float16))
    (tmp_path / "e" / "metadata").mkdir()
    table = pa.table({
        "caption": [f"caption {n}" for n in range(PAIRS)],
        "shard": [("s", "t")[n % 2] for n in range(PAIRS)],
        "key": [f"{n:04d}" for n in range(PAIRS)],
        "language": [("de", "en", None)[n % 3] for n in range(PAIRS)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "e" / "metadata" / "metadata_0.parquet")
    out = str(tmp_path / "s.parquet")
    options = ScoreOptions(calibrate_by="language", block_size=20)
    Score(shards=[str(tmp_path / "e")], out=out, scale=20.0, options=options).run()
    run = ScoreRun.load(ScoreLayout(UPath(out)))
    return pq.read_table(out).to_pandas(), run.distributions


def test_groups_hold_the_cosines_of_their_own_pairs(scored):
    import torch

    table, distributions = scored
    assert set(distributions.groups) == {"de", "en", None}
    for language, group in distributions.groups.items():
        labels = table.calibration_group
        own = table[labels.isna() if language is None else labels == language]
        assert len(own) > 20
        expected = Histogram.of(torch.tensor(own.similarity.to_numpy()))
        assert np.array_equal(group.matched.counts, expected.counts)


def test_blocks_are_those_of_a_shard(scored):
    table, _ = scored
    sizes = table.groupby("shard").block.value_counts()
    assert sorted(sizes) == [20] * 4
    assert table.groupby("shard").block.nunique().to_dict() == {"s": 2, "t": 2}
