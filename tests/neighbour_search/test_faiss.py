"""The search against FAISS at the same lists and probes, and against groups made one by one."""

import faiss
import numpy as np
import pytest
from faiss.contrib.ivf_tools import add_preassigned
from scipy.sparse.csgraph import connected_components
from threadpoolctl import threadpool_limits

from ncclean.neighbour_search import near_duplicates, training
from ncclean.neighbour_search.corpus import ACROSS, WITHIN, Distinct
from ncclean.neighbour_search.inverted_lists import InvertedLists, nearest_lists, nearest_of
from ncclean.neighbour_search.near_duplicates import GROUPING_EFFORT
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import find_neighbours
from ncclean.neighbour_search.whitening import whitened
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from tests.neighbour_search import simulated
from tests.neighbour_search.simulated import ArrayBlock, clustered, unit

K, ROWS = 7, 4000


def corpus():
    rng = np.random.default_rng(0)
    image = clustered(ROWS, 24)
    text = unit(image.astype(np.float32) + 0.5 * clustered(ROWS, 24, seed=3)).astype(np.float16)
    image[3000:3400] = image[:400]  # copies
    near = image[rng.integers(0, 2000, 600)].astype(np.float32)
    noise = 0.05 * rng.standard_normal(near.shape) / 24**0.5
    image[3400:] = unit(near + noise).astype(np.float16)
    text[100:200] = text[0]
    return image, text


def searched(folder, blocks=3, memory_bytes=4 << 30, **options):
    image, text = corpus()
    parts = np.array_split(np.arange(ROWS), blocks)
    several = [ArrayBlock(image[part], text[part]) for part in parts]
    options = {"index": "ivf", "k": K, **options}
    return simulated.searched(folder, several, memory_bytes, **options)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """In many tasks."""
    return searched(tmp_path_factory.mktemp("work"), memory_bytes=1 << 18)


def vectors_of(work, side):
    lists = InvertedLists.load(work, side)
    return lists.take(np.arange(len(lists)))


def found_in(work, direction, count):
    """The neighbours of all queries, from the files of all tasks."""
    ids, cosines = np.empty((count, K), np.int32), np.empty((count, K), np.float32)
    number = seen = 0
    while work.has(f"near-{direction.name}-{number}"):
        rows, nearest = nearest_of(work, direction, number)
        ids[rows], cosines[rows] = nearest.ids, nearest.cosines
        number, seen = number + 1, seen + len(rows)
    assert (seen, number > 4) == (count, True)
    return cosines, ids


@pytest.mark.parametrize("direction", [*WITHIN, *ACROSS], ids=lambda one: one.name)
def test_neighbours_are_those_of_faiss(done, direction):
    work, found = done
    members, queries = vectors_of(work, direction.index), vectors_of(work, direction.query)
    centroids = InvertedLists.load(work, direction.index).centroids
    quantizer = faiss.IndexFlatIP(24)
    quantizer.add(centroids)
    index = faiss.IndexIVFScalarQuantizer(
        quantizer, 24, len(centroids), faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT,
        False,
    )  # fmt: skip
    index.is_trained = True
    add_preassigned(index, members, nearest_lists(members, centroids, 1)[:, 0].astype(np.int64))
    visited = found.facts[f"index_{direction.index}"].split(", ")[1].split(" ")
    index.nprobe = int(visited[0] if direction.is_within else visited[2])
    expected, ids = index.search(queries, K + direction.is_within)
    if direction.is_within:
        itself = ids == np.arange(len(queries))[:, None]
        assert itself.any(axis=1).all()
        keep = np.argsort(itself, axis=1, kind="stable")[:, :K]
        expected, ids = (np.take_along_axis(one, keep, axis=1) for one in (expected, ids))
    cosines, found_ids = found_in(work, direction, len(queries))
    there = found_ids >= 0
    np.testing.assert_array_equal(there, ids >= 0)
    np.testing.assert_allclose(cosines[there], expected[there], atol=1e-5)
    assert (found_ids == ids).mean() > 0.995  # but for ties


@pytest.mark.parametrize("direction", [*WITHIN, *ACROSS], ids=lambda one: one.name)
def test_recalls_are_those_of_the_sample(done, direction):
    """By brute force, for the first queries that the seed draws."""
    work, found = done
    members, queries = vectors_of(work, direction.index), vectors_of(work, direction.query)
    sample = np.random.default_rng(0).choice(len(queries), 1000, replace=False)
    products = queries[sample] @ members.T
    if direction.is_within:
        products[np.arange(1000), sample] = -np.inf
    least = np.sort(products, axis=1)[:, -K, None]
    cosines, _ = found_in(work, direction, len(queries))
    recall = (cosines[sample] >= least - 2e-6).mean()
    names = [direction.query, direction.index][direction.is_within :]
    assert found.facts["_to_".join(names) + "_recall"] == pytest.approx(recall, abs=5e-4)


def test_the_recall_of_near_duplicates_is_that_of_queries_that_have_one(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "GROUPING_EFFORT", 1)
    _, found = searched(tmp_path)
    assert found.facts["text_duplicate_recall"] == 1  # of the nearest of all texts, .74


