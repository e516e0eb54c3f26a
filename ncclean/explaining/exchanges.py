r"""Two words that stand for each other: images fit captions with the other word better.

For words a and b with mean images I_a, I_b and mean captions T_a, T_b of the pairs that have them,

    D = (I_a - I_b) . (T_a - T_b)

is above 0 where captions belong to their images, however little an estimator tells of one pair, and
changes its sign where the words were exchanged. With the covariance S of the images it is compared
with its error, z = D / sqrt((T_a - T_b)' S (T_a - T_b) (1/n_a + 1/n_b)).

What else differs between the images of two words moves D too. How much is seen at the other words:
where more z are as low as this than the normal distribution has, the error is wider. Where a tenth
is below 0, the estimator does not tell words apart, and nothing is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm

from ncclean.estimates import Estimate
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.discoveries import log_threshold, q_values
from ncclean.explaining.kinds import TEXT, Kind, word_condition
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs_file import Values
from ncclean.explaining.vectors import read_vectors
from ncclean.storage.quoting import quoted

NAME = "exchanged words"
_MOST_PAIRS = 100_000  # more tell little more
_MOST_WORDS = 1024
_MOST_OF_ALL = 0.9  # of the captions
_LEAST_POSITIVE = 0.9  # of the other pairs of words, for an estimator that tells words apart
_FEWEST_OTHERS = 20
# Half of the captions at least have the other word, else D would not change its sign.
_MOST_CAPTIONS = Estimate(1.0, 0.5, 1.0)
_TAILS = (0.01, 0.05, 0.1)  # few enough for the echoes of other exchanges not to reach them


@dataclass(frozen=True)
class Exchanges:
    """The pairs of words that were exchanged, each with its q-value, the surest first.

    `tested` counts the pairs of words that were compared.
    """

    words: tuple[tuple[str, str], ...] = ()
    q_values: tuple[float, ...] = ()
    tested: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of group whose values are the pairs of words: captions with one of the two."""
        cases = ", ".join(
            f"CASE WHEN list_contains(tokens, {quoted(a)}) != list_contains(tokens, {quoted(b)}) "
            f"THEN {quoted(f'{a} {b}')} END"
            for a, b in self.words
        )
        return Kind(NAME, TEXT, f"[{cases}]", ("tokens",), _condition, _label, several=True)

    def candidates(self, values: Values) -> list[Candidate]:
        """A cause of near misses for each; of mismatches where the table does not tell others."""
        names = [outcome.name for outcome in values.outcomes]
        outcome = names.index("near miss") if "near miss" in names else 0
        required = values.required(outcome, TEXT)
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
    connection: duckdb.DuckDBPyConnection,
    options: ExplainOptions,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
) -> Exchanges:
    """Compare the frequent words of the view `pairs` by a sample of their embeddings."""
    columns = {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}
    if not {"tokens", "key", "caption_number"} <= columns:
        return Exchanges()
    ((count,),) = connection.execute("SELECT count(*) FROM pairs").fetchall()
    one_in = -(-count // _MOST_PAIRS)
    sample = f"SELECT * FROM pairs WHERE hash(place) % {one_in} = 0"
    vectors = read_vectors(connection, f"SELECT 0 AS member, * FROM ({sample})", embeddings, keys)
    if not vectors:
        return Exchanges()
    places, image, text = vectors[0]
    words, members = _words(connection, sample, places, options.min_pairs)
    if len(words) < 2:
        return Exchanges()
    first, second, z = _statistics(members, image, text, options.min_pairs)
    return _significant(words, first, second, z, options.false_discoveries)


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


def _statistics(
    members: csr_matrix, image: np.ndarray, text: np.ndarray, min_pairs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of two words and z, for all that each have enough captions without the other."""
    by_word = members.T.tocsr()
    counts = np.asarray(members.sum(axis=0)).ravel().astype(float)
    image = image.astype(np.float32)
    of_images = (by_word @ image) / np.maximum(counts, 1)[:, None]
    of_texts = (by_word @ text.astype(np.float32)) / np.maximum(counts, 1)[:, None]
    centred = image - image.mean(axis=0)
    covariance = centred.T @ centred / len(image)
    products, spread = of_images @ of_texts.T, of_texts @ covariance @ of_texts.T
    both = np.asarray((by_word @ members).todense())
    first, second = np.triu_indices(len(counts), 1)
    alone = np.minimum(counts[first], counts[second]) - both[first, second]
    first, second = first[alone >= min_pairs], second[alone >= min_pairs]

    def difference(matrix: np.ndarray) -> np.ndarray:
        diagonal = matrix.diagonal()
        crossed = matrix[first, second] + matrix[second, first]
        result: np.ndarray = diagonal[first] + diagonal[second] - crossed
        return result

    error = difference(spread) * (1 / counts[first] + 1 / counts[second])
    return first, second, difference(products) / np.sqrt(np.maximum(error, 1e-20))


def _significant(
    words: Sequence[str], first: np.ndarray, second: np.ndarray, z: np.ndarray, rate: float
) -> Exchanges:
    """The exchanges among the tests; a word that is in a surer one is in no other."""
    candidates = np.flatnonzero(z < 0)
    candidates = candidates[np.argsort(z[candidates], kind="stable")][:_MOST_WORDS]
    log_p = np.zeros(len(candidates))
    for number, place in enumerate(candidates):
        pair = (first[place], second[place])
        others = z[~(np.isin(first, pair) | np.isin(second, pair))]
        if len(others) >= _FEWEST_OTHERS and (others > 0).mean() >= _LEAST_POSITIVE:
            scale = max(1.0, (np.quantile(others, _TAILS) / norm.ppf(_TAILS)).max())
            log_p[number] = norm.logcdf(z[place] / scale)
    threshold = log_threshold(log_p, len(z), rate)
    of_tests = q_values(log_p, len(z))
    taken: set[int] = set()
    found = []
    for number in np.argsort(log_p, kind="stable"):
        pair = (int(first[candidates[number]]), int(second[candidates[number]]))
        if log_p[number] <= threshold and not taken & {*pair}:
            taken |= {*pair}
            found.append(((words[pair[0]], words[pair[1]]), float(of_tests[number])))
    return Exchanges(tuple(pair for pair, _ in found), tuple(q for _, q in found), len(z))
