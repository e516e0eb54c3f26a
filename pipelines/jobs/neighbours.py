"""The search for neighbours over a whole corpus of embeddings, and its summary."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from upath import UPath

import ncclean
from ncclean import schema, stores
from ncclean.errors import InputError
from ncclean.scoring.neighbours.corpus import CorpusNeighbours, find_neighbours
from ncclean.scoring.neighbours.lemon import LemonParameters
from ncclean.scoring.neighbours.options import NeighbourOptions
from ncclean.storage.embeddings import open_embeddings
from ncclean.storage.neighbour_table import neighbour_table, write_neighbours

from ..neighbours import Neighbours
from ..progress import Progress

_RECORDED = ("linkage", "k", "seed")  # in the metadata of the table; thresholds are in the summary


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


def find_all(command: Neighbours, progress: Progress) -> NeighboursSummary:
    """Search the whole corpus and write one row per pair to `command.out`.

    Raises `InputError` for embeddings that cannot be used, or if the output is there already.
    """
    begin = time.perf_counter()
    out = stores.location(command.out)
    _check_writable(out, command.overwrite)
    rows = 0

    def start(text: str, total: int) -> None:
        nonlocal rows
        rows = total
        progress.say(f"{text}, {total:,} rows" if total else text)

    progress.say("reading embeddings")
    with open_embeddings(command.embeddings) as embeddings:
        neighbours = find_neighbours(
            embeddings.image,
            embeddings.text,
            embeddings.captions,
            command.options,
            start,
            lambda done: progress.advance(done, rows, "rows"),
        )
        table = neighbour_table(embeddings.pairs, neighbours)
        summary = _summarize(table, neighbours, command.out, time.perf_counter() - begin)
    progress.say("writing")
    write_neighbours(out, table, _metadata(command.options, summary))
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
    table: pa.Table, result: CorpusNeighbours, out: str, seconds: float
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
        out=out,
    )


def _metadata(options: NeighbourOptions, summary: NeighboursSummary) -> dict[str, str]:
    lemon = asdict(LemonParameters())
    figures = asdict(summary)
    del figures["out"], figures["seconds"]
    fields = {
        **{name: value for name, value in asdict(options).items() if name in _RECORDED},
        **{f"lemon_{name}": value for name, value in lemon.items() if name != "k"},
        **figures,
        "ncclean_version": ncclean.__version__,
        "schema_version": schema.SCHEMA_VERSION,
    }
    return {name: str(value) for name, value in fields.items()}
