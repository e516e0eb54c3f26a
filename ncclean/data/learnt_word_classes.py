"""Learn word classes from captions: words in the same contexts are interchangeable.

A context is a word's surroundings: both neighbours, the two tokens before, or the two after (the
frames of Mintz, Cognition 90, 2003). Words are vectors of positive pointwise mutual information
over contexts, and classes are their clusters by cosine. This needs no model and no particular
language, only blanks between words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from scipy import sparse

from ncclean.data.word_classes import WORD, WordClasses, folded

VERSION = 2  # increase when the same captions yield other classes
CAPTIONS, CHARACTERS = 40_000, 4_000_000  # to learn from
_LONGEST = 2_000  # characters of a caption that count
_COPIES = 10  # counted copies of one caption: too few to make a class
_FEWEST = 20  # captions with a word; rarer words are in no class
_MOST_WORDS = 2_000
_LEAST_COSINE = 0.12  # mean cosine between two clusters' words to merge them
_SMOOTHING = 0.75  # exponent of context frequencies, as in word2vec
_EDGE = ""  # the token around a caption
_TOKEN = re.compile(rf"(?P<word>{WORD.pattern})|[^\w\s]")


def learn_word_classes(captions: Iterable[str]) -> WordClasses:
    """Learn classes of words from captions; none if there are too few of them.

    The order of the captions does not matter unless there are more than `CAPTIONS`, or more than
    `CHARACTERS` in them: further ones are not read.
    """
    tokens, words = _tokens(captions)
    if len(words) < 2:
        return WordClasses({})
    # Imported here: together they take .7 s, and every scoring process imports this module.
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    counts = _counts(tokens, words)
    cosines = _cosines(counts)
    distances = np.clip(1 - cosines, 0, 1)
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    clusters: dict[int, list[str]] = {}
    for word, number in zip(words, fcluster(tree, 1 - _LEAST_COSINE, "distance"), strict=True):
        clusters.setdefault(number, []).append(word)
    several = [cluster for cluster in clusters.values() if len(cluster) > 1]
    return WordClasses({cluster[0]: [((word,),) for word in cluster] for cluster in several})


def _tokens(captions: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    """Return the tokens of captions with two edges on each side, and frequent words first."""
    copies: Counter[str] = Counter()
    frequency: Counter[str] = Counter()
    tokens: list[list[str]] = []
    left = CHARACTERS
    for caption in captions:
        text = folded(caption[:_LONGEST])
        left -= len(text)
        if len(tokens) == CAPTIONS or left < 0:
            break
        copies[text] += 1
        if copies[text] > _COPIES:
            continue
        matches = list(_TOKEN.finditer(text))
        frequency.update({match[0] for match in matches if match["word"]})
        tokens.append([_EDGE, _EDGE, *(match[0] for match in matches), _EDGE, _EDGE])
    words = sorted((word for word, n in frequency.items() if n >= _FEWEST))
    words.sort(key=lambda word: -frequency[word])
    return tokens, words[:_MOST_WORDS]


def _counts(tokens: list[list[str]], words: list[str]) -> sparse.csr_matrix:
    """Return (w, p) counts of word i in context j, for contexts with at least two words."""
    numbers = {word: number for number, word in enumerate(words)}
    flat = np.array(
        [numbers.setdefault(token, len(numbers)) for caption in tokens for token in caption]
    )
    caption = np.repeat(np.arange(len(tokens)), [len(one) for one in tokens])
    at = np.flatnonzero(flat < len(words))
    kinds = (flat[at - 1], flat[at + 1]), (flat[at - 2], flat[at - 1]), (flat[at + 1], flat[at + 2])
    size = len(numbers)
    places = np.concatenate([(n * size + a) * size + b for n, (a, b) in enumerate(kinds)])
    distinct, place = np.unique(places, return_inverse=True)
    pairs = place * len(words) + np.tile(flat[at], len(kinds))
    pairs = np.unique(pairs * len(tokens) + np.tile(caption[at], len(kinds)))
    columns, rows = np.divmod(pairs // len(tokens), len(words))
    matrix = sparse.csr_matrix(
        (np.ones(len(rows)), (rows, columns)), shape=(len(words), len(distinct))
    )
    matrix.sum_duplicates()
    return matrix[:, np.asarray((matrix > 0).sum(axis=0)).ravel() > 1]


def _cosines(counts: sparse.csr_matrix) -> np.ndarray:
    """Return (w, w) cosines of words by positive pointwise mutual information with contexts."""
    of_word = np.asarray(counts.sum(axis=1)).ravel()
    of_place = np.asarray(counts.sum(axis=0)).ravel() ** _SMOOTHING
    matrix = counts.tocoo()
    share = of_place[matrix.col] / of_place.sum()
    matrix.data = np.log(matrix.data / of_word[matrix.row] / share).clip(0)
    matrix = matrix.tocsr()
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    matrix = sparse.diags(1 / np.maximum(norms, 1e-12)) @ matrix
    return np.asarray((matrix @ matrix.T).toarray())
