"""A word that stands for another in a cluster of images: found there, and nothing else."""

import duckdb
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.replacements import Replacements, find_replacements
from ncclean.explaining.word_sample import WordSample

WORDS = [f"w{number}" for number in range(24)]
CLUSTERS, PLANTED = 10, 4


def corpus(seed, replaced=None, pairs=6000, mismatched=0.1):
    """Pairs of which `replaced` (a, b) have a for b in the cluster of images that show b most."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((len(WORDS), 96))
    shown = rng.random((pairs, len(WORDS))) < 0.15
    clusters = rng.integers(0, CLUSTERS, pairs)
    if replaced is not None:
        a, b = replaced
        shown[:, b] |= (clusters == PLANTED) & (rng.random(pairs) < 0.5)
    said = shown.copy()
    wrong = np.flatnonzero(rng.random(pairs) < mismatched)
    said[wrong] = shown[rng.permutation(wrong)]
    if replaced is not None:
        rows = (clusters == PLANTED) & said[:, b]
        said[rows, a], said[rows, b] = True, False
    image = shown @ directions + 2.5 * rng.standard_normal((pairs, 96))
    text = said @ directions + rng.standard_normal((pairs, 96))
    return said, image, text, clusters


def found(said, image, text, clusters):
    sample = WordSample(WORDS, csr_matrix(said.astype(np.float32)), image, text, clusters)
    return find_replacements(sample, "cluster", ExplainOptions())


@pytest.mark.parametrize("seed", range(5))
def test_a_word_that_stands_for_another_is_found_with_its_cluster(seed):
    replaced = found(*corpus(seed, (3, 8)))
    assert replaced.found == (("w3", "w8", PLANTED),)
    assert replaced.q_values[0] < 0.05
    assert replaced.tested > 200


def test_nothing_is_found_where_no_word_stands_for_another():
    for seed in range(10):
        for mismatched in (0.0, 0.4):
            assert found(*corpus(seed, mismatched=mismatched)).found == ()


def test_synonyms_do_not_stand_for_one_another():
    said, image, text, clusters = corpus(0)
    rng = np.random.default_rng(1)
    said[:, 9] = said[:, 8] & (rng.random(len(said)) < 0.5)
    said[:, 8] &= ~said[:, 9]
    assert found(said, image, text, clusters).found == ()


def test_words_of_things_that_are_seen_together_do_not_stand_for_one_another():
    said, image, text, clusters = corpus(0)
    rng = np.random.default_rng(1)
    together = np.flatnonzero(said[:, 8] & (rng.random(len(said)) < 0.7))
    donors = np.flatnonzero(said[:, 3])
    said[together, 3] = True
    image[together] += image[donors].mean(axis=0) - image.mean(axis=0)
    assert found(said, image, text, clusters).found == ()


def test_an_image_that_is_repeated_counts_once():
    said, image, text, clusters = corpus(0)
    place = int(np.flatnonzero(said[:, 8] & ~said[:, 3])[0])
    repeated = np.full(500, place)
    wrong = said[repeated].copy()
    wrong[:, 3], wrong[:, 8] = True, False
    grown = [np.concatenate([part, part[repeated]]) for part in (image, text, clusters)]
    assert found(np.concatenate([said, wrong]), *grown).found == ()


def test_pairs_without_a_cluster_are_in_no_group():
    said, image, text, clusters = corpus(0, (3, 8))
    clusters[clusters == PLANTED] = -1
    assert found(said, image, text, clusters).found == ()


def test_groups_and_conditions_select_the_same_pairs():
    kind = Replacements((("l'eau", "feu", 2),), (0.01,), 30, "clusters.cluster").kind
    captions = ["L'eau", "l'eau, feu", "feu", "de l'eau"]
    tokens = [["l'eau"], ["l'eau", "feu"], ["feu"], ["de", "l'eau"]]
    numbers = [2, 2, 2, 1]
    duckdb.execute("CREATE OR REPLACE TEMP TABLE clusters (text TEXT, tokens TEXT[], cluster INT)")
    duckdb.executemany(
        "INSERT INTO clusters VALUES (?, ?, ?)", list(zip(captions, tokens, numbers, strict=True))
    )
    groups = duckdb.execute(f"SELECT {kind.value}[1] FROM clusters").fetchall()
    assert groups == [("2 l'eau feu",), (None,), (None,), (None,)]
    condition = kind.condition("2 l'eau feu")
    assert duckdb.execute(f"SELECT text FROM clusters WHERE {condition}").fetchall() == [("L'eau",)]
    assert kind.label("2 l'eau feu") == "“l'eau” where images show “feu”, in cluster 2"
