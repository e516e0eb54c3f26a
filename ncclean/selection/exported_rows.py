"""Selected samples as rows of a table: captions kept and mended where they lie, columns added."""

from __future__ import annotations

import copy
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclean.data.images.arrow_rows import ParquetRow
from ncclean.data.images.as_tar import image_ending
from ncclean.data.images.columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    PATH_COLUMNS,
    image_column,
    is_image_file,
)
from ncclean.data.images.text_rows import LeftOut, Row, row_keys
from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.member_samples import caption_keys, sample_uid
from ncclean.data.mended_truth import exported_truth
from ncclean.data.nested_fields import field_at, head_of, put_at
from ncclean.data.sample_groups import usual_caption
from ncclean.data.samples import TRUTH, CaptionKeys, Sample
from ncclean.selection.export_task import free_key, set_aside
from ncclean.selection.safe_paths import safe_path

IMAGE = "image"  # the column of images where the input has none
_CAPTION = CAPTION_COLUMNS[0]
_Place = tuple[int, str | None, int | None]  # number of a caption, its column, its place in a list


@dataclass(frozen=True)
class ExportedSample:
    """A sample to write: its image, the path and caption that it has as a file, and its rows.

    The rows are for the table in `folder`.
    """

    image: bytes
    path: str
    caption: str | None
    rows: list[ExportedRow]
    folder: str = ""


@dataclass
class ExportedRow:
    """A row to write: values by name as written; `changed` are those that the input has not so.

    `origin` is the row of a Parquet file, whose types stay. `image` and `path` are the columns of
    the image's bytes and of its path, None where the input has none. `table` is the number of the
    table that it goes to, where there are several. `captions` are the numbers of its captions by
    column, None where the selection does not tell them apart.
    """

    values: dict[str, Any]
    changed: set[str] = field(default_factory=set)
    origin: ParquetRow | None = None
    image: str | None = None
    path: str | None = None
    table: int = 0
    captions: dict[str, list[int]] | None = None

    def put(self, name: str, value: object, first: bool = False) -> None:
        """Set a value, of a new column at the end or as the `first`."""
        self.changed.add(name)
        if first and name not in self.values:
            self.values = {name: value, **self.values}
        self.values[name] = value

    def embed(self, image: bytes, path: str) -> None:
        """Put the image in the row as Hugging Face does, unless its bytes are there."""
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
        """Put the path of the image where one was, else under `column`; drop the image's bytes."""
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
        """Rename the columns that a reader would take for the column `ours` with its `value`.

        A reader takes the first of `names` that is there. Columns before `ours` become
        `original_NAME`; one with the same value is dropped.
        """
        before = names[: names.index(ours) + 1]
        for name in [one for one in self.values if one.strip().lower() in before]:
            theirs = self.values.pop(name)
            self.changed.discard(name)
            if theirs != value and theirs is not None:
                self.put(f"original_{name}", theirs)

    def add_fields(self, sample: Sample, shard: str, fields: Row) -> None:
        """Add the uid that the sample has in the shard, unless it has one, and further `fields`.

        Values of the input that have the names of these are set aside.
        """
        if not any(name.lower() == "uid" for name in self.values):
            self.put("uid", sample_uid(sample.metadata, shard, sample.key))
        for name, value in {**set_aside(self.values, fields), **fields}.items():
            self.put(name, value)


def rows_of_members(
    sample: Sample, kept: KeptCaptions | None, caption_column: str
) -> list[ExportedRow] | None:
    """The row of a sample of a tar or of loose files: its caption, then the fields of its json.

    None if the sample lacks a caption that was selected.
    """
    fields, caption = dict(sample.rows[0]), sample.caption
    if kept is not None and sample.key in kept:
        captions = kept.of_sample(sample.key, sample.captions, sample.metadata)
        if captions is None:
            return None
        kept.mend_in(sample.key, fields)
        caption = captions.pop("caption")
        fields |= captions
    row = ExportedRow(fields, set(fields))
    row.set_aside(CAPTION_COLUMNS, caption_column, caption)
    row.put(caption_column, caption, first=True)
    for name in [one for one in row.values if one.lower() in KEY_COLUMNS]:
        if str(row.values[name]) != sample.key:
            row.put(f"original_{name}", row.values.pop(name))
    return [row]


def rows_of_table(
    sample: Sample,
    kept: KeptCaptions | None,
    caption_key: CaptionKeys,
    names: Mapping[str, str],
    image_key: str | None = None,
) -> list[ExportedRow] | None:
    """The rows that a sample of a table is made of, less those of captions that are not kept.

    A caption that is left out of a list, or of several columns, is left out of its place, and a
    mended one replaces the one before, which is then in `original_caption`. `names` are the columns
    as written, by lower-case name. None if the sample lacks a caption that was selected.
    """
    changes: list[dict[str, Any] | None] = [{} for _ in sample.rows]
    captions: list[dict[str, list[int]] | None] = [None for _ in sample.rows]
    if kept is not None and sample.key in kept:
        mended, numbers = dict(kept.mended.get(sample.key, {})), kept.numbers.get(sample.key)
        usable = [one.number for one in sample.captions if one.text is not None]
        if not usable or not {*usable} >= {*(numbers or ())}:
            return None
        if numbers is None:  # the only caption, whatever its number
            mended = {usable[0]: next(iter(mended.values()))}
            numbers = range(len(sample.captions))
        places = _caption_places(sample.rows, caption_keys(caption_key))
        changes = [
            _changes(row, places[index], {*numbers}, mended)
            for index, row in enumerate(sample.rows)
        ]
        captions = [_numbers(of_row, {*numbers}) for of_row in places]
    rows = []
    for row, changed, of_row in zip(sample.rows, changes, captions, strict=True):
        if changed is None:
            continue
        column, image, path = image_column(row, image_key)
        written = None if column is None else names.get(column, column)
        new = ExportedRow(
            _values(row, names),
            origin=row if isinstance(row, ParquetRow) else None,
            image=written if image is not None else None,
            path=written if image is None and path is not None else None,
            captions=of_row,
        )
        for name, value in changed.items():
            new.put(names.get(name, name), value)
        rows.append(new)
    return rows


