"""What a search for neighbours found, in numbers, and what its table records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import ncclean
from ncclean import schema
from ncclean.neighbours.chunked import VALUES, add_counts, chunks
from ncclean.neighbours.lemon import LemonParameters
from ncclean.neighbours.options import NeighbourOptions
from ncclean.neighbours.result import CorpusNeighbours
from ncclean.output_mark import mark

_RECORDED = ("linkage", "k", "seed")  # in the metadata of the table; thresholds are in the summary


@dataclass(frozen=True)
class NeighboursSummary:
    """What was found, by which index, at what recall, and in what time.

    The recalls are measured on a sample of this corpus against exact search: of the k nearest
    neighbours by image and by text, of the k captions nearest to an image and vice versa; and
    `duplicate_recall` is the share of pairs with a near-duplicate for which a search with the
    effort of the grouping finds one. All are 1 for the flat index. `left_out` counts the pairs that
    have no usable embeddings, and so no row.
    """

    pairs: int
    left_out: int
    distinct_images: int
    distinct_texts: int
    repeated_uids: int
    image_groups: int
    image_duplicates: int
    text_groups: int
    text_duplicates: int
    pair_groups: int
    pair_duplicates: int
    mutual_nearest: int
    whitened: bool
    image_threshold: float
    text_threshold: float
    index_image: str
    index_text: str
    exact: bool
    image_recall: float
    text_recall: float
    image_to_text_recall: float
    text_to_image_recall: float
    image_duplicate_recall: float
    text_duplicate_recall: float
    seconds: float
    out: str
    clusters: int
    reference_images: int | None = None
    contaminated: int | None = None
    contamination_threshold: float | None = None


def summarize(
    result: CorpusNeighbours, out: str, seconds: float, reference_images: int = 0
) -> NeighboursSummary:
    """Count what was found in `seconds` about the pairs."""
    image, text = result.image, result.text
    counts = {}
    for name, sizes in (("image", image.sizes), ("text", text.sizes), ("pair", result.pair_sizes)):
        counts[f"{name}_groups"] = _above(sizes, 1)
        counts[f"{name}_duplicates"] = len(sizes) - _above(sizes, 0)
    clusters = np.zeros(int(result.cluster.max()) + 1, np.int64)
    add_counts(clusters, result.cluster)
    pairs = len(result.pair_group)
    return NeighboursSummary(
        pairs=pairs,
        left_out=result.left_out,
        distinct_images=image.distinct,
        distinct_texts=text.distinct,
        repeated_uids=result.repeated_uids,
        **counts,
        mutual_nearest=sum(
            int(np.count_nonzero(result.rivals.mutual_nearest(rows)))
            for rows in chunks(pairs, VALUES)
        ),
        whitened=result.whiten,
        image_threshold=image.threshold,
        text_threshold=text.threshold,
        index_image=image.index,
        index_text=text.index,
        exact=result.is_exact,
        image_recall=image.recall,
        text_recall=text.recall,
        image_to_text_recall=text.across_recall,
        text_to_image_recall=image.across_recall,
        image_duplicate_recall=image.duplicate_recall,
        text_duplicate_recall=text.duplicate_recall,
        seconds=round(seconds, 2),
        out=out,
        clusters=_above(clusters, 0),
        **_of_reference(result, reference_images),
    )


def _above(values: np.ndarray, least: int) -> int:
    """How many of the values are greater than `least`."""
    return sum(int(np.count_nonzero(values[rows] > least)) for rows in chunks(len(values), VALUES))


def _of_reference(result: CorpusNeighbours, images: int) -> dict[str, Any]:
    if result.reference is None:
        return {}
    return {
        "reference_images": images,
        "contaminated": int(np.count_nonzero(result.reference.contaminated)),
        "contamination_threshold": result.reference.threshold,
    }


def neighbour_metadata(options: NeighbourOptions, summary: NeighboursSummary) -> dict[str, str]:
    lemon = asdict(LemonParameters())
    figures = asdict(summary)
    del figures["out"], figures["seconds"]
    fields = {
        **{name: value for name, value in asdict(options).items() if name in _RECORDED},
        **{f"lemon_{name}": value for name, value in lemon.items() if name != "k"},
        **figures,
        "ncclean_version": ncclean.__version__,
        "made_by": mark("neighbours"),
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}
