import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ncclean.base.progress import SILENT
from ncclean.neighbour_search.blocks import ArrayBlock
from ncclean.neighbour_search.copies import caption_digests, vector_digests, write_classes
from ncclean.neighbour_search.corpus import read_corpus
from ncclean.neighbour_search.stages import Stages
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from tests.neighbour_search.simulated import distinct_of


def stages(folder):
    return Stages(ArrayFolder(str(folder)), InProcess(), SILENT)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_classes_are_numbered_by_first_occurrence(labels):
    classes = distinct_of(np.array(labels))
    seen = list(dict.fromkeys(labels))
    assert [seen[label] for label in classes.labels] == labels
    assert [labels[first] for first in classes.first] == seen
    assert classes.first.tolist() == [labels.index(value) for value in seen]
    for number, value in enumerate(seen):
        members = classes.members[classes.starts[number] : classes.starts[number + 1]]
        assert members.tolist() == [i for i, label in enumerate(labels) if label == value]
        assert classes.positions[members].tolist() == list(range(len(members)))


def test_equal_embeddings_are_one_class(tmp_path):
    rows = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], np.float16)

    def keys():
        return vector_digests(rows[:1]), vector_digests(rows[1:])

    classes = write_classes(stages(tmp_path), "classes", [keys], 4)
    assert classes.labels.tolist() == [0, 1, 0, 2]
    assert np.diff(classes.starts).tolist() == [2, 1, 1]


def test_equal_captions_are_one_class_whatever_their_embeddings(tmp_path):
    """Rounding depends on the batch; the tokenizer sees neither case nor white space."""
    rows = np.array([[1, 0], [0.9995, 0.03], [0, 1], [0, 1], [0.6, 0.8]], np.float16)
    captions = ["A red  square", "a red square\n", "blue", None, None]
    assert caption_digests(captions)[:2].tolist() == [caption_digests(captions)[0].tolist()] * 2
    for name, texts, labels in (("one", captions, [0, 0, 1, 1, 2]), ("two", None, [0, 1, 2, 2, 3])):
        block = ArrayBlock(rows, rows, texts)
        classes = read_corpus(stages(tmp_path / name), [block]).distinct["text"]
        assert classes.labels.tolist() == labels
