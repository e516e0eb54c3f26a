r"""Find exchanged words: images fit captions with the other word better.

For words a and b with mean captions T_a, T_b and means I_a, I_b of their images, counting equal
ones once,

    D = (I_a - I_b) . (T_a - T_b)

is above 0 if captions belong to their images, however little an estimator tells about one pair, and
changes its sign if the words were exchanged. It is compared with its error by the covariance S of
the images, z = D / sqrt((T_a - T_b)' S (T_a - T_b) (1/n_a + 1/n_b)).

Other differences between the images of two words move D, too: a host with a style and a phrase of
its own, or whose images show more of a thing than those with its name. So all of this must hold:

- z is the lowest that either word has, and twice as low as with three quarters of other words.
- Both words are in it. With the means of all words subtracted from I and T, D is the sum of I_a .
  (T_a - T_b) and I_b . (T_b - T_a), and of T_a . (I_a - I_b) and T_b . (I_b - I_a). If p_a and p_b
  of the captions should have the other word, the first two are about as 1 - 2 p_a and 1 - 2 p_b. An
  exchange makes each of the four half of D; one is about 0 if three words were exchanged in a
  circle, and above 0 if only one word is mostly wrong. Each must be a fifth of D.
- z is low compared with the other words: if more z are as low than the normal distribution has, the
  error is wider. If a tenth is below 0, the estimator does not distinguish words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm

from ncclean.base.estimates import Estimate
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.discoveries import log_threshold, q_values
from ncclean.explaining.embedded import MOST_PAIRS, Embedded
from ncclean.explaining.kinds import EXCHANGED, TEXT, Kind, word_condition
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs import Values
from ncclean.storage.catalog import columns_of
from ncclean.storage.quoting import quoted

_MOST_WORDS = 1024
_MOST_OF_ALL = 0.9  # of the captions
_LEAST_POSITIVE = 0.9  # of the other pairs of words, for an estimator that distinguishes words
_FEWEST_OTHERS = 20
_LOW = 0.25  # of the z of a word
_LEAST_SHARE = 0.2  # of D, in each of its four parts
# At least half of the captions have the other word, else a part of D would not change its sign. D
# alone does not tell how many: a weak estimator makes it as small as few exchanges do.
_MOST_CAPTIONS = Estimate(math.nan, 0.5, 1.0)
_TAILS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Exchanges:
    """Pairs of words that were exchanged in captions, each with its q-value, the lowest first.

    `tested` counts the pairs of words that were compared.
    """

    words: tuple[tuple[str, str], ...] = ()
    q_values: tuple[float, ...] = ()
    tested: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of group whose values are pairs of words.

        A group has the captions with exactly one of the two words.
        """
        cases = ", ".join(
            f"CASE WHEN list_contains(tokens, {quoted(a)}) != list_contains(tokens, {quoted(b)}) "
            f"THEN {quoted(f'{a} {b}')} END"
            for a, b in self.words
        )
        return Kind(EXCHANGED, TEXT, f"[{cases}]", ("tokens",), _condition, _label, several=True)

    def candidates(self, values: Values) -> list[Candidate]:
        """Return a candidate cause for each pair of words: of near misses, if the table has these.

        Else it is one of mismatches.
        """
        names = [outcome.name for outcome in values.outcomes]
        outcome = names.index("near miss") if "near miss" in names else 0
        required = values.required(outcome)
        spread = (0.0,) * len(required.columns)
        kind = self.kind
        return [
            Candidate(kind, f"{a} {b}", outcome, required, spread, np.inf, q_value, _MOST_CAPTIONS)
            for (a, b), q_value in zip(self.words, self.q_values, strict=True)
        ]


def _condition(value: str) -> str:
    a, b = value.split(" ")
    return f"({word_condition(a)}) != ({word_condition(b)})"


def _label(value: str) -> str:
    return " and ".join(f"“{word}”" for word in value.split(" "))


