"""The neighbours stage: exported embeddings to near-duplicates, rivals and neighbour agreement."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ncclean
from ncclean import schema, stores
from ncclean.errors import InputError
from ncclean.scoring.neighbours.distinct import distinct_rows
from ncclean.scoring.neighbours.groups import joint_labels, pair_labels
from ncclean.scoring.neighbours.index import IndexKind
from ncclean.scoring.neighbours.lemon import LemonParameters, disagreement, lemon_score
from ncclean.scoring.neighbours.matrix import pair_cosines
from ncclean.scoring.neighbours.modality import Modality, Searched, SearchOptions, search_modality
from ncclean.scoring.neighbours.rivals import Rivals, count_found_rivals, count_rivals
from ncclean.storage.atomic import published
from ncclean.storage.embeddings import Embeddings, open_embeddings
from ncclean.storage.parts import ROW_GROUP_ROWS


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
    """A run as a user asks for it. Raises `InputError` for a value out of range.

    `linkage` is `representative` or `components`; `recall` is what an approximate search must
    find of the exact neighbours of a sample.
    """

    embeddings: str
    out: str
    image_threshold: float = 0.96
    text_threshold: float = 0.98
    linkage: str = "representative"
    k: int = 30
    index: str = "auto"
    recall: float = 0.95
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("image_threshold", "text_threshold"):
            if not 0 < getattr(self, name) <= 1:
                option = "--" + name.replace("_", "-")
                raise InputError(
                    f"{option} is a cosine above 0 and at most 1, got {getattr(self, name):g}"
                )
        if self.linkage not in ("representative", "components"):
            raise InputError(f"--linkage takes representative or components, got {self.linkage!r}")
        if self.k < 1:
            raise InputError(f"--k must be at least 1, got {self.k}")
        if not 0 < self.recall <= 1:
            raise InputError(f"--recall must lie between 0 and 1, got {self.recall:g}")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, got {self.seed}")
        IndexKind.choose(self.index, 0)


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
    if not request.overwrite and stores.ask("read", out, out.exists):
        raise InputError(f"{out} exists; use --overwrite to replace it, or another --out")
    try:
        progress.begin("reading embeddings", 0)
        with open_embeddings(request.embeddings) as embeddings:
            found = _search(embeddings, request, progress)
            table = _table(embeddings, found)
            summary = _summarize(table, found, request, time.perf_counter() - begin)
        progress.begin("writing", 0)
        table = table.replace_schema_metadata(_metadata(request, summary))
        with published(out) as aside:
            pq.write_table(
                table,
                aside,
                compression="zstd",
                row_group_size=ROW_GROUP_ROWS,
                use_dictionary=["shard"],
            )
    finally:
        progress.finish()
    return summary


@dataclass(frozen=True)
class _Result:
    """Everything that was computed; arrays are (n,), groups are rows of first members."""

    image: Searched
    text: Searched
    image_group: np.ndarray
    text_group: np.ndarray
    pair_group: np.ndarray
    rivals: Rivals
    lemon: np.ndarray


def _search(embeddings: Embeddings, request: NeighboursRequest, progress: StageProgress) -> _Result:
    image, text = embeddings.image, embeddings.text
    own = pair_cosines(image, text)
    progress.begin("looking for copies", 0)
    images = Modality("image", image, distinct_rows(image))
    texts = Modality("text", text, distinct_rows(text, embeddings.captions))

    def options(threshold: float) -> SearchOptions:
        return SearchOptions(
            kind=request.index,
            k=request.k,
            threshold=threshold,
            linkage=request.linkage,
            recall=request.recall,
            seed=request.seed,
        )

    begin, tick = progress.begin, progress.advance
    by_image = search_modality(images, texts, options(request.image_threshold), begin, tick)
    by_text = search_modality(texts, images, options(request.text_threshold), begin, tick)
    image_group = pair_labels(images.distinct, by_image.representative)
    text_group = pair_labels(texts.distinct, by_text.representative)
    pair_group = joint_labels(image_group, text_group)
    rivals = _rivals(images, texts, by_image, by_text, own, image_group, text_group, progress)
    parameters = LemonParameters(k=request.k)
    terms = []
    for searched, here, there in ((by_image, images, texts), (by_text, texts, images)):
        begin(f"comparing with {here.name} neighbours", len(own))
        near, other = searched.near, there.matrix
        terms.append(disagreement(near, here.distinct, other, own, pair_group, parameters, tick))
    lemon = lemon_score(own, terms[0], terms[1], parameters)
    return _Result(by_image, by_text, image_group, text_group, pair_group, rivals, lemon)


def _rivals(
    images: Modality,
    texts: Modality,
    by_image: Searched,
    by_text: Searched,
    own: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    progress: StageProgress,
) -> Rivals:
    """All rivals where both indexes are exact, else those among the candidates found."""
    if by_image.across is None or by_text.across is None:
        progress.begin("comparing images with captions", len(own))
        return count_rivals(
            images.matrix, texts.matrix, own, image_group, text_group, progress.advance
        )
    # The index of the captions was searched with images, and the other way round.
    captions = count_found_rivals(
        by_text.across, images.distinct, texts.distinct, own, image_group, text_group
    )
    others = count_found_rivals(
        by_image.across, texts.distinct, images.distinct, own, text_group, image_group
    )
    return Rivals(captions, others)


def _table(embeddings: Embeddings, result: _Result) -> pa.Table:
    uid = embeddings.pairs.column("uid").combine_chunks()

    def nearest(searched: Searched) -> pa.Array:
        return pa.array(searched.nearest, pa.float32(), mask=np.isnan(searched.nearest))

    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        **{name: embeddings.pairs.column(name) for name in ("uid", "shard", "key")},
        "image_group": _named(uid, result.image_group),
        "text_group": _named(uid, result.text_group),
        "pair_group": _named(uid, result.pair_group),
        "image_nearest": nearest(result.image),
        "text_nearest": nearest(result.text),
        "better_captions": pa.array(result.rivals.captions),
        "better_images": pa.array(result.rivals.images),
        "mutual_nearest": pa.array(result.rivals.mutual_nearest),
        "lemon_score": pa.array(result.lemon, pa.float32(), mask=np.isnan(result.lemon)),
    }
    return pa.table([columns[name] for name in schema.NEIGHBOURS.names], schema=schema.NEIGHBOURS)


def _named(uid: pa.Array, group: np.ndarray) -> pa.Array:
    """Groups by the uid of their first pair, null for pairs that are alone."""
    alone = np.bincount(group, minlength=len(group))[group] == 1
    return uid.take(pa.array(group, mask=alone))


def _summarize(
    table: pa.Table, result: _Result, request: NeighboursRequest, seconds: float
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
        distinct_images=len(image.representative),
        distinct_texts=len(text.representative),
        repeated_uids=len(uids) - len(uids.unique()),
        **counts,
        mutual_nearest=int(result.rivals.mutual_nearest.sum()),
        index_image=image.description,
        index_text=text.description,
        exact=image.across is None or text.across is None,
        image_recall=image.recall,
        text_recall=text.recall,
        image_to_text_recall=text.across_recall,
        text_to_image_recall=image.across_recall,
        image_duplicate_recall=image.duplicate_recall,
        text_duplicate_recall=text.duplicate_recall,
        seconds=round(seconds, 2),
        out=request.out,
    )


def _metadata(request: NeighboursRequest, summary: NeighboursSummary) -> dict[str, str]:
    given = {
        name: value
        for name, value in asdict(request).items()
        if name not in ("embeddings", "out", "overwrite", "index")
    }
    lemon = asdict(LemonParameters())
    fields = {
        **given,
        **{f"lemon_{name}": value for name, value in lemon.items() if name != "k"},
        **{name: value for name, value in summary.to_json().items() if name not in ("out",)},
        "ncclean_version": ncclean.__version__,
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items()}
