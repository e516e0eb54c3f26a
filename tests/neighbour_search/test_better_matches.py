import numpy as np
import pytest

from ncclean.neighbour_search.better_matches import count_better, count_better_among
from ncclean.neighbour_search.corpus import pair_cosines
from ncclean.neighbour_search.inverted_lists import Nearest
from tests.neighbour_search.simulated import clustered, distinct_of, unit


def counted(image, text, image_group=None, text_group=None):
    alone = np.arange(len(image))
    own = pair_cosines(image, text)
    return count_better(
        image,
        text,
        own,
        alone if image_group is None else np.array(image_group),
        alone if text_group is None else np.array(text_group),
    )


# Cosines of images (rows) with captions:  [[.6, 1, .8], [.8, 0, .6], [1, .6, .96]]
IMAGE = np.array([[0, 1], [1, 0], [0.6, 0.8]], np.float32)
TEXT = np.array([[0.8, 0.6], [0, 1], [0.6, 0.8]], np.float32)


def test_by_hand():
    captions, images = counted(IMAGE, TEXT)
    # s = (.6, 0, 1); row 0: 1 and .8; row 1: .8 and .6; row 2: none.
    assert captions.tolist() == [2, 2, 0]
    # Column 0: .8 and .96 over .6; column 1: 1 and .8 over 0; column 2: none over 1.
    assert images.tolist() == [2, 2, 0]


def test_near_duplicates_are_no_rivals():
    # Pairs 0 and 2 show the same image: neither's caption counts for the other.
    captions, images = counted(IMAGE, TEXT, image_group=[0, 1, 0])
    assert captions.tolist() == [1, 2, 0]
    assert images.tolist() == [1, 2, 0]
    assert not np.any(counted(IMAGE, TEXT, text_group=[0, 0, 0]))


def test_copies_of_a_pair_do_not_make_it_look_noisy():
    vectors = clustered(40, 16)
    image = np.concatenate([vectors, vectors, vectors])
    text = unit(image.astype(np.float32) + 0.05).astype(np.float16)
    assert not np.any(counted(image, text))


def count_among(pairs, nearest, own, query_group, candidate_group, candidates):
    """With the sizes and keys of groups, by one sort of all pairs."""
    sizes = np.bincount(query_group, minlength=len(query_group))[query_group]
    keys = query_group * len(candidates) + candidates.labels
    return count_better_among(
        pairs, nearest, own, query_group, candidate_group, candidates, sizes,
        np.sort(keys[sizes > 1]),
    )  # fmt: skip


def test_found_rivals_are_the_exact_ones_if_all_candidates_are_found():
    rng = np.random.default_rng(0)
    image, text = clustered(60, 8, 1), clustered(60, 8, 2)
    text[rng.integers(0, 60, 30)] = text[0]  # a common caption
    image[50:] = image[:10]
    own = pair_cosines(image, text)
    by_image, by_text = (
        distinct_of(np.unique(side, axis=0, return_inverse=True)[1].ravel())
        for side in (image, text)
    )
    exact = counted(image, text, by_image.labels, by_text.labels)

    def all_found(queries, candidates):
        cosines = queries @ candidates.T
        ids = np.argsort(-cosines, axis=1, kind="stable").astype(np.int32)
        return Nearest(np.take_along_axis(cosines, ids, axis=1), ids)

    unique_images, unique_texts = (
        image[by_image.first].astype(np.float32),
        text[by_text.first].astype(np.float32),
    )
    first_image, first_text = by_image.first[by_image.labels], by_text.first[by_text.labels]

    def count(found, queries, candidates, query_group, candidate_group):
        pairs = np.random.default_rng(1).permutation(60)
        rows = queries.labels[pairs]
        nearest = Nearest(found.cosines[rows], found.ids[rows])
        counts = np.empty(60, np.int32)
        counts[pairs] = count_among(pairs, nearest, own, query_group, candidate_group, candidates)
        return counts

    captions = count(
        all_found(unique_images, unique_texts), by_image, by_text, first_image, first_text
    )
    others = count(
        all_found(unique_texts, unique_images), by_text, by_image, first_text, first_image
    )
    np.testing.assert_array_equal(captions, exact[0])
    np.testing.assert_array_equal(others, exact[1])


def test_fewer_candidates_count_less():
    found = Nearest(np.array([[0.9], [0.9]], np.float32), np.array([[1], [-1]], np.int32))
    alone = distinct_of(np.arange(2))
    rows = np.arange(2)
    own = np.array([0.5, 0.5], np.float32)
    counts = count_among(rows, found, own, rows, rows, alone)
    assert counts.tolist() == [1, 0]


@pytest.mark.parametrize("rows", [1, 2])
def test_tiny_corpora(rows):
    vectors = np.eye(2, dtype=np.float32)[:rows]
    assert not np.any(counted(vectors, vectors))