def find_exchanges(
    connection: duckdb.DuckDBPyConnection, options: ExplainOptions, embedded: Embedded
) -> Exchanges:
    """Find words that were exchanged, among the frequent words of the view `pairs`.

    Compares a sample of the pairs by their embeddings. Finds none if the pairs have no captions.
    """
    if not {"tokens", "key", "caption_number"} <= set(columns_of(connection, "pairs")):
        return Exchanges()
    ((count,),) = connection.execute("SELECT count(*) FROM pairs").fetchall()
    one_in = -(-count // MOST_PAIRS)
    sample = f"SELECT * FROM pairs WHERE hash(place) % {one_in} = 0"
    vectors = embedded.vectors(connection, f"SELECT 0 AS member, * FROM ({sample})")
    if not vectors:
        return Exchanges()
    places, image, text = vectors[0]
    words, members = _words(connection, sample, places, options.min_pairs)
    if len(words) < 2:
        return Exchanges()
    statistics = _statistics(members, image, text, options.min_pairs)
    return _significant(words, statistics, options.false_discoveries)


def _words(
    connection: duckdb.DuckDBPyConnection, sample: str, places: np.ndarray, min_pairs: int
) -> tuple[list[str], csr_matrix]:
    """Return the words to compare, and (N, W) whether the caption at each place has each."""
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


@dataclass(frozen=True)
class _Statistics:
    """(P,) numbers of two words, their z, and the smallest share of D in one of its parts."""

    first: np.ndarray
    second: np.ndarray
    z: np.ndarray
    share: np.ndarray

    def are_exchange_like(self, words: int) -> np.ndarray:
        """Return (P,): whether all but the size of z suggests an exchange; at most one per word."""
        table = np.full((words, words), np.nan)
        table[self.first, self.second] = table[self.second, self.first] = self.z
        lowest, low = np.full(words, np.nan), np.full(words, np.nan)
        for word in np.flatnonzero(~np.isnan(table).all(axis=1)):
            lowest[word] = np.nanmin(table[word])
            low[word] = np.nanquantile(table[word], _LOW)
        is_lowest = (self.z == lowest[self.first]) & (self.z == lowest[self.second])
        is_apart = self.z / 2 < np.minimum(low[self.first], low[self.second])
        exchange_like: np.ndarray = (
            (self.z < 0) & is_lowest & is_apart & (self.share >= _LEAST_SHARE)
        )
        return exchange_like


def _statistics(
    members: csr_matrix, image: np.ndarray, text: np.ndarray, min_pairs: int
) -> _Statistics:
    """Compare all words, each with enough images without the other."""
    of_texts = _means(members, text.astype(np.float32))
    image, members = _distinct(image, members)
    image = image.astype(np.float32)
    image -= image.mean(axis=0)
    of_images = _means(members, image)
    counts = np.asarray(members.sum(axis=0)).ravel().astype(float)
    of_texts -= of_texts.mean(axis=0)
    of_images -= of_images.mean(axis=0)
    covariance = image.T @ image / len(image)
    products, spread = of_images @ of_texts.T, of_texts @ covariance @ of_texts.T
    both = np.asarray((members.T @ members).todense())
    first, second = np.triu_indices(len(counts), 1)
    alone = np.minimum(counts[first], counts[second]) - both[first, second]
    first, second = first[alone >= min_pairs], second[alone >= min_pairs]

    def parts(matrix: np.ndarray) -> np.ndarray:
        own = matrix.diagonal()
        one, other = matrix[first, second], matrix[second, first]
        return np.stack([own[first] - other, own[second] - one, own[first] - one])

    of_first, of_second, of_image = parts(products)
    difference = of_first + of_second
    error = parts(spread)[:2].sum(axis=0) * (1 / counts[first] + 1 / counts[second])
    z = difference / np.sqrt(np.maximum(error, 1e-20))
    shares = np.stack([of_first, of_image]) / np.where(difference == 0, np.inf, difference)
    return _Statistics(first, second, z, np.minimum(shares, 1 - shares).min(axis=0))


def _means(members: csr_matrix, vectors: np.ndarray) -> np.ndarray:
    """(W, d) mean of the vectors with each word."""
    counts = np.asarray(members.sum(axis=0)).ravel()
    means: np.ndarray = (members.T @ vectors) / np.maximum(counts, 1)[:, None]
    return means


def _distinct(image: np.ndarray, members: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """Return the distinct images, and whether a caption of each has each word.

    An image repeated a thousand times, or with five captions, counts once.
    """
    rows = np.ascontiguousarray(image)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, places, labels = np.unique(keys, return_index=True, return_inverse=True)
    shape = len(places), len(image)
    groups = csr_matrix(
        (np.ones(len(image), np.float32), (labels.ravel(), np.arange(len(image)))), shape=shape
    )
    return image[places], ((groups @ members) > 0).astype(np.float32)


def _significant(words: Sequence[str], statistics: _Statistics, rate: float) -> Exchanges:
    """Return the exchanges among the tests."""
    first, second, z = statistics.first, statistics.second, statistics.z
    are_like = statistics.are_exchange_like(len(words))
    candidates = np.flatnonzero(are_like)
    log_p = np.zeros(len(candidates))
    for number, place in enumerate(candidates):
        pair = (first[place], second[place])
        others = z[~(np.isin(first, pair) | np.isin(second, pair) | are_like)]
        if len(others) >= _FEWEST_OTHERS and (others > 0).mean() >= _LEAST_POSITIVE:
            scale = max(1.0, (np.quantile(others, _TAILS) / norm.ppf(_TAILS)).max())
            log_p[number] = norm.logcdf(z[place] / scale)
    threshold = log_threshold(log_p, len(z), rate)
    of_tests = q_values(log_p, len(z))
    significant = [
        number for number in np.argsort(log_p, kind="stable") if log_p[number] <= threshold
    ]
    pairs = tuple((words[first[at]], words[second[at]]) for at in candidates[significant])
    return Exchanges(pairs, tuple(map(float, of_tests[significant])), len(z))
