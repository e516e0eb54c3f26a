"""The pass before scoring: which pairs are in the pool, and which half fits whose directions."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.columns import PairBatch, columns
from ncclean.data.embeddings.pairs import read_pairs
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import BatchColumns, ColumnSources
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
    assert gather_facts(UPath(folder), shards, None, DIM, options) is None
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


def test_a_growing_run_keeps_its_pool(tmp_path, shards):
    first = pool_of(tmp_path / "w", shards[:1], 20)
    assert np.array_equal(pool_of(tmp_path / "w", shards, 20).samples, first.samples)


def test_a_run_without_its_pool_says_what_to_do(tmp_path, refused):
    refused(CorpusFacts.load, str(tmp_path), ScoreOptions(pool=5))


# What the values of further columns depend on.


def head(path, factor):
    save_file({"weight": torch.full((1, 4), factor), "bias": torch.zeros(1)}, path)
    return f"beauty={path}"


def test_another_head_of_the_same_name_is_another_run(tmp_path, refused):
    first = ColumnSources(ScoreOptions(head=[head(tmp_path / "a.safetensors", 1.0)]))
    same = ColumnSources(ScoreOptions(head=[head(tmp_path / "b.safetensors", 1.0)]))
    other = ColumnSources(ScoreOptions(head=[head(tmp_path / "c.safetensors", 2.0)]))
    assert first.identity() == same.identity()
    assert first.identity() != other.identity()
    assert first.identity()["head"][0].startswith("beauty=")
    refused(first.check, EncoderFacts(dim=5))


@columns(length=pa.int32())
def lengths(batch: PairBatch):
    return {"length": [len(caption) for caption in batch.captions]}


def test_batches_in_any_order_end_in_that_of_the_places(monkeypatch):
    further = ColumnSources(ScoreOptions(columns=[f"{__name__}:lengths"]))
    made = BatchColumns(further)
    for places, captions in (([4, 1], ["xxxx", "x"]), ([0, 3], ["", "xxx"])):
        vectors = torch.from_numpy(np.zeros((2, 4), np.float32))
        batch = PairBatch(captions, vectors, None, [{}, {}], lambda vectors=vectors: vectors)
        made.add(places, batch)
    assert made.in_order()["length"].to_pylist() == [0, 1, 3, 4]
