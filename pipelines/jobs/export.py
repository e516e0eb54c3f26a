"""The export: a selection to shards of the selected samples, or to a uid file."""

from __future__ import annotations

from ncclean import stores
from ncclean.data.shards import ShardRef
from ncclean.data.sources import resolve_pairs
from ncclean.execution.runners import open_runner
from ncclean.options import usable_cores
from ncclean.output_mark import check_free
from ncclean.selection.export import ExportSummary, export_shards, export_uids
from ncclean.selection.export_shard import ShardReport
from ncclean.storage.same_corpus import check_same_corpus

from ..display import file_size
from ..export import Export
from ..progress import Progress


def export(command: Export, progress: Progress) -> ExportSummary:
    """Write what was selected, resuming what an earlier run left.

    Raises `InputError` for a selection or scores of other shards.
    """
    progress.say(f"writing to {command.out}")
    out = stores.location(command.out)
    if command.is_uid_file:
        check_free([command.out], command.name, command.overwrite)
        return export_uids(command.selection, out)
    shards = selected_shards(command)
    written = samples = size = 0

    def report(shard: ShardReport) -> None:
        nonlocal written, samples, size
        written, samples = written + 1, samples + shard.samples
        size += shard.bytes
        progress.advance(samples, 0, "samples", shards=f"{written:,}", bytes=file_size(size))

    with open_runner(command.tasks, command.tasks.workers or usable_cores()) as runner:
        return export_shards(
            command.selection,
            shards,
            out,
            samples_per_shard=command.samples_per_shard,
            scores=command.scores,
            join=command.join,
            columns=command.columns if command.scores else (),
            repeat=command.repeat,
            caption_key=command.caption_key,
            runner=runner,
            overwrite=command.overwrite,
            on_done=report,
        )


def selected_shards(command: Export) -> list[ShardRef]:
    """The shards to read. Raises `InputError` if the selection or the scores are of others."""
    shards = resolve_pairs(command.shards, command.image_root)
    for tables in filter(None, ([command.selection], list(command.scores))):
        check_same_corpus(tables, shards)
    return shards
