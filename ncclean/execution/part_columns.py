"""`--caption-parts`: compare each sentence of a caption with the image, and known foreign ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.caption_parts import parts_of, split_captions
from ncclean.errors import InputError
from ncclean.execution.column_source import ColumnSource, EncoderFacts
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.models.estimator import Estimator
from ncclean.scoring.caption_parts import PAIR_SCORE, PART_SCORE, Parts, part_distributions
from ncclean.scoring.columns import BlockScores

# A text with this many characters per token of the context probably fits into it.
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class PartColumns(ColumnSource):
    """The columns of `--caption-parts`: whether each sentence of a caption belongs to its image.

    A long sentence is split so that its pieces fit the model.
    """

    seed: int
    flag = "--caption-parts"
    options = ("caption_parts",)
    follows_scores = True
    types: ClassVar[Mapping[str, pa.DataType]] = schema.PART_TYPES

    @classmethod
    def of(cls, options: ScoreOptions) -> PartColumns | None:
        """Return the column source of `--caption-parts`, None without it."""
        return cls(options.seed) if options.caption_parts else None

    def identity(self) -> Mapping[str, Any]:
        """Return the version of the library that finds sentences."""
        return {"caption_parts": f"sentences, sentencex {version('sentencex')}"}

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` for embeddings: there is no model to encode parts of captions."""
        if encoder.estimator is None:
            raise InputError(
                "--caption-parts encodes sentences, which takes a model: score the images instead "
                "of their embeddings"
            )

    def further_texts(self, captions: Sequence[str], encoder: EncoderFacts) -> Sequence[str]:
        """Return the distinct parts of captions that have several."""
        estimator = encoder.estimator
        assert estimator is not None
        starts = split_captions(captions, estimator.count_tokens, estimator.context_length)
        several = (parts_of(c, s) for c, s in zip(captions, starts, strict=True) if len(s) > 1)
        return list({part: None for parts in several for part in parts})

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Compare the parts of captions with their images; add histograms to `scores`.

        A caption of one part has the scores of the whole.
        """
        estimator = encoder.estimator
        assert scores is not None
        assert estimator is not None
        captions = [caption or "" for caption in shard.captions]
        texts_of = _Texts(estimator, encoder.batch_size)
        if "caption_tokens" in shard.facts:
            whole_captions = (caption.strip() for caption in captions)
            texts_of.counts |= zip(whole_captions, shard.of_pairs("caption_tokens"), strict=True)
        starts = split_captions(captions, texts_of.count_tokens, estimator.context_length)
        whole = (shard.image.float() * shard.text.float()).sum(dim=1).double().cpu().numpy()
        several = np.array([row for row, of_caption in enumerate(starts) if len(of_caption) > 1])
        several = several.astype(np.int64)
        texts = [parts_of(captions[row], starts[row]) for row in several]
        pieces = [text for of_caption in texts for text in of_caption]
        rows = torch.from_numpy(several).to(shard.image.device)
        parts = Parts(
            image=shard.image[rows],
            part=texts_of.encode(pieces),
            caption=np.repeat(np.arange(len(several)), [len(one) for one in texts]),
            images=several if shard.images is None else shard.images[several],
            text=_numbered(pieces),
            length=np.array([len(text) for text in pieces], dtype=np.int64),
        )
        digest = hashlib.blake2b(shard.name.encode(), digest_size=8).digest()
        own, foreign = parts.log_odds([self.seed, int.from_bytes(digest, "little")])
        scores.distributions.scores[PART_SCORE] = part_distributions(own, foreign)
        scores.distributions.scores[PAIR_SCORE] = parts.mean_cosines()
        cosines = parts.cosines.cpu().numpy()
        ends = np.cumsum([len(one) for one in texts]).astype(np.int64)
        of_captions = (np.split(values, ends)[:-1] for values in (cosines, own))
        by_caption = zip(several.tolist(), texts, *of_captions, strict=True)
        return self._columns(captions, whole, starts, by_caption)

    def _columns(
        self,
        captions: Sequence[str],
        whole: np.ndarray,
        starts: Sequence[Sequence[int]],
        several: Any,
    ) -> Values:
        """Return (n,) columns from (row, texts, cosines, log-odds) of several-part captions."""
        worst = [caption.strip() for caption in captions]
        numbers, similarity, mean = np.zeros(len(captions), np.int32), whole.copy(), whole.copy()
        log_odds: list[Sequence[float | None]] = [[None]] * len(captions)
        similarities = [[cosine] for cosine in whole.tolist()]
        for row, texts, cosines, odds in several:
            has_odds = not np.isnan(odds).any()
            number = int(odds.argmax() if has_odds else cosines.argmin())
            worst[row], numbers[row] = texts[number], number
            similarity[row], mean[row] = cosines[number], cosines.mean()
            similarities[row] = cosines.tolist()
            log_odds[row] = odds.tolist() if has_odds else [None] * len(odds)
        count = len(captions)
        values: dict[str, Any] = {
            "part_count": [len(of_caption) for of_caption in starts],
            "worst_part": worst,
            "worst_part_number": numbers,
            "worst_part_similarity": similarity,
            "mean_part_similarity": mean,
            "part_starts": starts,
            "part_similarities": similarities,
            "part_log_odds": log_odds,
        }
        return {
            name: pa.array(values.get(name, [None] * count), kind)
            for name, kind in schema.PART_TYPES.items()
        }


@dataclass
class _Texts:
    """Texts whose tokens were counted, and the embeddings of those encoded on the way.

    Tokenizing takes a quarter of the time, so a text that may well be a part is tokenized once, for
    both its count and its embedding.
    """

    estimator: Estimator
    batch_size: int
    counts: dict[str, int | None] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)
    _encoded: list[torch.Tensor] = field(default_factory=list)

    def count_tokens(self, texts: Sequence[str]) -> list[int | None]:
        """Count the tokens of texts before truncation."""
        unknown = [text for text in dict.fromkeys(texts) if text not in self.counts]
        likely = _CHARACTERS_A_TOKEN * self.estimator.context_length
        long = [text for text in unknown if len(text) > likely]
        self.counts |= zip(long, self.estimator.count_tokens(long), strict=True)
        self._encode([text for text in unknown if len(text) <= likely])
        return [self.counts[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """(P, d) embeddings of texts."""
        self._encode([text for text in dict.fromkeys(texts) if text not in self._places])
        if not texts:
            return self.estimator.encode_text(texts)
        encoded = self._encoded[0] if len(self._encoded) == 1 else torch.cat(self._encoded)
        return encoded[torch.tensor([self._places[text] for text in texts], device=encoded.device)]

    def _encode(self, texts: Sequence[str]) -> None:
        if texts:
            vectors, counts = self.estimator.encode_captions(texts, self.batch_size)
            self.counts |= zip(texts, counts, strict=True)
            self._places |= {text: len(self._places) + n for n, text in enumerate(texts)}
            self._encoded.append(vectors)


def _numbered(texts: Sequence[str]) -> np.ndarray:
    """Return (P,) numbers that are equal for equal texts."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
