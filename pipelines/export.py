"""The export stage: a selection to shards of the selected samples, or to a uid file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclean import stores
from ncclean.data.shards import resolve_shards
from ncclean.errors import InputError
from ncclean.selection.export import ExportSummary, export_shards, export_uids
from ncclean.selection.export_shard import ShardReport
from ncclean.storage.same_corpus import check_same_corpus

SCORE_COLUMNS = ("similarity", "noise_probability", "osa_weight", "neg_clip_loss")


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """An export as a user asks for it; paths may be URLs.

    `out` is a folder, or a `.npy` file for the uids alone. `scores` are score files whose `columns`
    go into the json of each sample.
    """

    selection: str
    out: str
    shards: Sequence[str] = ()
    samples_per_shard: int = 10_000
    scores: Sequence[str] = ()
    columns: Sequence[str] = SCORE_COLUMNS
    repeat: bool = False
    workers: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.samples_per_shard < 1:
            raise InputError("--samples-per-shard must be at least 1")
        if not self.is_uid_file and not self.shards:
            raise InputError("export needs --shards, or an --out that ends in .npy for the uids")

    @property
    def is_uid_file(self) -> bool:
        return self.out.endswith(".npy")


def export(
    request: ExportRequest, on_done: Callable[[ShardReport], None] = lambda report: None
) -> ExportSummary:
    """Write what was selected; see `ncclean.selection.export`."""
    out = stores.location(request.out)
    if request.is_uid_file:
        return export_uids(request.selection, out)
    shards = resolve_shards(request.shards)
    for tables in filter(None, ([request.selection], list(request.scores))):
        check_same_corpus(tables, shards)
    return export_shards(
        request.selection,
        shards,
        out,
        samples_per_shard=request.samples_per_shard,
        scores=request.scores,
        columns=request.columns if request.scores else (),
        repeat=request.repeat,
        workers=request.workers or os.cpu_count() or 1,
        overwrite=request.overwrite,
        on_done=on_done,
    )
