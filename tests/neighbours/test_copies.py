import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ncclean.neighbours.copies import (
    Distinct,
    caption_digests,
    distinct_classes,
    vector_digests,
)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_classes_are_numbered_by_first_occurrence(labels):
    classes = Distinct.of(np.array(labels))
    seen = list(dict.fromkeys(labels))
    assert [seen[label] for label in classes.labels] == labels
    assert [labels[first] for first in classes.first] == seen
    assert classes.first.tolist() == [labels.index(value) for value in seen]
    for number, value in enumerate(seen):
        members = classes.members[classes.starts[number] : classes.starts[number + 1]]
        assert members.tolist() == [i for i, label in enumerate(labels) if label == value]
        assert classes.positions[members].tolist() == list(range(len(members)))


def test_equal_embeddings_are_one_class():
    rows = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], np.float16)
    classes = distinct_classes(np.concatenate([vector_digests(rows[:1]), vector_digests(rows[1:])]))
    assert classes.labels.tolist() == [0, 1, 0, 2]
    assert classes.sizes.tolist() == [2, 1, 1]


def test_equal_captions_are_one_class_whatever_their_embeddings():
    """Rounding depends on the batch; the tokenizer sees neither case nor white space."""
    rows = np.array([[1, 0], [0.9995, 0.03], [0, 1], [0, 1], [0.6, 0.8]], np.float16)
    captions = ["A red  square", "a red square\n", "blue", None, None]
    classes = distinct_classes(vector_digests(rows), caption_digests(captions))
    assert classes.labels.tolist() == [0, 0, 1, 1, 2]
    without = distinct_classes(vector_digests(rows), caption_digests([None] * 5))
    assert without.labels.tolist() == [0, 1, 2, 2, 3]
