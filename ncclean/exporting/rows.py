"""Turn selected samples into table rows: keep or mend captions in place, and add columns."""

from __future__ import annotations

import copy
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclean.data.arrow_values import python_values
from ncclean.data.images.arrow_rows import ParquetRow
from ncclean.data.images.as_tar import image_ending
from ncclean.data.images.columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    PATH_COLUMNS,
    CaptionPlace,
    caption_places,
    image_column,
    is_image_file,
)
from ncclean.data.images.layout import RowLayout
from ncclean.data.images.registry import has_rows, layout_of
from ncclean.data.images.text_rows import LeftOut, Row, row_keys
from ncclean.data.member_samples import caption_keys, own_uid, sample_uid
from ncclean.data.nested_fields import field_at, head_of, put_at
from ncclean.data.samples import TRUTH, CaptionKeys, Sample
from ncclean.data.shards import ShardRef
from ncclean.exporting.captions import ExportedCaptions, exported_truth
from ncclean.exporting.out_layout import safe_path
from ncclean.exporting.plan import Segment

IMAGE = "image"  # the column of images if the input has none
_CAPTION = CAPTION_COLUMNS[0]


@dataclass
class ExportedRow:
    """A row of an export's table: its values by column name, as written.

    `origin` is the row of a Parquet file, whose types are kept: a value that differs is new.
    `image` and `path` are the columns of the image's bytes and of its path, None if the input has
    none. `captions` are the numbers of its captions by column, None if all are kept.
    """

    values: dict[str, Any]
    origin: ParquetRow | None = None
    image: str | None = None
    path: str | None = None
    captions: dict[str, list[int]] | None = None

    def is_new(self, name: str, key: str) -> bool:
        """Check whether a value of the row differs from its origin's under `key`."""
        return self.origin is None or self.values.get(name) is not self.origin.get(key)

    def put(self, name: str, value: object, first: bool = False) -> None:
        """Set a value of the row; a new column goes to the end or, with `first`, to the start."""
        if first and name not in self.values:
            self.values = {name: value, **self.values}
        self.values[name] = value

    def embed(self, image: bytes, path: str) -> None:
        """Put the image into the row as Hugging Face does, unless its bytes are there."""
        if self.image is not None:
            return
        name = self.path if self.path and isinstance(self.values[self.path], dict) else None
        if name is None:
            name = next((one for one in self.values if one.lower() == IMAGE), IMAGE)
        if self.path is None:
            self.set_aside((IMAGE,), IMAGE, None)
            name = IMAGE
        self.put(name, {"bytes": image, "path": path}, first=True)

    def refer(self, path: str, column: str) -> None:
        """Write the image's path instead of its bytes, into its column or else into `column`."""
        if self.image is not None:
            del self.values[self.image]
        if self.path is not None:
            self.put(self.path, path)
            if column != PATH_COLUMNS[0]:
                return
        else:
            self.set_aside((*IMAGE_COLUMNS, *PATH_COLUMNS), column, path)
        self.put(column, path, first=True)

    def set_aside(self, names: Sequence[str], ours: str, value: object) -> None:
        """Rename columns that a reader would take for the column `ours`, with its `value`.

        A reader uses the first existing of `names`. Columns before `ours` become `original_NAME`;
        one with the same value is dropped.
        """
        before = names[: names.index(ours) + 1]
        for name in [one for one in self.values if one.strip().lower() in before]:
            theirs = self.values.pop(name)
            if theirs != value and theirs is not None:
                self.put(f"original_{name}", theirs)

    def add_fields(self, fields: Row) -> None:
        """Add columns to the row; values of the input under their names become `original_NAME`."""
        self.values |= {**set_aside(self.values, fields), **fields}

    def rename(self, key: str) -> None:
        """Give the row another key, if it has one."""
        for name in [one for one in self.values if one.lower() in KEY_COLUMNS]:
            self.put(name, key)


def written_names_of(shard: ShardRef) -> Mapping[str, str]:
    """Map a table's columns from lower-case to their written names; empty for other layouts."""
    layout = layout_of(shard)
    return layout.written_names(shard) if isinstance(layout, RowLayout) else {}


def exported_rows(
    sample: Sample,
    captions: ExportedCaptions | None,
    segment: Segment,
    names: Mapping[str, str],
    caption_column: str,
    caption_key: CaptionKeys,
    is_arrow: bool,
) -> list[ExportedRow]:
    """Return the rows of a sample to export, without captions not kept; with `captions` None, all.

    `names` are the columns as written, by lower-case name. With `is_arrow`, columns that were not
    read for the sample stay only in its origin.
    """
    if has_rows(segment.shard):
        rows = _rows_of_table(sample, captions, caption_key, names, segment, is_arrow)
    else:
        rows = [_row_of_members(sample, captions, caption_column, caption_key)]
    for row in rows:
        if not any(name.lower() == "uid" for name in row.values):
            row.put("uid", sample_uid(sample.metadata, segment.name, sample.key))
    return rows


