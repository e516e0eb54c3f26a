import numpy as np
import pytest

from ncclean.neighbour_search.inverted_lists import Nearest
from ncclean.neighbour_search.lemon import (
    LemonParameters,
    disagreement,
    lemon_score,
    neighbour_pairs,
)
from tests.neighbour_search.simulated import distinct_of

PAPER = LemonParameters()


def terms_of(found, distinct, text, own, copies, k, pairs=None):
    pairs = np.arange(len(own)) if pairs is None else np.array(pairs)
    return disagreement(
        pairs, np.arange(len(distinct)), found, distinct, text.__getitem__, own, copies,
        text.shape[1], LemonParameters(k=k),
    )  # fmt: skip


def test_defaults_are_the_papers_fixed_ones():
    assert LemonParameters(k=30, beta=5, gamma=5, tau_1=0.1, tau_2=5) == PAPER


def test_term_by_hand():
    text = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    own = np.array([0.9, 0.8, 0.5], np.float32)
    found = Nearest(
        np.array([[0.7, 0.4], [0.7, 0.2], [0.4, 0.2]], np.float32),
        np.array([[1, 2], [0, 2], [0, 1]], np.int32),
    )
    alone = distinct_of(np.arange(3))
    terms = terms_of(found, alone, text, own, [np.arange(3)], 2)
    # d = 1 - cosine: captions .4 and 1 apart, images .3 and .6, the neighbours' own .2 and .5.
    expected = (
        0.4 * np.exp(-0.1 * 0.3) * np.exp(-5 * 0.2) + 1.0 * np.exp(-0.1 * 0.6) * np.exp(-5 * 0.5)
    ) / 2
    assert terms[0] == pytest.approx(expected, rel=1e-3)
    score = lemon_score(own, terms, np.array([0.1, 0, 0]), PAPER)
    assert score[0] == pytest.approx(0.1 + 5 * expected + 5 * 0.1, rel=1e-3)


def test_copies_give_no_evidence():
    """A mismatched pair that is there twice must not be vouched for by its copy."""
    text = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    images = distinct_of(np.array([0, 0, 1]))
    found = Nearest(np.array([[0.9], [0.9]], np.float32), np.array([[1], [0]], np.int32))
    own = np.full(3, 0.5, np.float32)
    terms = terms_of(found, images, text, own, [np.array([0, 0, 2])], 1)
    assert np.isnan(terms[:2]).all()  # the nearest neighbour is the copy
    terms = terms_of(found, images, text, own, [np.array([0, 0, 2])], 2)
    alone = np.exp(-0.1 * 0.1 - 5 * 0.5)  # the caption of pair 2 is 1 apart
    assert terms[:2] == pytest.approx(alone, rel=1e-3)
    # Pair 2 has both copies as neighbours.
    assert terms[2] == pytest.approx(alone, rel=1e-3)
    some = terms_of(found, images, text, own, [np.array([0, 0, 2])], 2, pairs=[2, 0])
    assert some.tolist() == [terms[2], terms[0]]


def test_members_of_the_own_class_come_first_and_in_turn():
    classes = distinct_of(np.array([0, 0, 0, 0, 1, 1]))
    found = Nearest(np.array([[0.5], [0.5]], np.float32), np.array([[1], [0]], np.int32))
    rows, pairs = classes.labels, np.arange(6)
    nearest = found.ids[rows], found.cosines[rows]
    near, cosines = neighbour_pairs(*nearest, classes, pairs, 4)
    assert near[0].tolist()[:3] == [1, 2, 3]
    assert near[2].tolist()[:3] == [3, 0, 1]
    assert set(near[0].tolist()[3:]) <= {4, 5}
    assert cosines[0].tolist() == [1, 1, 1, 0.5]
    assert near[5].tolist()[0] == 4
    assert len(set(near[5].tolist())) == 4
    few, _ = neighbour_pairs(*nearest, classes, pairs, 9)
    assert (few[0] >= 0).sum() == 5  # all others, and no more
    assert sorted(few[0][:5].tolist()) == [1, 2, 3, 4, 5]


def test_a_copy_by_any_of_its_labels_gives_no_evidence():
    """A neighbour with the same image is left out, whatever its caption, and a lack of one too."""
    text = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    images = distinct_of(np.array([0, 0, 1]))
    found = Nearest(np.array([[0.9], [0.9]], np.float32), np.array([[1], [0]], np.int32))
    own = np.full(3, 0.5, np.float32)
    labels = [np.array([0, 0, 2]), np.arange(3)]
    for copies in (labels, labels[::-1]):
        terms = terms_of(found, images, text, own, copies, 1)
        assert np.isnan(terms[:2]).all()
