"""Options of the neighbour search. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ncclean.base.options import Option, Options, Seed


@dataclass(frozen=True, kw_only=True)
class NeighbourOptions(Options):
    """Options of a neighbour search: what a near-duplicate is, and how neighbours are found.

    Thresholds are cosines, by default those of `near_duplicates.THRESHOLDS`. `whiten` None whitens
    if the corpus is large enough, with ten distinct pairs for each dimension. `recall` is the share
    of the exact neighbours of a sample that an approximate search must find.
    """

    image_threshold: Annotated[
        float | None,
        Option(
            "Cosine of near-duplicate images (default: 0.80 whitened, else 0.96).", above=0, high=1
        ),
    ] = None
    text_threshold: Annotated[
        float | None,
        Option(
            "Cosine of near-duplicate captions (default: 0.90 whitened, else 0.98).",
            above=0,
            high=1,
        ),
    ] = None
    whiten: Annotated[
        bool | None,
        Option("Whiten embeddings for near-duplicates (default: from ten pairs per dimension on)."),
    ] = None
    linkage: Annotated[
        Literal["representative", "components"],
        Option(
            "Compare a pair with a group's first (`representative`) or with all "
            "members (`components`)."
        ),
    ] = "representative"
    k: Annotated[int, Option("Neighbours to search.", low=1, high=1000)] = 30
    index: Annotated[
        Literal["auto", "flat", "ivf"],
        Option("`flat` (exact) or `ivf`; auto is flat below 100,000 pairs."),
    ] = "auto"
    recall: Annotated[float, Option("Recall of an approximate search.", above=0, high=1)] = 0.95
    clusters: Annotated[
        int | None, Option("Image clusters (default: about twice the root of their number).", low=1)
    ] = None
    contamination_threshold: Annotated[
        float | None,
        Option(
            "Cosine from which an image is one of --reference (default: 0.95 whitened, else 0.98).",
            above=0,
            high=1,
        ),
    ] = None
    seed: Seed = 0
