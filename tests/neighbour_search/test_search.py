import mmap

import numpy as np
import pytest

from ncclean.neighbour_search.blocks import ArrayBlock
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import find_neighbours, neighbours_of
from ncclean.neighbour_search.search_tasks import task_rows
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from tests.neighbour_search.simulated import clustered, unit


def found(image, text, captions=None, **options):
    return neighbours_of(image, text, captions, NeighbourOptions(**options))


@pytest.mark.parametrize("index", ["flat", "ivf"])
@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_tiny_corpora(index, pairs):
    rows = np.eye(4, dtype=np.float16)[:pairs]
    result = found(rows, rows, index=index)
    assert result.image.group.tolist() == list(range(pairs))
    assert result.better.mutual_nearest().all()
    assert np.isnan(result.lemon).tolist() == [pairs == 1] * pairs


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_a_corpus_of_one_pair_again_and_again(index):
    rows = np.repeat(np.eye(4, dtype=np.float16)[:1], 200, axis=0)
    result = found(rows, rows, index=index)
    assert (result.pair_group == 0).all()
    assert result.better.mutual_nearest().all()
    assert np.isnan(result.lemon).all()  # copies are no evidence


@pytest.mark.parametrize("index", ["flat", "ivf"])
@pytest.mark.parametrize("linkage", ["representative", "components"])
def test_large_classes_that_are_near_one_another(index, linkage):
    """50 copies of each of two near captions: lists of 10 neighbours would hold copies alone."""
    image = clustered(400, 16)
    text = clustered(400, 16, seed=5)
    text[:50] = text[0]
    near = text[0].astype(np.float32) + 0.02 * clustered(1, 16, seed=9)[0]
    text[50:100] = unit(near).astype(np.float16)
    result = found(image, text, index=index, linkage=linkage, k=10, whiten=False)
    assert (result.text.group[:100] == 0).all()
    assert result.whiten is False


def test_whitens_from_ten_pairs_per_dimension_on():
    image, text = clustered(159, 16), clustered(159, 16, seed=1)
    assert not found(image, text).whiten
    image, text = clustered(165, 16), clustered(165, 16, seed=1)
    assert found(image, text).whiten


def test_equal_captions_are_one_group_whatever_their_embeddings():
    image, text = clustered(30, 16), clustered(30, 16, seed=1)
    captions = [f"caption {i}" for i in range(28)] + ["CAPTION 0", "caption  1"]
    assert found(image, text, captions).text.group[-2:].tolist() == [0, 1]


def searched(folder, image, text, memory_bytes, **options):
    work = ArrayFolder(str(folder))
    options = NeighbourOptions(index="ivf", **options)
    block = ArrayBlock(image, text)
    _, found = find_neighbours([block], options, work, InProcess(), memory_bytes=memory_bytes)
    return work, found


def test_results_do_not_depend_on_memory(tmp_path):
    """Half of the captions are far from all images, which have five each."""
    image = np.repeat(np.abs(clustered(400, 16)), 5, axis=0)
    text = np.abs(clustered(2000, 16, seed=1))
    text[1000:] *= -1
    work, found = searched(tmp_path, image, text, memory_bytes=1 << 18, k=7)
    whole, expected = searched(tmp_path / "whole", image, text, memory_bytes=1 << 30, k=7)
    assert work.has("near-text-image-3")
    assert not whole.has("near-text-image-1")
    np.testing.assert_array_equal(found.better.captions, expected.better.captions)
    np.testing.assert_array_equal(found.pair_group, expected.pair_group)
    np.testing.assert_allclose(found.lemon, expected.lemon, atol=1e-5)


def test_memory_of_a_task_holds_its_queries():
    for dim, k in ((16, 5), (768, 30)):
        for rows in task_rows(1_000_000, dim, k, nprobe=32, memory_bytes=64 << 20):
            assert 8 * dim * (rows.stop - rows.start) < 64 << 20


def test_what_there_is_for_each_pair_lies_in_mapped_files(tmp_path):
    """The memory of this process does not grow with the corpus."""
    image, text = clustered(2000, 16), clustered(2000, 16, seed=1)
    _, found = searched(tmp_path, image, text, memory_bytes=1 << 20, k=7)
    arrays = [
        found.pair_group, found.pair_sizes, found.lemon, found.cluster, found.better.captions,
        found.better.images,
        *(getattr(side, name) for side in (found.image, found.text)
          for name in ("group", "sizes", "members", "similarity")),
    ]  # fmt: skip
    for array in arrays:
        assert len(array) == 2000
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array.base, mmap.mmap)