def sample_record(sample: Sample, segment: Segment, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the json object of a sample outside tars, with its uid.

    Several rows of a table give a value for each caption; `names` are its columns as written.
    """
    record = dict(sample.rows[0])
    if has_rows(segment.shard):
        column, *_ = image_column(record, segment.shard.image_key)
        record = _values(sample.rows[0], names, is_arrow=False)
        apart = {name.lower(): name for name in record}
        record.pop(apart.get(column or "", ""), None)
        record |= {apart.get(name, name): value for name, value in sample.metadata.items()}
        record = {n: None if isinstance(v, LeftOut) else v for n, v in record.items()}
    if own_uid(sample.metadata) is None:
        record["uid"] = sample_uid(sample.metadata, segment.name, sample.key)
    return record


def _row_of_members(
    sample: Sample, captions: ExportedCaptions | None, caption_column: str, caption_key: CaptionKeys
) -> ExportedRow:
    """Return the row of a tar's or loose files' sample: its caption, then its json's fields."""
    fields, caption = dict(sample.rows[0]), sample.caption
    if captions is not None:
        fields = captions.record(fields, sample.metadata, caption_key)
        caption = fields.pop("caption")
    row = ExportedRow(fields)
    row.set_aside(CAPTION_COLUMNS, caption_column, caption)
    row.put(caption_column, caption, first=True)
    for name in [one for one in row.values if one.lower() in KEY_COLUMNS]:
        if str(row.values[name]) != sample.key:
            row.put(f"original_{name}", row.values.pop(name))
    return row


def _rows_of_table(
    sample: Sample,
    captions: ExportedCaptions | None,
    caption_key: CaptionKeys,
    names: Mapping[str, str],
    segment: Segment,
    is_arrow: bool,
) -> list[ExportedRow]:
    """Return the rows from which a table's sample was made.

    An omitted caption is removed from its list or column, and a mended one replaces the original,
    which moves to `original_caption`.
    """
    places: list[list[CaptionPlace]] = [[] for _ in sample.rows]
    if captions is not None:
        places = caption_places(sample.rows, caption_keys(caption_key))
    rows = []
    for row, of_row in zip(sample.rows, places, strict=True):
        kept = [one for one in of_row if captions is None or _is_kept(one, captions)]
        if of_row and not kept:
            continue
        column, image, path = image_column(row, segment.shard.image_key)
        written = None if column is None else names.get(column, column)
        new = ExportedRow(
            _values(row, names, is_arrow),
            origin=row if isinstance(row, ParquetRow) else None,
            image=written if image is not None else None,
            path=written if image is None and path is not None else None,
        )
        if captions is not None:
            new.captions = {}
            for one in kept:
                new.captions.setdefault(one.column, []).append(one.number)
            for name, value in _changes(row, of_row, kept, captions).items():
                new.put(names.get(name, name), value)
        rows.append(new)
    return rows


def _values(row: Row, names: Mapping[str, str], is_arrow: bool) -> dict[str, Any]:
    """Return a row's values by written name, including those not read for its sample."""
    if not isinstance(row, ParquetRow):
        return {names.get(name, name): value for name, value in row.items()}
    keys = row_keys(row.schema.names)
    values = {name: row.get(keys[name]) for name in row.schema.names}
    if not is_arrow:
        for name, column in zip(row.batch.schema.names, row.batch.columns, strict=True):
            if keys[name] not in row:
                values[name] = python_values(column.slice(row.place, 1))[0]
        values |= {name: value for name, value in row.items() if name not in keys.values()}
    return values


def one_caption_each(rows: Sequence[ExportedRow], caption_key: CaptionKeys) -> list[ExportedRow]:
    """Split rows for a csv, which has no lists: one row for each of a list of captions.

    A caption inside a field gets its own column, `caption`, unless there is one.
    """
    keys = caption_keys(caption_key)
    names = tuple(key for key in keys if head_of(key) == key) or CAPTION_COLUMNS * (not keys)
    exploded = []
    for row in rows:
        inside = (field_at(row.values, key) for key in keys if key not in names)
        text = next((one for one in inside if isinstance(one, str)), None)
        if text is not None and _CAPTION not in map(str.lower, row.values):
            row.put(_CAPTION, text)
        lists = [n for n, v in row.values.items() if n.lower() in names and isinstance(v, list)]
        if not lists:
            exploded.append(row)
            continue
        truth = [n for n, v in row.values.items() if n.lower() in TRUTH and isinstance(v, list)]
        for place in range(max(len(row.values[lists[0]]), 1)):
            values = dict(row.values)
            for name in (*lists, *truth):
                values[name] = next(iter(values[name][place : place + 1]), None)
            captions = {
                name: numbers[place : place + 1] if name in map(str.lower, lists) else numbers
                for name, numbers in (row.captions or {}).items()
            }
            exploded.append(replace(row, values=values, captions=captions))
    return exploded


def left_out(rows: Sequence[ExportedRow]) -> str | None:
    """Set values that were too large to read to null; return the reason for the first, or None."""
    why = None
    for row in rows:
        for name, value in row.values.items():
            if isinstance(value, LeftOut):
                why = why or value.what
                row.values[name] = None
    return why


def own_key(rows: Sequence[ExportedRow], taken: dict[str, int]) -> None:
    """Give the rows of a sample a key that no other exported sample has, if they have one."""
    names = [name for name in rows[0].values if name.lower() in KEY_COLUMNS]
    if not names or rows[0].values[names[0]] is None:
        return
    key = str(rows[0].values[names[0]])
    if (free := free_key(key, taken)) != key:
        for row in rows:
            row.rename(free)


def image_path(sample: Sample, root: str | None, image_key: str | None = None) -> str:
    """Return the path of a sample's image in an output: its own below `root`, else from its key.

    A file keeps its ending in the original case, as cameras write it.
    """
    path = image_column(sample.rows[0], image_key)[2] if sample.rows else None
    if path is not None and root is not None:
        path = path.replace(os.sep, "/")
        if posixpath.isabs(path):
            path = posixpath.relpath(path, posixpath.abspath(root))
        path = safe_path(posixpath.normpath(path))
        if is_image_file(path):
            return path
    else:
        path = safe_path(sample.key)
        ending = posixpath.splitext(sample.place.image_path or "")[1]
        if ending:
            return f"{path}{ending}"
    return f"{path}.{image_ending(sample.image or b'')}"


def set_aside(record: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `original_NAME` for values of a json that added fields replace.

    Those of an earlier export are kept.
    """
    replaced = {name: record[name] for name, value in fields.items()
                if record.get(name) not in (None, value)}  # fmt: skip
    originals = {f"original_{name}": value for name, value in replaced.items()}
    return {name: value for name, value in originals.items() if name not in record}


def copy_key(key: str, copy: int) -> str:
    """Return the key of a copy of a sample: webdataset joins neighbours that share one."""
    return f"{key}_copy{copy}" if copy else key


def free_key(key: str, taken: dict[str, int]) -> str:
    """Return the key, numbered if it is `taken`, and mark it as taken.

    Input shards may each count from 0; loaders join neighbours that share a key. `taken` has the
    next number to try for each key: trying all again would be quadratic if one key is everywhere.
    """
    free = key
    while free in taken:
        free = f"{key}_{taken[key]}"
        taken[key] += 1
    taken[free] = 2
    return free


def _is_kept(place: CaptionPlace, captions: ExportedCaptions) -> bool:
    return captions.is_only or place.number in captions.texts


def _changes(
    row: Row,
    places: Sequence[CaptionPlace],
    kept: Sequence[CaptionPlace],
    captions: ExportedCaptions,
) -> dict[str, Any]:
    """Return the changes to a row when captions are omitted or mended."""
    changes: dict[str, Any] = {}
    texts_of = captions.mended
    for column in filter(None, dict.fromkeys(place.column for place in places)):
        value = field_at(row, column)
        texts = [texts_of.get(p.number, p.text) for p in kept if p.column == column]
        new = texts if isinstance(value, list) else next(iter(texts), None)
        _put(changes, row, column, value, new)
    numbers = [place.number for place in places]
    originals = {numbers.index(place.number): place.text for place in kept}
    mended = {n: texts_of[number] for n, number in enumerate(numbers) if number in texts_of}
    is_one = len(places) == 1
    if mended:
        before = list(originals.values())
        changes["original_caption" if is_one else "original_captions"] = (
            before[0] if is_one else before
        )
    if mended or len(kept) < len(places):
        truth = exported_truth(row, originals, mended)
        is_list = any(isinstance(row.get(name), list) for name in TRUTH) or len(originals) > 1
        changes |= truth if is_list else {name: values[0] for name, values in truth.items()}
    return changes


def _put(changes: dict[str, Any], row: Row, column: str, value: object, new: object) -> None:
    if new == value:
        return
    head = head_of(column)
    if column in row or head == column:
        changes[column] = new
        return
    changes.setdefault(head, copy.deepcopy(row[head]))
    put_at(changes, column, new)
