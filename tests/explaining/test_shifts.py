"""Shifted captions: the shift, the run, and the decisions that mend it."""

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.select import Select

import ncclean
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.errors import InputError
from ncclean.explaining.shifts import find_shift


def vectors(count, noise=1.5, seed=0):
    """Images and captions of unit length; a caption is its image with noise."""
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(count, 64))
    text = image + rng.normal(size=(count, 64)) * noise
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (image, text)]
    return unit[0], unit[1], float(np.einsum("nd,nd->n", *unit).mean())


@pytest.mark.parametrize("by", [1, -1, 3, 16, -7])
def test_a_shift_of_all_pairs(by):
    image, text, right = vectors(300)
    found = find_shift(np.arange(300) * 2, image, np.roll(text, by, axis=0), right)
    assert found is not None
    assert found.by == by
    assert found.right_after > 0.9 * (300 - abs(by))
    assert found.right_before < 0.1 * 300
    assert f"{by:+d}" in str(found)
    # A caption belongs to the image `by` places after it.
    there = found.sources >= 0
    assert (found.sources[there] - found.places[there] == 2 * by).all()


def test_a_run_within_the_pairs():
    image, text, right = vectors(400)
    text[100:250] = np.roll(text[100:250], 2, axis=0)
    found = find_shift(np.arange(400), image, text, right)
    assert found is not None
    assert found.by == 2
    assert abs(found.places[0] - 100) <= 3
    assert abs(found.places[-1] - 249) <= 3
    assert "a run of" in str(found)


def test_what_was_not_shifted_is_left_alone():
    image, text, right = vectors(300)
    assert find_shift(np.arange(300), image, text, right) is None
    order = np.random.default_rng(1).permutation(300)
    assert find_shift(np.arange(300), image, text[order], right) is None
    assert find_shift(np.arange(1), image[:1], text[:1], right) is None
    assert find_shift(np.arange(300), image, text, float("nan")) is None


def test_a_weak_estimator_still_sees_a_shift():
    image, text, right = vectors(250, noise=6.0)
    found = find_shift(np.arange(250), image, np.roll(text, 1, axis=0), right)
    assert found is not None
    assert found.by == 1


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A rendered corpus whose second shard has the captions of the pairs before."""
    folder = tmp_path_factory.mktemp("shift")
    options = CorpusOptions(pairs=1200, shard_size=300, noise={"ncr": 0.05}, duplicates=0, seed=4)
    write_corpus(folder / "shards", options, 1)
    ncclean.score(
        str(folder / "shards"), str(folder / "plain.parquet"), model="demo", precision="fp32",
        embeddings=str(folder / "plain"),
    )  # fmt: skip
    files = sorted((folder / "plain" / "text_emb").glob("*.npy"))
    np.save(files[1], np.roll(np.load(files[1]), 1, axis=0))
    table = sorted((folder / "plain" / "metadata").glob("*.parquet"))[1]
    rows = pq.read_table(table)
    captions = rows.column("caption").to_pylist()
    moved = pa.array([captions[-1], *captions[:-1]])
    place = rows.column_names.index("caption")
    pq.write_table(rows.set_column(place, "caption", moved), table)
    ncclean.score(str(folder / "plain"), str(folder / "scores.parquet"), scale="demo")
    return folder, captions


def test_decisions_mend_a_shifted_shard(scored):
    folder, captions = scored
    scores = str(folder / "scores.parquet")
    found = Explain(
        scores=[scores], out=str(folder / "causes.parquet"), embeddings=[str(folder / "plain")],
        fixes=str(folder / "fixes.parquet"),
    ).run()  # fmt: skip
    first = found.summary.causes[0]
    assert first.kind == "shard"
    assert "shifted by +1" in (first.proposal or "")
    assert found.summary.fixed >= 0.95 * len(captions)
    selected = str(folder / "selected.parquet")
    Select(scores=[scores], decisions=[str(folder / "fixes.parquet")], out=selected).run()
    rows = duckdb.sql(
        f"SELECT row, caption FROM '{selected}' JOIN '{scores}' USING (uid, shard) "
        f"WHERE {first.condition} AND caption IS NOT NULL"
    ).fetchall()
    assert len(rows) >= 0.95 * len(captions) - 1
    assert all(caption == captions[row] for row, caption in rows)


def test_fixes_need_embeddings(scored):
    folder, _ = scored
    with pytest.raises(InputError, match="--fixes needs --embeddings"):
        Explain(scores=["s.parquet"], out="c.parquet", fixes=str(folder / "f.parquet"))
