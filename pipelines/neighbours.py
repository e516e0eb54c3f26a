"""The neighbours stage: exported embeddings to near-duplicates, rivals and neighbour agreement."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from upath import UPath

import ncclean
from ncclean import schema, stores
from ncclean.errors import InputError
from ncclean.scoring.neighbours.corpus import (
    CorpusNeighbours,
    NeighbourOptions,
    find_neighbours,
)
from ncclean.scoring.neighbours.index import IndexKind
from ncclean.scoring.neighbours.lemon import LemonParameters
from ncclean.storage.embeddings import open_embeddings
from ncclean.storage.neighbour_table import neighbour_table, write_neighbours

MOST_NEIGHBOURS = 1000


class StageProgress(Protocol):
    """Where the run reports what it does and how far it is."""

    def begin(self, text: str, total: int) -> None:
        """A stage over `total` rows begins."""

    def advance(self, done: int) -> None:
        """So many rows of the stage are done."""

    def finish(self) -> None:
        """No more reports follow."""


class _NoProgress:
    def begin(self, text: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class NeighboursRequest:
    """A run as a user asks for it; what the options mean: `NeighbourOptions`.

    Raises `InputError` for a value out of range.
    """

    embeddings: str
    out: str
    image_threshold: float | None = None
    text_threshold: float | None = None
    whiten: bool | None = None
    linkage: str = "representative"
    k: int = 30
    index: str = "auto"
    recall: float = 0.95
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("image_threshold", "text_threshold"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option} is a cosine above 0 and at most 1, got {value:g}")
        if self.linkage not in ("representative", "components"):
            raise InputError(f"--linkage takes representative or components, got {self.linkage!r}")
        if not 1 <= self.k <= MOST_NEIGHBOURS:
            raise InputError(f"--k lies between 1 and {MOST_NEIGHBOURS:,}, got {self.k}")
        if not self.out.endswith(".parquet"):
            raise InputError(f"--out of neighbours is a Parquet file, got {self.out!r}")
        if not 0 < self.recall <= 1:
            raise InputError(f"--recall must lie between 0 and 1, got {self.recall:g}")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, got {self.seed}")
        IndexKind.choose(self.index, 0)

    @property
    def options(self) -> NeighbourOptions:
        return NeighbourOptions(
            image_threshold=self.image_threshold,
            text_threshold=self.text_threshold,
            whiten=self.whiten,
            linkage=self.linkage,
            k=self.k,
            index=self.index,
            recall=self.recall,
            seed=self.seed,
        )


@dataclass(frozen=True)
class NeighboursSummary:
    """What was found, by which index, at what recall, and in what time.

    The recalls are measured on a sample of this corpus against exact search: of the k nearest
    neighbours by image and by text, of the k captions nearest to an image and vice versa; and
    `duplicate_recall` is the share of pairs with a near-duplicate for which a search with the
    effort of the grouping finds one. All are 1 for the flat index.
    """

    pairs: int
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def neighbours(
    request: NeighboursRequest, progress: StageProgress | None = None
) -> NeighboursSummary:
    """Search the whole corpus and write one row per pair to `request.out`.

    Raises `InputError` for embeddings that cannot be used, or if the output is there already.
    """
    progress = progress or _NoProgress()
    begin = time.perf_counter()
    out = stores.location(request.out)
    _check_writable(out, request.overwrite)
    try:
        progress.begin("reading embeddings", 0)
        with open_embeddings(request.embeddings) as embeddings:
            found = find_neighbours(
                embeddings.image,
                embeddings.text,
                embeddings.captions,
                request.options,
                progress.begin,
                progress.advance,
            )
            table = neighbour_table(embeddings.pairs, found)
            summary = _summarize(table, found, request, time.perf_counter() - begin)
        progress.begin("writing", 0)
        write_neighbours(out, table, _metadata(request, summary))
    finally:
        progress.finish()
    return summary


def _check_writable(out: UPath, overwrite: bool) -> None:
    """Hours of searching must not end with a path that cannot be written."""
    if not overwrite and stores.ask("read", out, out.exists):
        raise InputError(f"{out} exists; use --overwrite to replace it, or another --out")
    if stores.is_url(out):
        return
    if out.is_dir():
        raise InputError(f"{out} is a folder; --out of neighbours is a Parquet file")
    stores.ask("write", out, out.parent.mkdir, parents=True, exist_ok=True)
    if not os.access(str(out.parent), os.W_OK):
        raise InputError(f"cannot write {out}: {out.parent} is not writable")


def _summarize(
    table: pa.Table, result: CorpusNeighbours, request: NeighboursRequest, seconds: float
) -> NeighboursSummary:
    image, text = result.image, result.text
    counts = {}
    for name in ("image", "text", "pair"):
        group: np.ndarray = getattr(result, f"{name}_group")
        sizes = np.bincount(group)
        counts[f"{name}_groups"] = int((sizes > 1).sum())
        counts[f"{name}_duplicates"] = int(np.maximum(sizes - 1, 0).sum())
    uids = table.column("uid")
    return NeighboursSummary(
        pairs=len(table),
        distinct_images=len(image.modality.distinct),
        distinct_texts=len(text.modality.distinct),
        repeated_uids=len(uids) - len(uids.unique()),
        **counts,
        mutual_nearest=int(result.rivals.mutual_nearest.sum()),
        whitened=result.whiten,
        image_threshold=image.threshold,
        text_threshold=text.threshold,
        index_image=image.searched.description,
        index_text=text.searched.description,
        exact=image.searched.across is None,
        image_recall=image.searched.recall,
        text_recall=text.searched.recall,
        image_to_text_recall=text.searched.across_recall,
        text_to_image_recall=image.searched.across_recall,
        image_duplicate_recall=image.grouped.recall,
        text_duplicate_recall=text.grouped.recall,
        seconds=round(seconds, 2),
        out=request.out,
    )


def _metadata(request: NeighboursRequest, summary: NeighboursSummary) -> dict[str, str]:
    given = {
        name: value for name, value in asdict(request).items() if name in ("linkage", "k", "seed")
    }
    lemon = asdict(LemonParameters())
    fields = {
        **given,
        **{f"lemon_{name}": value for name, value in lemon.items() if name != "k"},
        **{
            name: value
            for name, value in summary.to_json().items()
            if name not in ("out", "seconds")
        },
        "ncclean_version": ncclean.__version__,
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items()}
