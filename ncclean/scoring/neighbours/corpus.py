"""Searches the whole corpus: all results of `ncclean neighbours` about its pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncclean.scoring.neighbours.distinct import distinct_rows
from ncclean.scoring.neighbours.groups import join_single_rows, joint_labels, pair_labels
from ncclean.scoring.neighbours.lemon import LemonParameters, disagreement, lemon_score
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix, Tick, pair_cosines, silent
from ncclean.scoring.neighbours.modality import (
    Begin,
    Grouped,
    Modality,
    Searched,
    SearchOptions,
    group_modality,
    search_modality,
    unannounced,
)
from ncclean.scoring.neighbours.options import NeighbourOptions
from ncclean.scoring.neighbours.rivals import Rivals, count_nearby_rivals, count_rivals
from ncclean.scoring.neighbours.whitening import ROWS_PER_DIMENSION

# Cosine from which two are near-duplicates, by modality, in the whitened space and in the model's.
# docs/neighbours.md has what they find and what they take wrongly.
THRESHOLDS = {
    "image": {True: 0.80, False: 0.96},
    "text": {True: 0.90, False: 0.98},
}
# Whitening makes much of directions in which a corpus varies little. Images this close in the
# model's own space are near-duplicates even if they differ there, unless a threshold is given.
SAME_IMAGE_COSINE = 0.98


@dataclass(frozen=True)
class Side:
    """One modality: the (n,) group of each pair, by its first pair, and the search behind it."""

    modality: Modality
    grouped: Grouped
    threshold: float
    searched: Searched

    @property
    def group(self) -> np.ndarray:
        return pair_labels(self.modality.distinct, self.grouped.representative)

    @property
    def similarity(self) -> np.ndarray:
        return np.take(self.grouped.similarity, self.modality.distinct.labels)


@dataclass(frozen=True)
class CorpusNeighbours:
    """The results; arrays are (n,), groups are rows of first members."""

    image: Side
    text: Side
    whiten: bool
    image_group: np.ndarray
    text_group: np.ndarray
    pair_group: np.ndarray
    rivals: Rivals
    lemon: np.ndarray


def find_neighbours(
    image: EmbeddingMatrix,
    text: EmbeddingMatrix,
    captions: Sequence[str | None] | None,
    options: NeighbourOptions,
    begin: Begin = unannounced,
    tick: Tick = silent,
) -> CorpusNeighbours:
    """Compare the n pairs of a corpus with one another, by (n, d) images and captions."""
    own = pair_cosines(image, text)
    begin("looking for copies", 0)
    images = Modality("image", image, distinct_rows(image))
    texts = Modality("text", text, distinct_rows(text, captions))
    whiten = options.whiten
    if whiten is None:
        fewest = min(len(images.distinct), len(texts.distinct))
        whiten = fewest >= ROWS_PER_DIMENSION * image.dim

    def side(here: Modality, there: Modality, asked: float | None) -> Side:
        threshold = THRESHOLDS[here.name][whiten] if asked is None else asked
        search = SearchOptions(
            kind=options.index,
            k=options.k,
            threshold=threshold,
            whiten=whiten,
            linkage=options.linkage,
            recall=options.recall,
            seed=options.seed,
        )
        grouped = group_modality(here, search, begin, tick)
        searched = search_modality(here, there, search, begin, tick)
        if whiten and here.name == "image" and asked is None:
            grouped = dataclasses.replace(
                grouped,
                representative=join_single_rows(
                    grouped.representative, searched.near, SAME_IMAGE_COSINE
                ),
            )
        return Side(here, grouped, threshold, searched)

    by_image = side(images, texts, options.image_threshold)
    by_text = side(texts, images, options.text_threshold)
    image_group, text_group = by_image.group, by_text.group
    pair_group = joint_labels(image_group, text_group)
    rivals = _rivals(by_image, by_text, own, image_group, text_group, begin, tick)
    parameters = LemonParameters(k=options.k)
    terms = []
    for one, other in ((by_image, texts), (by_text, images)):
        begin(f"comparing with {one.modality.name} neighbours", len(own))
        near, distinct = one.searched.near, one.modality.distinct
        terms.append(disagreement(near, distinct, other.matrix, own, pair_group, parameters, tick))
    lemon = lemon_score(own, terms[0], terms[1], parameters)
    return CorpusNeighbours(
        by_image, by_text, whiten, image_group, text_group, pair_group, rivals, lemon
    )


def _rivals(
    image: Side,
    text: Side,
    own: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    begin: Begin,
    tick: Tick,
) -> Rivals:
    """All rivals where the indexes are exact, else those among the candidates found."""
    images, texts = image.modality, text.modality
    # The index of the captions was searched with images, and the other way round.
    captions, others = text.searched.across, image.searched.across
    if captions is None or others is None:
        begin("comparing images with captions", len(own))
        return count_rivals(images.matrix, texts.matrix, own, image_group, text_group, tick)
    return Rivals(
        count_nearby_rivals(
            captions, images.distinct, texts.distinct, own, image_group, text_group
        ),
        count_nearby_rivals(others, texts.distinct, images.distinct, own, text_group, image_group),
    )
