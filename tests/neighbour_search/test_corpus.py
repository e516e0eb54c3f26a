"""Classes of equal rows and groups of pairs, against the same at once in memory."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.base.progress import SILENT
from ncclean.base.scratch import scratch_folder
from ncclean.neighbour_search import corpus as corpus_module
from ncclean.neighbour_search import stages as stages_module
from ncclean.neighbour_search.corpus import (
    Distinct,
    caption_digests,
    pair_groups,
    read_corpus,
    write_classes,
)
from ncclean.neighbour_search.stages import Stages
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from tests.neighbour_search.simulated import ArrayBlock, clustered, distinct_of


def stages(folder):
    return Stages(ArrayFolder(str(folder)), InProcess(), SILENT)


@settings(max_examples=30)  # each writes and reads files
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.sampled_from([1, 7, 1 << 18]))
def test_classes_are_numbered_by_first_occurrence(labels, values):
    expected = distinct_of(np.array(labels))
    pairs = pa.table({"image": labels, "text": range(len(labels)), "caption": labels})
    with scratch_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "VALUES", values)
        patch.setattr(stages_module, "VALUES", values)
        for side, keys in (("image", ["image"]), ("text", ["text", "caption"])):
            write_classes(stages(folder), pairs, side, keys)
            classes = Distinct.load(ArrayFolder(str(folder)), side)
            for field in dataclasses.fields(Distinct):
                np.testing.assert_array_equal(
                    getattr(classes, field.name), getattr(expected, field.name), err_msg=field.name
                )
        some = np.arange(len(classes))[::2]
        rows = [row for label in some for row in np.flatnonzero(expected.labels == label)]
        assert classes.rows_of(some).tolist() == rows


def test_equal_captions_are_one_class_whatever_their_embeddings(tmp_path):
    """Rounding depends on the batch; the tokenizer sees neither case nor white space."""
    rows = np.array([[1, 0], [0.9995, 0.03], [0, 1], [0, 1], [0.6, 0.8]], np.float16)
    captions = ["A red  square", "a red square\n", "blue", None, None]
    assert caption_digests(captions)[0] == caption_digests(captions)[1]
    for name, texts, labels in (("one", captions, [0, 0, 1, 1, 2]), ("two", None, [0, 1, 2, 2, 3])):
        corpus = read_corpus(stages(tmp_path / name), [ArrayBlock(rows, rows, texts)])
        assert corpus.distinct["text"].labels.tolist() == labels
        assert corpus.distinct["image"].labels.tolist() == [0, 1, 2, 2, 3]


def test_groups_have_the_sizes_of_their_members(tmp_path):
    image, text = clustered(300, 8), clustered(300, 8, seed=1)
    image[200:] = image[:100]
    text[150:] = text[:150]
    work = stages(tmp_path)
    corpus = read_corpus(
        work, [ArrayBlock(image[:90], text[:90]), ArrayBlock(image[90:], text[90:])]
    )
    for side, classes in corpus.distinct.items():
        work.save(f"groups-{side}", representative=np.arange(len(classes), dtype=np.int32) // 2 * 2)
    groups = pair_groups(work, corpus)
    for side, classes in corpus.distinct.items():
        np.testing.assert_array_equal(groups[side], classes.first[classes.labels // 2 * 2])
    names = list(zip(groups["image"].tolist(), groups["text"].tolist(), strict=True))
    for name, values in (("image", groups["image"].tolist()), ("text", groups["text"].tolist()),
                         ("pair", names)):  # fmt: skip
        assert groups[f"{name}_size"].tolist() == [values.count(value) for value in values]
        assert groups[name].tolist() == [values.index(value) for value in values]
    assert groups["same_image"].tolist() == list(range(300))
    assert groups["images"].tolist() == groups["image_size"].tolist()


def test_images_of_several_shards_with_the_same_keys_are_told_apart_by_uid(tmp_path):
    """Images 0 and 3 are copies, image 0 has two captions; the keys of a file repeat."""
    numbers, names = [0, 0, 0, 0, 1], ["a", "b", "c", "d", "a"]
    facts = pa.table({
        "uid": names, "shard": ["s"] * 5, "key": ["k"] * 5,
        "caption_number": pa.array(numbers, pa.int16()),
    })  # fmt: skip
    image = np.eye(5, dtype=np.float16)[[0, 1, 2, 0, 0]]
    work = stages(tmp_path)
    corpus = read_corpus(work, [ArrayBlock(image, np.eye(5, dtype=np.float16))])
    corpus = dataclasses.replace(corpus, pairs=facts)
    for side, classes in corpus.distinct.items():
        work.save(f"groups-{side}", representative=np.arange(len(classes), dtype=np.int32))
    groups = pair_groups(work, corpus)
    assert groups["same_image"].tolist() == [0, 1, 2, 3, 0]
    assert groups["images"].tolist() == [2, 1, 1, 2, 2]