def _values(row: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """The values of a row by name as written, those that were not read for its sample too."""
    if not isinstance(row, ParquetRow):
        return {names.get(name, name): value for name, value in row.items()}
    there = dict(zip(row.batch.schema.names, row.batch.columns, strict=True))
    keys = row_keys(row.schema.names)
    return {
        name: row[keys[name]]
        if keys[name] in row
        else there[name][row.place].as_py()
        if name in there
        else None
        for name in row.schema.names
    }


def one_caption_each(rows: Sequence[ExportedRow], caption_key: CaptionKeys) -> list[ExportedRow]:
    """The rows as a csv can have them, which has no lists: once for each of a list of captions.

    A caption inside of a field gets a column of its own, `caption`, unless there is one.
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
            exploded.append(
                replace(row, values=values, changed=set(row.changed), captions=captions)
            )
    return exploded


def copied(rows: Sequence[ExportedRow], key: str) -> None:
    """Give the rows of a copy of a sample a key of their own, where they have one."""
    for row in rows:
        for name in [one for one in row.values if one.lower() in KEY_COLUMNS]:
            row.put(name, key)


def own_key(rows: Sequence[ExportedRow], taken: dict[str, int]) -> None:
    """Give the rows of a sample a key that no other has, where they have one."""
    names = [name for name in rows[0].values if name.lower() in KEY_COLUMNS]
    if not names or rows[0].values[names[0]] is None:
        return
    key = str(rows[0].values[names[0]])
    if (free := free_key(key, taken)) != key:
        copied(rows, free)


def left_out(rows: Sequence[ExportedRow]) -> str | None:
    """Make values that were too large to be read null; returns why the first one was."""
    why = None
    for row in rows:
        for name, value in row.values.items():
            if isinstance(value, LeftOut):
                why = why or value.what
                row.values[name] = None
    return why


def image_path(sample: Sample, root: str | None, image_key: str | None = None) -> str:
    """The path of a sample's image below an output: its own below `root`, else from its key."""
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
    return f"{path}.{image_ending(sample.image or b'')}"


def _caption_places(rows: Sequence[Row], names: Sequence[str]) -> list[list[_Place]]:
    """Return where the captions of a sample lie, by row."""
    places: list[list[_Place]] = [[] for _ in rows]
    number = 0
    for name in names or (None,):
        for row, of_row in zip(rows, places, strict=True):
            column = name if name is not None else _usual_column(row)
            value = None if column is None else field_at(row, column)
            entries: Sequence[int | None] = (
                range(len(value)) if isinstance(value, list) else (None,)
            )
            for entry in entries:
                of_row.append((number, column, entry))
                number += 1
    return places


def _numbers(places: Sequence[_Place], kept: set[int]) -> dict[str, list[int]]:
    """Return the numbers of the captions of a row that are kept, by column."""
    numbers: dict[str, list[int]] = {}
    for number, column, _ in places:
        if number in kept and column is not None:
            numbers.setdefault(column, []).append(number)
    return numbers


def _usual_column(row: Row) -> str | None:
    value = usual_caption(row, CAPTION_COLUMNS)
    return next((n for n in CAPTION_COLUMNS if value is not None and row.get(n) is value), None)


def _changes(
    row: Row, places: Sequence[_Place], kept: set[int], mended: Mapping[int, str]
) -> dict[str, Any] | None:
    """Return what changes in a row as captions are left out or mended; None if none is kept."""
    numbers = [number for number, _, _ in places if number in kept]
    if places and not numbers:
        return None
    changes: dict[str, Any] = {}
    for column in dict.fromkeys(column for _, column, _ in places if column is not None):
        value = field_at(row, column)
        new = list(_new_texts(value, [p for p in places if p[1] == column], kept, mended))
        _put(changes, row, column, value, new if isinstance(value, list) else next(iter(new), None))
    before = dict(_texts(row, places))
    originals = {k: text for k, (number, text) in enumerate(before.items()) if number in kept}
    changed = {k: mended[n] for k, n in enumerate(before) if n in mended and n in kept}
    if changed:
        one = len(before) == 1
        texts = list(originals.values())
        changes["original_caption" if one else "original_captions"] = texts[0] if one else texts
    if changed or len(numbers) < len(places):
        truth = exported_truth(row, originals, changed)
        is_list = any(isinstance(row.get(name), list) for name in TRUTH) or len(originals) > 1
        changes |= truth if is_list else {name: values[0] for name, values in truth.items()}
    return changes


def _texts(row: Row, places: Sequence[_Place]) -> Iterator[tuple[int, Any]]:
    for number, column, entry in places:
        value = None if column is None else field_at(row, column)
        yield number, value if entry is None else value[entry]  # type: ignore[index]


def _new_texts(
    value: Any, places: Sequence[_Place], kept: set[int], mended: Mapping[int, str]
) -> Iterator[Any]:
    for number, _, entry in places:
        text = value if entry is None else value[entry]
        if number in kept:
            yield mended.get(number, text)


def _put(changes: dict[str, Any], row: Row, column: str, value: object, new: object) -> None:
    if new == value:
        return
    head = head_of(column)
    if column in row or head == column:
        changes[column] = new
        return
    changes.setdefault(head, copy.deepcopy(row[head]))
    put_at(changes, column, new)
