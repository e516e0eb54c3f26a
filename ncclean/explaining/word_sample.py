"""Frequent words of a sample of the captions, with the embeddings of the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
from scipy.sparse import csr_matrix

from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.vectors import MOST_PAIRS, read_vectors

_MOST_WORDS = 1024
_MOST_OF_ALL = 0.9  # of the captions


@dataclass(frozen=True)
class WordSample:
    """N pairs with (N, d) images and captions, and (N, W) whether a caption has each word.

    `clusters` (N,) are those of the images.
    """

    words: list[str]
    members: csr_matrix
    image: np.ndarray
    text: np.ndarray
    clusters: np.ndarray


def read_word_sample(
    connection: duckdb.DuckDBPyConnection,
    options: ExplainOptions,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
) -> WordSample | None:
    """Read the frequent words of the view `pairs`; None where there are not two."""
    columns = {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
    if not {"tokens", "key", "caption_number", "cluster"} <= columns:
        return None
    ((count,),) = connection.execute("SELECT count(*) FROM pairs").fetchall()
    one_in = -(-count // MOST_PAIRS)
    sample = f"SELECT * FROM pairs WHERE hash(place) % {one_in} = 0"
    vectors = read_vectors(connection, f"SELECT 0 AS member, * FROM ({sample})", embeddings, keys)
    if not vectors:
        return None
    places, image, text = vectors[0]
    words, members = _words(connection, sample, places, options.min_pairs)
    if len(words) < 2:
        return None
    of_places = connection.execute(f"SELECT place, cluster FROM ({sample})").fetchnumpy()
    order = np.argsort(of_places["place"])
    at = order[np.searchsorted(of_places["place"], places, sorter=order)]
    return WordSample(words, members, image, text, np.ma.filled(of_places["cluster"], -1)[at])


def _words(
    connection: duckdb.DuckDBPyConnection, sample: str, places: np.ndarray, min_pairs: int
) -> tuple[list[str], csr_matrix]:
    """The words to compare, and (N, W) whether the caption at each place has each."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE words_of AS SELECT place, unnest(list_distinct(tokens)) "
        f"AS word FROM ({sample})"
    )
    most = _MOST_OF_ALL * len(places)
    rows = connection.execute(
        "WITH counted AS (SELECT word, count(*) AS pairs FROM words_of GROUP BY word "
        f"HAVING pairs BETWEEN {min_pairs} AND {most} ORDER BY pairs DESC, word "
        f"LIMIT {_MOST_WORDS}) SELECT place, word FROM words_of SEMI JOIN counted USING (word)"
    ).fetchnumpy()
    connection.execute("DROP TABLE words_of")
    words, columns = np.unique(rows["word"].astype(object), return_inverse=True)
    at = np.searchsorted(places, rows["place"])
    is_there = (at < len(places)) & (places[np.minimum(at, len(places) - 1)] == rows["place"])
    members = csr_matrix(
        (np.ones(is_there.sum(), np.float32), (at[is_there], columns[is_there])),
        shape=(len(places), len(words)),
    )
    return [str(word) for word in words], members


def word_means(members: csr_matrix, vectors: np.ndarray) -> np.ndarray:
    """(W, d) mean of the vectors with each word."""
    counts = np.asarray(members.sum(axis=0)).ravel()
    means: np.ndarray = (members.T @ vectors) / np.maximum(counts, 1)[:, None]
    return means


def distinct_images(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first place of each different image, and (N,) which of these each image is.

    An image that is there a thousand times, or has five captions, tells no more than once.
    """
    rows = np.ascontiguousarray(image)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, places, labels = np.unique(keys, return_index=True, return_inverse=True)
    return places, labels.ravel()


def words_of_images(members: csr_matrix, labels: np.ndarray) -> csr_matrix:
    """(images, W): whether a caption of each different image has each word."""
    shape = int(labels.max(initial=-1)) + 1, len(labels)
    ones = np.ones(len(labels), np.float32)
    groups = csr_matrix((ones, (labels, np.arange(len(labels)))), shape=shape)
    return ((groups @ members) > 0).astype(np.float32)
