"""`--words`: compare each word of a caption with others of its class, and known near misses.

For each caption, the few exchanges that seem to gain most are encoded, and one drawn at random: a
caption known to have one wrong word. The scores of the latter are the null of near misses, as the
captions of other pairs are the null of mismatches.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from ncclean.base import schema
from ncclean.base.config import FROM_CORPUS, ScoreOptions
from ncclean.data.learnt_word_classes import VERSION
from ncclean.data.word_classes import Place, WordClasses, cased, exchanged, folded
from ncclean.errors import InputError
from ncclean.execution.column_source import ColumnSource, EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.models.estimator import Estimator, ModelIdentity
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.near_miss import (
    MISMATCHES_BELOW,
    Exchanges,
    ExpectedSimilarity,
    margin_after,
    may_be_told_apart,
    word_margin,
)
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions

_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class _Checked:
    """The exchanges of a caption: the word, its replacement, and the estimated gain of each."""

    row: int
    places: Sequence[Place]
    words: Sequence[str]
    exchanges: Exchanges
    tried: np.ndarray
    drawn: int

    def variant(self, caption: str, number: int) -> str:
        return exchanged(caption, self.places[number], self.words[number])


@dataclass(frozen=True)
class WordChecks(ColumnSource):
    """The columns of `--words`: whether a caption's words fit its image better than others.

    Words are exchanged with others of their class, `per_caption` for each caption. `classes` is
    None for those learned from the corpus.
    """

    classes: WordClasses | None
    per_caption: int
    seed: int
    flag = "--words"
    options = ("words", "words_per_caption", "word_classes")
    follows_scores = True
    types: ClassVar[Mapping[str, pa.DataType]] = schema.WORD_TYPES
    _vectors: dict[ModelIdentity, torch.Tensor] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, options: ScoreOptions) -> WordChecks | None:
        """Return the column source of `--words`, None without it.

        Raises `InputError` for bad word classes.
        """
        if not options.words:
            return None
        path = options.word_classes
        classes = None
        if path != FROM_CORPUS:
            classes = WordClasses.bundled() if path is None else WordClasses.load(path)
        return cls(classes, options.words_per_caption, options.seed)

    @functools.cached_property
    def version(self) -> str:
        """Return a digest of the word classes; for those of the corpus, the version of learning."""
        if self.classes is None:
            return f"{FROM_CORPUS} {VERSION}"
        text = repr(self.classes.classes).encode()
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def identity(self) -> Mapping[str, Any]:
        """Return the digest of the word classes, and the number of exchanges for each caption."""
        return {"words": self.version, "words_per_caption": self.per_caption}

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` for embeddings: there is no model to encode changed captions."""
        if encoder.estimator is None:
            raise InputError(
                "--words encodes altered captions, which takes a model: score the images instead "
                "of their embeddings"
            )

    def further_texts(self, captions: Sequence[str], encoder: EncoderFacts) -> Sequence[str]:
        """Return a text for each exchange of a word in captions, and for each drawn exchange."""
        classes = self.classes
        tried = [text for text in captions if classes is None or classes.places(text)]
        return [f"{text} {number}" for text in tried for number in range(self.per_caption + 1)]

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Look for a wrong word in each caption; null for a caption without words of the classes.

        With `--caption-parts`, looks in the worst part of each. The scores of pairs and of known
        near misses are added to the shard's histograms.
        """
        estimator = encoder.estimator
        assert scores is not None
        assert estimator is not None
        image = shard.image
        captions, text = _checked_texts(shard, estimator, encoder.batch_size)
        similarity = (image.float() * text.float()).sum(dim=1)
        classes = self.classes if self.classes is not None else encoder.corpus.word_classes
        assert classes is not None
        checked = list(self._checked(classes, image, captions, shard.name, estimator))
        if not checked:
            scores.distributions.scores["near_miss_score"] = Distributions()
            return _columns(len(captions), {})
        variants = [
            check.variant(captions[check.row], number)
            for check in checked
            for number in (*check.tried.tolist(), check.drawn)
        ]
        encoded = estimator.encode_text(variants, encoder.batch_size)
        counts = [len(check.tried) + 1 for check in checked]
        rows = torch.tensor([check.row for check in checked], device=image.device)
        of_variant = rows.repeat_interleave(torch.tensor(counts, device=image.device))
        cosines = (image[of_variant].float() * encoded.float()).sum(dim=1)
        last = torch.tensor(np.cumsum(counts) - 1, device=image.device)
        expected = ExpectedSimilarity.fit(text, similarity)
        residual = expected.residual[rows].cpu().numpy()
        residual_after = expected.residual_of(encoded[last], cosines[last], rows).cpu().numpy()
        pair_cos = similarity[rows].cpu().numpy()
        pieces = np.split(cosines.cpu().numpy(), np.cumsum(counts)[:-1])
        by_row: dict[str, dict[int, object]] = {name: {} for name in schema.WORD_TYPES}
        margins, margins_after = np.empty(len(checked)), np.full(len(checked), np.nan)
        for number, (check, piece) in enumerate(zip(checked, pieces, strict=True)):
            margin = word_margin(pair_cos[number], piece[:-1])
            margins[number] = margin + residual[number]
            by_row["word_margin"][check.row] = margin
            by_row["near_miss_score"][check.row] = margins[number]
            if margin < 0:
                best = int(check.tried[piece[:-1].argmax()])
                by_row["suspect_word"][check.row] = check.places[best].word
                by_row["better_word"][check.row] = cased(check.words[best], check.places[best])
            after = margin_after(
                check.exchanges, check.drawn, check.tried, piece[:-1], pair_cos[number], piece[-1],
                self.per_caption,
            )  # fmt: skip
            if after is not None:
                margins_after[number] = after + residual_after[number]
        drawn = np.array([piece[-1] for piece in pieces])
        enough = _quantile(scores.distributions.mismatched, MISMATCHES_BELOW)
        counted = (pair_cos >= enough) & ~np.isnan(margins_after)
        scores.distributions.scores["near_miss_score"] = Distributions(
            matched=_histogram(margins[counted]),
            mismatched=_histogram(margins_after[counted & (drawn >= enough)]),
        )
        return _columns(len(captions), by_row)

    def _checked(
        self,
        classes: WordClasses,
        image: torch.Tensor,
        captions: Sequence[str],
        shard: str,
        estimator: Estimator,
    ) -> Iterator[_Checked]:
        """Return the captions that have a word of a class, with their exchanges."""
        vectors, number_of = self._word_vectors(classes, estimator)
        digest = hashlib.blake2b(shard.encode(), digest_size=8).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(digest, "little")])
        places_of = [classes.places(caption) for caption in captions]
        told = _told(image, places_of, vectors, number_of)
        for rows in torch.arange(len(captions)).split(_ROWS_AT_A_TIME):
            fits = (image[rows.to(image.device)].float() @ vectors.T).cpu().numpy()
            for row, fit in zip(rows.tolist(), fits, strict=True):
                checks = [
                    (place, other[0])
                    for place in places_of[row]
                    if (place.word_class, place.form) in told
                    for other in classes.others(place)
                ]
                if not checks:
                    continue
                places, words = zip(*checks, strict=True)
                to = np.array([number_of[word] for word in words])
                instead_of = np.array([number_of[folded(place.word)] for place in places])
                exchanges = Exchanges(
                    np.array([place.start for place in places]), fit[to] - fit[instead_of]
                )
                # The estimator cannot see an error in a word that it cannot tell from the right
                # one.
                apart = (vectors[to] - vectors[instead_of]).norm(dim=1).cpu().numpy()
                drawn = _drawn(apart, rng.random())
                yield _Checked(
                    row, places, words, exchanges, exchanges.best(self.per_caption), drawn
                )

    def _word_vectors(
        self, classes: WordClasses, estimator: Estimator
    ) -> tuple[torch.Tensor, dict[str, int]]:
        """Return (w, d) embeddings of the single words, and the number of each."""
        words = list(classes)
        if estimator.identity not in self._vectors:
            self._vectors.clear()
            self._vectors[estimator.identity] = estimator.encode_text(words).float()
        return self._vectors[estimator.identity], {word: n for n, word in enumerate(words)}


def _checked_texts(
    shard: EncodedShard, estimator: Estimator, batch_size: int
) -> tuple[list[str], torch.Tensor]:
    """Return the texts in which to look for wrong words, and their (m, d) embeddings."""
    captions, text = [caption or "" for caption in shard.captions], shard.text
    if "worst_part" not in shard.values:
        return captions, text
    counts = shard.values["part_count"].to_pylist()
    several = [row for row, count in enumerate(counts) if count > 1]
    worst = shard.values["worst_part"].to_pylist()
    for row in several:
        captions[row] = worst[row]
    if several:
        text = text.clone()
        text[several] = estimator.encode_text([captions[row] for row in several], batch_size)
    return captions, text


def _told(
    image: torch.Tensor,
    places_of: Sequence[Sequence[Place]],
    vectors: torch.Tensor,
    number_of: Mapping[str, int],
) -> set[tuple[str, int]]:
    """Return the classes, each with a form, whose words the estimator can distinguish.

    `image` (n, d) belongs to the places of n captions, `vectors` (w, d) to the words.
    """
    captions: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for row, places in enumerate(places_of):
        for place in places:
            of_class = captions.setdefault((place.word_class, place.form), [])
            if len(of_class) < _ROWS_AT_A_TIME:
                of_class.append((row, number_of[folded(place.word)], place.meaning))
    told = set()
    for key, of_class in captions.items():
        rows, own, meanings = np.array(of_class).T
        words, word = np.unique(own, return_inverse=True)
        meaning = np.empty(len(words), np.int64)
        meaning[word] = meanings
        centred = image[torch.from_numpy(rows).to(image.device)].float()
        centred -= centred.mean(dim=0)
        fit = (centred @ vectors[torch.from_numpy(words).to(vectors.device)].T).cpu().numpy()
        if may_be_told_apart(fit, word, meaning):
            told.add(key)
    return told


def _drawn(weights: np.ndarray, uniform: float) -> int:
    """Draw an index in proportion to the weights, by a number in [0, 1).

    Uses float64: the sum of float32 weights can exceed the last of their running sums.
    """
    reached = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(reached, uniform * reached[-1])), len(weights) - 1)


def _columns(count: int, by_row: Mapping[str, Mapping[int, object]]) -> dict[str, pa.Array]:
    """Return (n,) columns of the parts from values by row; null without one."""
    return {
        name: pa.array([by_row.get(name, {}).get(row) for row in range(count)], kind)
        for name, kind in schema.WORD_TYPES.items()
    }


def _histogram(scores: np.ndarray) -> Histogram:
    return Histogram.of(torch.from_numpy(scores))


def _quantile(histogram: Histogram, share: float) -> float:
    """Return the value below which a share of a histogram lies; -1 if it is empty."""
    if not histogram.size:
        return -1.0
    below = np.cumsum(histogram.counts) / histogram.size
    return float(np.searchsorted(below, share) * 2 / len(below) - 1)
