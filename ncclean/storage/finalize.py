"""Parts to the final table: fix the shift, fit the null, fill the calibrated columns.

Needs no model and no images; repeatable with another shift or weight. Reads the parts of a run, and
the final table itself for shards whose parts are gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from ncclean import schema
from ncclean.atomic import published, remove_leftovers
from ncclean.data.shards import ShardRef
from ncclean.scoring.calibration import Calibration, fill_calibrated
from ncclean.storage.calibration import final_metadata
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.made_files import remove_with_leftovers
from ncclean.storage.manifest import Manifest
from ncclean.storage.parts import ROW_GROUP_ROWS, table_writer
from ncclean.storage.row_sources import RowSources, existing, read_ahead, rows_by_shard
from ncclean.stores import open_parquet

_THREADS = 4


def finalize(layout: ScoreLayout, manifest: Manifest, calibration: Calibration) -> None:
    """Write the final file or files, each published atomically.

    Parts are removed only when all shards are done and every final file is in place, so it can
    be killed anywhere and run again.
    """
    shards = manifest.done_shards()
    metadata = final_metadata(calibration, manifest)
    if layout.is_single_file:
        rows = [manifest.done[shard.name].rows for shard in shards]
        finalize_file(layout, shards, rows, calibration, metadata)
    else:
        finalize_parts(layout, shards, calibration, metadata)
    remove_parts(layout, manifest)


def finalize_file(
    layout: ScoreLayout,
    shards: Sequence[ShardRef],
    rows: Sequence[int],
    calibration: Calibration,
    metadata: dict[str, str],
) -> None:
    """Write the one final file, the shards in this order, each with so many `rows`.

    They come from the parts, and from the file itself for shards whose parts are gone.
    """
    sources = RowSources(layout, shards)
    pieces = (
        (None, [piece])
        for shard, count in zip(shards, rows, strict=True)
        for piece in sources.pieces(shard, count)
    )
    tables = (
        table
        for _, filled in read_ahead(pieces, lambda rows: fill_calibrated(rows, calibration))
        for table in filled
    )
    groups = _row_groups(tables)
    metadata = metadata | rows_by_shard(shards, rows)
    kinds = sources.schema(shards[0]) if shards else schema.SCORES
    first = next(groups, kinds.empty_table())
    with published(layout.out) as aside, table_writer(aside, first.schema, metadata) as writer:
        for table in itertools.chain([first], groups):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def finalize_parts(
    layout: ScoreLayout, shards: list[ShardRef], calibration: Calibration, metadata: dict[str, str]
) -> None:
    """Write the final files of some shards of a folder; machines can share the work."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda s: _finalize_part(layout, s, calibration, metadata), shards))


def remove_parts(layout: ScoreLayout, manifest: Manifest) -> None:
    """Delete the parts once every final file is in place.

    That is the files of dropped shards, and the parts if all shards are done.
    """
    manifest.flush()
    if dropped := manifest.dropped_files(layout):
        remove_with_leftovers(dropped)
        manifest.record_removed()
    if not manifest.pending():
        shards = manifest.done_shards()
        remove_with_leftovers(layout.part(shard) for shard in shards)
        remove_leftovers(
            layout.out.parent if layout.is_single_file else layout.out,
            {layout.final(shard).name for shard in shards},
        )


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small pieces so that row groups hold about `ROW_GROUP_ROWS` rows."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += len(table)
        if rows >= ROW_GROUP_ROWS:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _finalize_part(
    layout: ScoreLayout, shard: ShardRef, calibration: Calibration, metadata: dict[str, str]
) -> None:
    part, final = layout.part(shard), layout.final(shard)
    source = part if part.exists() else existing(final)
    with (
        open_parquet(source) as file,
        published(final) as aside,
        table_writer(aside, schema.run_schema(file.schema_arrow), metadata) as writer,
    ):
        for group in range(file.num_row_groups):
            table = schema.as_scores(file.read_row_group(group, use_threads=False))
            writer.write_table(fill_calibrated(table, calibration), row_group_size=ROW_GROUP_ROWS)
