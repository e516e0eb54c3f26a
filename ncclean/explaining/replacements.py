r"""A word that stands for another in some captions: images show the other where captions have it.

With f_a and f_b, the products of images with what words a and b add to captions, by a regression of
the captions' embeddings on their words, captions without b have a more often the larger f_a is, and
no more often the larger f_b is. Where a stands for b in some of them, they do. In the regression
over the captions without b,

    (a is in the caption) = alpha + beta_a f_a + beta_b f_b,

beta_b is about 0 otherwise; z is beta_b by its error. Captions of other images change nothing: they
depend on neither. What makes beta_b large for another reason is left out:

- Words that go together, as their things do: two words must be in one caption less often than their
  frequencies say.
- Words that images do not tell apart, as synonyms: f_a and f_b must each be larger by half a
  deviation in captions with the own word than in those with the other.
- f_a tells of a in part, and f_b may tell the rest. As for exchanged words, where more z of other
  words are as large as the normal distribution has, the error is wider. That takes some 200 z:
  twenty words or so.

The group is an image cluster in which at least half of the captions with a are in excess of what
alpha + beta_a f_a explains, and have images nearer to those of b than of a. Of several, that with
the surest excess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm

from ncclean.explaining.candidates import Candidate, of_wrong_words
from ncclean.explaining.discoveries import tail_scale
from ncclean.explaining.kinds import PAIR, REPLACED, Kind, word_condition
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs_file import Values
from ncclean.explaining.word_sample import (
    WordSample,
    distinct_images,
    words_of_images,
)
from ncclean.storage.quoting import quoted

_RIDGE = 10.0  # captions
_TOLD_APART = 0.5  # deviations
_INDEPENDENT = 1e-3  # the least squared sine between f_a and f_b
_FEWEST_OTHERS = 200  # of which the spread can be told
_LOW = 0.2  # of f_b: images that do not show it
_HALF = 0.5
_SURE = 1.96


@dataclass(frozen=True)
class Replacements:
    """In images of cluster c, a stands for b: (a, b, c) and the q-value of each, the surest first.

    `cluster` is the SQL of the number, `tested` counts the ordered pairs of words.
    """

    found: tuple[tuple[str, str, int], ...] = ()
    q_values: tuple[float, ...] = ()
    tested: int = 0
    cluster: str = "cluster"

    @property
    def kind(self) -> Kind:
        """The kind of group whose values are `c a b`: captions of cluster c with a, without b."""
        cases = ", ".join(
            f"CASE WHEN cluster = {c} AND list_contains(tokens, {quoted(a)}) "
            f"AND NOT list_contains(tokens, {quoted(b)}) THEN {quoted(f'{c} {a} {b}')} END"
            for a, b, c in self.found
        )
        columns = ("tokens", "cluster")
        return Kind(REPLACED, PAIR, f"[{cases}]", columns, self._condition, _label, several=True)

    def _condition(self, value: str) -> str:
        number, a, b = value.split(" ")
        words = f"{word_condition(a)} AND NOT {word_condition(b)}"
        return f"{self.cluster} = {int(number)} AND {words}"

    def candidates(self, values: Values) -> list[Candidate]:
        """A cause of wrong words for each."""
        found = zip(self.found, self.q_values, strict=True)
        return of_wrong_words(
            self.kind,
            values,
            (
                (f"{c} {a} {b}", q_value, f"“{a}” is said where images show “{b}”")
                for (a, b, c), q_value in found
            ),
            least=0.0,
        )


def _label(value: str) -> str:
    number, a, b = value.split(" ")
    return f"“{a}” where images show “{b}”, in cluster {number}"


def find_replacements(sample: WordSample, cluster: str, options: ExplainOptions) -> Replacements:
    """Compare the words of a sample of the captions; `cluster` is the SQL of the image cluster."""
    of_texts = _added(sample.members, sample.text.astype(np.float32))
    places, labels = distinct_images(sample.image)
    members = words_of_images(sample.members, labels)
    f = _fit(sample.image[places].astype(np.float32), of_texts)
    z = _statistics(members, f, options.min_pairs)
    columns = members.tocsc()
    found, of_tests = [], []
    for a, b, q_value in _significant(z, options.false_discoveries):
        has = columns[:, [a, b]].toarray() > 0
        where = _where(has, f[:, [a, b]], sample.clusters[places], options.min_pairs)
        if where is not None:
            found.append((sample.words[a], sample.words[b], where))
            of_tests.append(q_value)
    return Replacements(tuple(found), tuple(of_tests), int(np.isfinite(z).sum()), cluster)


def _added(members: csr_matrix, text: np.ndarray) -> np.ndarray:
    """(W, d) what each word adds to the embedding of a caption, by ridge regression."""
    counts = np.asarray(members.sum(axis=0, dtype=float)).ravel()
    both = np.asarray((members.T @ members).todense(), float)
    both -= np.outer(counts, counts) / len(text)
    products = members.T @ (text - text.mean(axis=0))
    return np.linalg.solve(both + _RIDGE * np.eye(len(counts)), products).astype(np.float32)


def _fit(image: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
    """(N, W) products of the images with what the words add, of deviation 1."""
    f: np.ndarray = (image - image.mean(axis=0)) @ of_texts.T
    f -= f.mean(axis=0)
    f /= np.maximum(f.std(axis=0), 1e-12)
    return f


def _statistics(members: csr_matrix, f: np.ndarray, min_pairs: int) -> np.ndarray:
    """(W, W) z of the words a by b, nan where they are not compared.

    The sums over the captions without b are those over all less those over the captions with b.
    """
    counts = np.asarray(members.sum(axis=0, dtype=float)).ravel()
    both = np.asarray((members.T @ members).todense(), float)
    of_words = np.asarray(members.T @ f, float)  # sums of f_b, columns, with a, rows
    means = of_words / np.maximum(counts, 1)[:, None]
    own = means.diagonal()
    is_apart = np.minimum(own[:, None] - means.T, own - means) > _TOLD_APART
    is_rare = both * len(f) < np.outer(counts, counts)
    products, total = (f.T @ f).astype(float), f.sum(axis=0, dtype=float)
    z = np.full(both.shape, np.nan)
    columns = members.tocsc()
    for b in range(len(counts)):
        rows = columns.indices[columns.indptr[b] : columns.indptr[b + 1]]
        left, alone = len(f) - len(rows), counts - both[:, b]
        if left < min_pairs:
            continue
        part, words = f[rows], members[rows]
        sums = total - part.sum(axis=0, dtype=float)
        with_own = np.asarray(words.multiply(part).sum(axis=0)).ravel()
        aa = products.diagonal() - np.square(part).sum(axis=0, dtype=float) - sums**2 / left
        ab = products[b] - part.T @ part[:, b] - sums * sums[b] / left
        ya = of_words.diagonal() - with_own - alone * sums / left
        yb = of_words[:, b] - words.T @ part[:, b] - alone * sums[b] / left
        determinant = aa * aa[b] - ab**2
        compared = (alone >= min_pairs) & is_apart[:, b] & is_rare[:, b]
        compared &= determinant > _INDEPENDENT * aa * aa[b]
        determinant = np.where(compared, determinant, 1.0)
        beta_a, beta_b = (aa[b] * ya - ab * yb) / determinant, (aa * yb - ab * ya) / determinant
        rest = alone * (1 - alone / left) - beta_a * ya - beta_b * yb
        error = np.sqrt(np.maximum(rest, 1e-9) / left * np.maximum(aa, 0) / determinant)
        z[compared, b] = (beta_b / np.maximum(error, 1e-12))[compared]
    return z


def _significant(z: np.ndarray, rate: float) -> list[tuple[int, int, float]]:
    """The words of which a stands for b, with the q-value; no word is in two of these."""
    first, second = np.nonzero(np.isfinite(z))
    values = z[first, second]
    order = np.argsort(-values, kind="stable")
    log_p = np.zeros(len(values))
    used: set[int] = set()
    for at in order[values[order] > 0]:
        pair = [int(first[at]), int(second[at])]
        if used.isdisjoint(pair):
            used.update(pair)
            others = values[~(np.isin(first, pair) | np.isin(second, pair))]
            if len(others) >= _FEWEST_OTHERS:
                log_p[at] = norm.logsf(values[at] / tail_scale(-others))
    # Bonferroni's bound holds for tests of any dependence, and few are ever found.
    of_tests = np.exp(np.minimum(log_p + math.log(max(len(values), 1)), 0.0))
    return [
        (int(first[at]), int(second[at]), float(of_tests[at]))
        for at in order
        if of_tests[at] <= rate
    ]


def _where(has: np.ndarray, f: np.ndarray, clusters: np.ndarray, min_pairs: int) -> int | None:
    """The cluster where a stands for b; None if there is none.

    `has` (n, 2) says whether captions have a and b, `f` (n, 2) is f_a and f_b.
    """
    without = ~has[:, 1]
    design = np.column_stack([np.ones(len(f)), f])[without]
    slopes = np.linalg.lstsq(design, has[without, 0].astype(float), rcond=None)[0]
    excess = np.zeros(len(f))
    excess[without] = has[without, 0] - design[:, :2] @ slopes[:2]
    excess[without] -= slopes[2] * np.quantile(f[without, 1], _LOW)
    of_a, of_b = f[without & has[:, 0]], f[has[:, 1] & ~has[:, 0]]
    spread = np.cov(of_a.T) + np.cov(of_b.T)
    direction = np.linalg.lstsq(spread, of_b.mean(axis=0) - of_a.mean(axis=0), rcond=None)[0]
    nearer = (f - of_a.mean(axis=0)) @ direction
    nearer /= (of_b.mean(axis=0) - of_a.mean(axis=0)) @ direction  # 0 as images of a, 1 as of b
    best, found = 0.0, None
    for cluster in np.unique(clusters[clusters >= 0]):
        inside = clusters == cluster
        own = nearer[inside & without & has[:, 0]]
        if len(own) < min_pairs:
            continue
        more = excess[inside].sum()
        least = own.mean() - _SURE * own.std() / np.sqrt(len(own))
        if more >= _HALF * len(own) and least >= _HALF and more / np.sqrt(len(own)) > best:
            best, found = more / np.sqrt(len(own)), int(cluster)
    return found
