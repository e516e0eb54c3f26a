"""The search for neighbours over a whole corpus of embeddings."""

from __future__ import annotations

import os
import time

from upath import UPath

from ncclean import stores
from ncclean.config import parse_keys
from ncclean.errors import InputError
from ncclean.scoring.neighbours.corpus import find_neighbours
from ncclean.storage.embeddings import open_embeddings
from ncclean.storage.neighbour_summary import NeighboursSummary, neighbour_metadata, summarize
from ncclean.storage.neighbour_table import neighbour_table, write_neighbours

from ..neighbours import Neighbours
from ..progress import Progress


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
    keys = parse_keys(command.embedding_keys)
    with open_embeddings(command.embeddings, keys) as embeddings:
        neighbours = find_neighbours(
            embeddings.image,
            embeddings.text,
            embeddings.captions,
            command.options,
            start,
            lambda done: progress.advance(done, rows, "rows"),
        )
        table = neighbour_table(embeddings.pairs, neighbours)
        seconds = time.perf_counter() - begin
        summary = summarize(table, neighbours, command.out, seconds, embeddings.left_out)
    progress.say("writing")
    write_neighbours(out, table, neighbour_metadata(command.options, summary))
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
