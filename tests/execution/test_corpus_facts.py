"""The pass before scoring: which pairs are in the pool, and which half fits whose directions."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.data.embeddings.pairs import read_pairs
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.execution.corpus_facts import CorpusFacts, gather_facts
from ncclean.scoring.pool import sample_numbers

DIM = 8


@pytest.fixture
def shards(tmp_path):
    """Two files of 30 pairs in clip-retrieval's layout."""
    rng = np.random.default_rng(0)
    for number in range(2):
        for kind in ("img_emb", "text_emb"):
            vectors = rng.standard_normal((30, DIM))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            (tmp_path / "e" / kind).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "e" / kind / f"{kind}_{number}.npy", vectors.astype(np.float16))
        (tmp_path / "e" / "metadata").mkdir(exist_ok=True)
        uids = [f"uid {number} {row}" for row in range(30)]
        table = pa.table({"uid": uids, "caption": uids})
        pq.write_table(table, tmp_path / "e" / "metadata" / f"metadata_{number}.parquet")
    return resolve_embeddings([str(tmp_path / "e")])


def pool_of(folder, shards, size):
    options = ScoreOptions(pool=size)
    assert gather_facts(UPath(folder), shards, None, DIM, options, overwrite=False) is None
    return CorpusFacts.load(str(folder), options).pool


@pytest.mark.parametrize("size", [7, 40, 100])
def test_the_pool_has_the_pairs_with_the_smallest_hashes(tmp_path, shards, size):
    """The same for every order of the shards, and each with its own vectors."""
    read = [read_pairs(shard, None) for shard in shards]
    uids = [uid for pairs in read for uid in pairs.facts.column("uid").to_pylist()]
    order = np.argsort(sample_numbers(uids))[:size]
    image = np.concatenate([pairs.image for pairs in read])[order]
    text = np.concatenate([pairs.text for pairs in read])[order]
    for name, listed in (("a", shards), ("b", shards[::-1])):
        pool = pool_of(tmp_path / name, listed, size)
        assert pool.samples.tolist() == sample_numbers(uids)[order].tolist()
        assert np.array_equal(pool.image.numpy(), image.astype(np.float32))
        assert np.array_equal(pool.text.numpy(), text.astype(np.float32))


def test_a_pool_stays_until_it_is_overwritten(tmp_path, shards):
    first = pool_of(tmp_path / "w", shards[:1], 20)
    assert np.array_equal(pool_of(tmp_path / "w", shards, 20).samples, first.samples)
    gather_facts(UPath(tmp_path / "w"), shards, None, DIM, ScoreOptions(pool=20), overwrite=True)
    again = CorpusFacts.load(str(tmp_path / "w"), ScoreOptions(pool=20)).pool
    assert not np.array_equal(again.samples, first.samples)


def test_a_run_without_its_pool_says_what_to_do(tmp_path, refused):
    refused(CorpusFacts.load, str(tmp_path), ScoreOptions(pool=5))
