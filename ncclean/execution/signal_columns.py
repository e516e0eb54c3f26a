"""Heads on image embeddings, and signals of images and captions, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ncclean.base.config import ScoreOptions
from ncclean.data import image_signals, languages, text_signals
from ncclean.errors import InputError
from ncclean.execution.column_source import ColumnSource, EncoderFacts, arrow_array
from ncclean.execution.encoded_shard import EncodedShard, Values
from ncclean.models.heads import EmbeddingHead
from ncclean.scoring.columns import BlockScores


@dataclass(frozen=True)
class HeadColumns(ColumnSource):
    """The columns of `--head NAME=FILE`: linear layers or MLPs on the image embedding."""

    heads: Mapping[str, EmbeddingHead]
    flag = "--head"
    options = ("head",)
    follows_scores = False

    @classmethod
    def of(cls, options: ScoreOptions) -> HeadColumns | None:
        """Load the heads of `--head`; None without any.

        Raises `InputError` for an invalid file or a repeated name.
        """
        heads: dict[str, EmbeddingHead] = {}
        for text in options.head or ():
            name, equals, path = text.partition("=")
            if not (equals and name.isidentifier() and path):
                raise InputError(f"--head takes NAME=FILE.safetensors, got {text}")
            if name in heads:
                raise InputError(f"--head: the table has a column {name} already")
            heads[name] = EmbeddingHead.load(path)
        return cls(heads) if heads else None

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Names and types of the columns of heads: float32 each."""
        return dict.fromkeys(self.heads, pa.float32())

    def identity(self) -> Mapping[str, Any]:
        """Return the names and fingerprints of the heads of `--head`."""
        return {"head": [f"{name}={head.fingerprint}" for name, head in self.heads.items()]}

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` if a head takes embeddings of another width."""
        for name, head in self.heads.items():
            if head.dim != encoder.dim:
                raise InputError(
                    f"--head {name} takes {head.dim} dimensions, the embeddings have "
                    f"{encoder.dim}: it was made for another model"
                )

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Return (m,) outputs of each head on the image embeddings of a shard."""
        image = shard.image.float()
        return {name: arrow_array(head(image), pa.float32()) for name, head in self.heads.items()}


class ImageSignals(ColumnSource):
    """The columns of `--signals image`: blur, brightness, entropy and hashes of decoded images."""

    flag = "--signals"
    options = ("signals",)
    follows_scores = False
    types = image_signals.TYPES

    @classmethod
    def of(cls, options: ScoreOptions) -> ImageSignals | None:
        """Return the column source of `--signals image`, None without it."""
        return cls() if "image" in (options.signals or ()) else None

    def identity(self) -> Mapping[str, Any]:
        """Return the version of the image signals."""
        return {"signals": [f"image {image_signals.VERSION}"]}

    def check(self, encoder: EncoderFacts) -> None:
        """Raise `InputError` for embeddings, which have no images to measure."""
        if encoder.estimator is None:
            raise InputError(
                "--signals image is for images, and these are embeddings: leave it out"
            )

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Return the image signals that the decoder measured; null for a pair without them."""
        measured = shard.image_signals or ()
        return {
            name: pa.array([None if one is None else one[name] for one in measured], kind)
            for name, kind in image_signals.TYPES.items()
        }


class LanguageColumns(ColumnSource):
    """The columns of `--signals language`: the language of a caption and its probability."""

    flag = "--signals"
    options = ("signals",)
    follows_scores = False
    types = languages.TYPES

    def __init__(self) -> None:
        self._detector = languages.LanguageDetector()

    def __reduce__(self) -> Any:
        return LanguageColumns, ()  # fastText's model cannot be pickled

    @classmethod
    def of(cls, options: ScoreOptions) -> LanguageColumns | None:
        """Return the column source of `--signals language`, None without it."""
        return cls() if "language" in (options.signals or ()) else None

    def identity(self) -> Mapping[str, Any]:
        """Return name and version of the language detector."""
        return {"signals": [f"language {self._detector.version}"]}

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Detect the language of each caption: ISO 639 code and probability."""
        return {
            name: pa.array(column, languages.TYPES[name])
            for name, column in self._detector(shard.captions).items()
        }


class TextColumns(ColumnSource):
    """The columns of `--signals text`: urls, file names, boilerplate and the like in a caption."""

    flag = "--signals"
    options = ("signals",)
    follows_scores = False
    types = text_signals.TYPES

    @classmethod
    def of(cls, options: ScoreOptions) -> TextColumns | None:
        """Return the column source of `--signals text`, None without it."""
        return cls() if options.learns_boilerplate else None

    def identity(self) -> Mapping[str, Any]:
        """Return the version of the text signals."""
        return {"signals": [f"text {text_signals.VERSION}"]}

    def of_shard(
        self, shard: EncodedShard, encoder: EncoderFacts, scores: BlockScores | None
    ) -> Values:
        """Return the text signals of each caption, by the boilerplate of the corpus."""
        return text_signals.TextSignals(encoder.corpus.boilerplate)(shard.captions)
