"""Adopt scoring runs of ncclean 0.3 as runs of this version; remove with 0.5."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import create
from ncclean.data.shards import ShardRef
from ncclean.storage.earlier import earlier_files, earlier_lines
from ncclean.storage.layout import COMMAND, ScoreLayout
from ncclean.storage.lease import Lease
from ncclean.storage.run_record import RUN, exists_now, reading
from ncclean.storage.shard_records import Listed, ShardList


def adopt_scores(layout: ScoreLayout) -> None:
    """Convert the record of a scoring run that version 0.3 began, if there is one.

    Writes the list of shards and the record of this version.
    """
    place = layout.work / RUN
    if exists_now(place) or not (files := earlier_files(place)):
        return
    lease = Lease(place.with_suffix(".lease"))
    try:
        with reading(place):
            _adopt(layout, place, files)
    finally:
        lease.release()


def _adopt(layout: ScoreLayout, place: UPath, files: list[UPath]) -> None:
    lines = earlier_lines(place)
    first = next(lines, {})
    if first.get("command") != COMMAND:
        return  # opening the record tells whose it is
    identity = first["identity"]
    shards = [ShardRef(**shard) for shard in identity.pop("shards")]
    refs, next_number = dict(enumerate(shards)), len(shards)
    left: dict[int, ShardRef] = {}
    records: dict[str, str] = {}
    entries = []
    for entry in lines:
        if entry["kind"] == "part":
            records[entry["shard"]] = json.dumps(entry)
        elif entry["kind"] == "shards":
            refs |= {one.pop("number"): ShardRef(**one) for one in entry["refs"]}
            left |= {number: refs[number] for number in entry["dropped"].values()}
            next_number = max(next_number, *(number + 1 for number in refs))
            spans = (range(*span) for span in entry["order"])
            refs = {number: refs[number] for span in spans for number in span}
            for name in entry["dropped"]:
                records.pop(name, None)
        elif entry["kind"] == "removed":
            left.clear()
        else:
            entries.append(entry)
    names = {ref.name for ref in left.values()}
    listed: dict[str, Listed] = {}
    for number, ref, position in (
        *((number, ref, None) for number, ref in left.items()),
        *((number, ref, position) for position, (number, ref) in enumerate(refs.items())),
    ):
        one = listed[ref.name] = Listed(number, position, ref)
        if ref.name in records:  # list a repaired shard as it was before
            scored = json.loads(records[ref.name])
            one.ref = dataclasses.replace(ref, size=scored["size"], version=scored["version"])
        if ref.name in records or ref.name in names:  # the table has rows of dropped ones, too
            one.file = layout.out.name if layout.is_single_file else ref.part_name
    digits = len(str(max(len(shards) - 1, 0)))
    ShardList(listed, next_number, digits).write(layout.shard_list, iter(records.items()))
    run = {"kind": "run", "command": COMMAND, "identity": identity, "entries": entries}
    create(place, json.dumps(run).encode())
    stores.remove_files(files)


def rows_by_column(file: pq.ParquetFile) -> dict[str, int]:
    """Count the rows of each shard of a table, in order, by its column `shard`.

    Tables of version 0.3 do not state these numbers.
    """
    rows: dict[str, int] = {}
    for group in range(file.num_row_groups):
        column = file.read_row_group(group, columns=["shard"]).column(0).combine_chunks()
        coded = column.dictionary_encode()
        counts = np.bincount(coded.indices.to_numpy(), minlength=len(coded.dictionary))
        for name, count in zip(coded.dictionary.to_pylist(), counts.tolist(), strict=True):
            rows[name] = rows.get(name, 0) + count
    return rows