@pytest.mark.parametrize(
    ("whiten", "linkage"),
    [
        (True, "representative"),
        (False, "components"),
        pytest.param(True, "components", marks=pytest.mark.slow),
        pytest.param(False, "representative", marks=pytest.mark.slow),
    ],
)
def test_groups_are_those_of_one_row_at_a_time(tmp_path, monkeypatch, whiten, linkage):
    monkeypatch.setattr(near_duplicates, "_TASK_ROWS", 300)
    monkeypatch.setattr(near_duplicates, "_PAIRS", 500)
    threshold = 0.8 if whiten else 0.96
    work, found = searched(
        tmp_path, memory_bytes=1 << 18, whiten=whiten, linkage=linkage, image_threshold=threshold
    )
    lists, vectors = InvertedLists.load(work, "image"), vectors_of(work, "image")
    white = whitened(work.load("learnt"), "image", vectors)
    visited = np.zeros((len(vectors), len(lists.centroids)), bool)
    probes = nearest_lists(vectors, lists.centroids, GROUPING_EFFORT)
    np.put_along_axis(visited, probes, True, axis=1)
    cosines = white @ white.T
    near = cosines >= threshold
    _, label = connected_components(np.tril(near & visited[:, probes[:, 0]], -1), directed=False)
    representative = np.unique(label, return_index=True)[1][label]
    if linkage == "representative":
        representative = np.arange(len(vectors))
        near &= label[:, None] == label
        for row in range(len(vectors)):
            before = np.flatnonzero(near[row, :row] & (representative[:row] == np.arange(row)))
            if len(before):
                representative[row] = before[cosines[row, before].argmax()]
    classes = Distinct.load(work, "image")
    first = classes.first[representative[classes.labels]]
    np.testing.assert_array_equal(found.groups["image"], first)
    assert len(np.unique(representative)) < len(vectors) - 300
    expected = np.einsum("nd,nd->n", white, white[representative])
    np.testing.assert_allclose(found.similarity["image"], expected, atol=1e-3)  # float16 units


def assert_same(found, expected):
    """All columns, but for the rounding of cosines."""
    columns = (results.columns(slice(None)) for results in (found, expected))
    for (name, values), others in zip(next(columns).items(), next(columns).values(), strict=True):
        atol = 1e-5 if values.dtype.kind == "f" else 0
        np.testing.assert_allclose(values, others, rtol=0, atol=atol, err_msg=name)


def test_results_depend_neither_on_memory_nor_on_blocks(done, tmp_path):
    assert_same(searched(tmp_path, blocks=1)[1], done[1])


def test_a_flat_search_finds_near_duplicates_in_all_lists(tmp_path, monkeypatch):
    """There are more lists than an approximate search visits for them."""
    monkeypatch.setattr(training, "_ROWS_PER_EXACT_LIST", 60)
    image, text = corpus()
    block, options = ArrayBlock(image, text), {"index": "flat", "k": K, "whiten": False}
    work, found = simulated.searched(tmp_path, [block], **options)
    assert len(work.load("learnt")["image_lists"]) > 2 * GROUPING_EFFORT
    firsts = image[np.unique(found.groups["image"])].astype(np.float32)
    assert len(firsts) < ROWS - 700
    assert np.tril(firsts @ firsts.T, -1).max() < 0.98 + 1e-5


def test_captions_of_an_image_do_not_repeat_its_uid(tmp_path):
    block = ArrayBlock(clustered(40, 8), clustered(40, 8, seed=1), of_image=4)
    _, found = simulated.searched(tmp_path / "one", [block], k=3)
    assert found.facts["repeated_uids"] == 0
    _, found = simulated.searched(tmp_path / "two", [block, block], k=3)
    assert found.facts["repeated_uids"] == 40


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_a_block_that_has_nothing_of_its_own(tmp_path, index):
    """All its pairs are copies of those of the block before it."""
    image, text = corpus()
    first = ArrayBlock(image[:1500], text[:1500])
    _, found = simulated.searched(tmp_path, [first, first], index=index, k=K)
    np.testing.assert_array_equal(found.groups["pair"][1500:], found.groups["pair"][:1500])
    assert not np.isnan(found.columns(slice(None))["lemon_score"]).any()


def test_copies_are_in_one_group(done):
    _, found = done
    np.testing.assert_array_equal(found.groups["image"][3000:3400], found.groups["image"][:400])
    assert (found.groups["text"][100:200] == found.groups["text"][0]).all()
    assert min(found.facts["image_recall"], found.facts["image_to_text_recall"]) > 0.94


def test_what_is_done_is_not_done_again(tmp_path):
    """A search that ends in the middle goes on with the tasks whose files are missing."""

    class Counting(InProcess):
        def __init__(self, most):
            self.left = most

        def map(self, function, tasks):
            for number, arguments in tasks:
                if not self.left:
                    raise KeyboardInterrupt
                self.left -= 1
                yield number, function(*arguments)

    image, text = corpus()
    blocks = [ArrayBlock(image[part], text[part]) for part in (slice(2000), slice(2000, None))]
    options, work = NeighbourOptions(index="ivf", k=K), ArrayFolder(str(tmp_path))
    rounds = 0
    while True:
        try:
            found = find_neighbours(blocks, options, work, Counting(5), memory_bytes=1 << 19)
            break
        except KeyboardInterrupt:
            rounds += 1
    assert rounds > 5
    _, expected = searched(tmp_path / "again", blocks=2, memory_bytes=1 << 19)
    assert_same(found, expected)


def test_what_is_learnt_does_not_depend_on_the_number_of_threads(tmp_path):
    """Tasks and drivers of a cluster have as many as their machines."""
    image, text = (clustered(3000, 256, seed).astype(np.float16) for seed in (0, 1))
    learnt = []
    for threads in (1, 2):
        options = {"index": "ivf", "k": K, "whiten": True}
        with threadpool_limits(threads):
            work, _ = simulated.searched(
                tmp_path / str(threads), [ArrayBlock(image, text)], **options
            )
        learnt.append(work.load("learnt"))
    for name, array in learnt[0].items():
        np.testing.assert_array_equal(array, learnt[1][name], err_msg=name)
