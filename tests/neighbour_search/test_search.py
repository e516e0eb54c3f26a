import mmap

import numpy as np
import pytest

from ncclean.neighbour_search.inverted_lists import task_rows
from tests.neighbour_search.simulated import ArrayBlock, clustered, searched, unit


@pytest.mark.parametrize("index", ["flat", "ivf"])
@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_tiny_corpora(tmp_path, index, pairs):
    rows = np.eye(4, dtype=np.float16)[:pairs]
    _, found = searched(tmp_path, [ArrayBlock(rows, rows)], index=index)
    columns = found.columns(slice(None))
    assert found.groups["image"].tolist() == list(range(pairs))
    assert columns["image_group"].tolist() == [-1] * pairs
    assert columns["mutual_nearest"].all()
    assert np.isnan(columns["lemon_score"]).tolist() == [pairs == 1] * pairs


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_a_corpus_of_one_pair_again_and_again(tmp_path, index):
    rows = np.repeat(np.eye(4, dtype=np.float16)[:1], 200, axis=0)
    columns = searched(tmp_path, [ArrayBlock(rows, rows)], index=index)[1].columns(slice(None))
    assert (columns["pair_group"] == 0).all()
    assert columns["mutual_nearest"].all()
    assert np.isnan(columns["lemon_score"]).all()  # copies are no evidence


@pytest.mark.parametrize("index", ["flat", "ivf"])
@pytest.mark.parametrize("linkage", ["representative", "components"])
def test_large_classes_that_are_near_one_another(tmp_path, index, linkage):
    """50 copies of each of two near captions: lists of 10 neighbours would hold copies alone."""
    image = clustered(400, 16)
    text = clustered(400, 16, seed=5)
    text[:50] = text[0]
    near = text[0].astype(np.float32) + 0.02 * clustered(1, 16, seed=9)[0]
    text[50:100] = unit(near).astype(np.float16)
    options = {"index": index, "linkage": linkage, "k": 10, "whiten": False}
    _, found = searched(tmp_path, [ArrayBlock(image, text)], **options)
    assert (found.groups["text"][:100] == 0).all()
    assert found.facts["whitened"] is False


@pytest.mark.parametrize(("pairs", "whitened"), [(159, False), (165, True)])
def test_whitens_from_ten_pairs_per_dimension_on(tmp_path, pairs, whitened):
    block = ArrayBlock(clustered(pairs, 16), clustered(pairs, 16, seed=1))
    assert searched(tmp_path, [block])[1].facts["whitened"] == whitened


def test_a_reference_is_compared_in_the_space_of_the_search(tmp_path):
    """What all images share makes them near in the model's own space alone."""
    rng = np.random.default_rng(0)
    image = unit(rng.standard_normal((600, 16)) + 20).astype(np.float16)
    block = ArrayBlock(image[:300], clustered(300, 16, seed=1))
    reference = np.concatenate([image[300:], image[:5]])
    whitened, plain = (
        searched(tmp_path / name, [block], reference=reference, whiten=whiten)[1]
        for name, whiten in (("whitened", True), ("plain", False))
    )
    # Nearer in the model's own space, where images that differ are near one another.
    thresholds = [one.facts["contamination_threshold"] for one in (whitened, plain)]
    assert thresholds == [0.95, 0.98]
    found = whitened.columns(slice(None))
    assert found["reference_similarity"].min() > 0.98
    assert found["contaminated"][:5].all()
    assert found["contaminated"][5:].mean() < 0.1


def test_equal_captions_are_one_group_whatever_their_embeddings(tmp_path):
    image, text = clustered(30, 16), clustered(30, 16, seed=1)
    captions = [f"caption {i}" for i in range(28)] + ["CAPTION 0", "caption  1"]
    _, found = searched(tmp_path, [ArrayBlock(image, text, captions)])
    assert found.groups["text"][-2:].tolist() == [0, 1]


def test_results_do_not_depend_on_memory(tmp_path):
    """Half of the captions are far from all images, which have five each."""
    image = np.repeat(np.abs(clustered(400, 16)), 5, axis=0)
    text = np.abs(clustered(2000, 16, seed=1))
    text[1000:] *= -1
    block, options = ArrayBlock(image, text), {"index": "ivf", "k": 7}
    work, found = searched(tmp_path, [block], 1 << 18, **options)
    whole, expected = searched(tmp_path / "whole", [block], 1 << 30, **options)
    assert work.has("near-text-image-3")
    assert not whole.has("near-text-image-1")
    columns, others = (one.columns(slice(None)) for one in (found, expected))
    for name in ("better_captions", "pair_group"):
        np.testing.assert_array_equal(columns[name], others[name])
    np.testing.assert_allclose(columns["lemon_score"], others["lemon_score"], atol=1e-5)


def test_memory_of_a_task_holds_its_queries():
    for dim, k in ((16, 5), (768, 30)):
        for rows in task_rows(1_000_000, dim, k, nprobe=32, memory_bytes=64 << 20):
            assert 8 * dim * (rows.stop - rows.start) < 64 << 20


def test_what_there_is_for_each_pair_lies_in_mapped_files(tmp_path):
    """The memory of this process does not grow with the corpus."""
    block = ArrayBlock(clustered(2000, 16), clustered(2000, 16, seed=1))
    _, found = searched(tmp_path, [block], 1 << 20, index="ivf", k=7)
    classes = (vars(distinct) for distinct in found.corpus.distinct.values())
    arrays = [
        found.captions, found.images, found.clusters, found.corpus.own,
        *(array for several in (found.groups, found.similarity, found.terms, *classes)
          for array in several.values()),
    ]  # fmt: skip
    for array in arrays:
        assert len(array) >= 2000
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array.base, mmap.mmap)
