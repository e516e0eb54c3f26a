"""Recognise the columns of a table of images: the image, its path, its key and its captions.

Rows with the same image path and no key of their own are one sample with several captions.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.nested_fields import field_at, head_of
from ncclean.data.sample_groups import identifier, is_image, usual_caption, utf8
from ncclean.errors import ShardError

# Column names in the layouts we read; the first that exists counts.
IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "bytes")
STRUCT_FIELDS = {"bytes", "path"}  # Hugging Face's images, in a column of any name
PATH_COLUMNS = ("file_name", "filepath", "image_path", "img_path", "path", "filename", "file")
_PATH_ENDING = "_file_name"  # columns of an imagefolder with several images per row
_STRUCTS = len(IMAGE_COLUMNS)  # their rank among the columns
# None is for structs, whose column may have any name: "" is an index written by pandas.
_PLACES = dict(zip((*IMAGE_COLUMNS, None, *PATH_COLUMNS), itertools.count()))
_FURTHER_PATHS = len(_PLACES)
_LAST = _FURTHER_PATHS + 1
CAPTION_COLUMNS = ("caption", "text", "title", "txt", "captions", "text_content")
KEY_COLUMNS = ("key", "__key__")
MOST_ROWS = 1000  # per image, as many as it may have captions
_MOST_HELD = 64 << 20  # approximate bytes of rows that wait for others of their image
_VALUE_BYTES = 64  # per value, beside its text
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8")  # of image files
_IN_BASE64 = ("/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD", "data:image/")
_SHORTEST_BASE64 = 40  # characters
_LONGEST_PATH = 4096  # characters, Linux's limit


def image_of(row: Row, image_key: str | None = None) -> tuple[bytes | None, str | None]:
    """Return the image of a row of a table, and the image's path.

    Uses the field `image_key`; by default, the first column in the order `IMAGE_COLUMNS`, structs
    (Hugging Face's, of any name, may have both), `PATH_COLUMNS`.
    """
    _, image, path = image_column(row, image_key)
    return image, path


def image_column(
    row: Row, image_key: str | None = None
) -> tuple[str | None, bytes | None, str | None]:
    """Return the column from which `image_of` takes the image or its path, and their values."""
    if image_key is not None:
        image, path = _picture_in(field_at(row, image_key))
        return head_of(image_key), image, path
    first = _LAST
    chosen: tuple[str | None, bytes | None, str | None] = None, None, None
    for name, value in row.items():
        place = _PLACES.get(name, _LAST)
        if place == _LAST and name.endswith(_PATH_ENDING):
            place = _FURTHER_PATHS
        if place > _STRUCTS and isinstance(value, dict) and value.keys() >= STRUCT_FIELDS:
            place = _STRUCTS
        if place < first:
            image, path = _picture_in(value)
            if image is not None or path is not None:
                first, chosen = place, (name, image, path)
    return chosen


def further_images(row: Row, image_key: str | None = None) -> Iterator[str]:
    """Return the columns of a row that hold another image than that of `image_column`."""
    column, image, path = image_column(row, image_key)
    for name, value in row.items():
        several = value if isinstance(value, list) else [value]
        if name == column:
            yield from (name for one in several[1:] if _is_picture(one))
        elif is_path_column(name):
            # Beside an image, a path is usually that of its file.
            names = (one for one in several if isinstance(one, str) and is_image_file(one))
            if image is None and path is not None:
                own = posixpath.basename(path)
                yield from (name for one in names if posixpath.basename(one) != own)
        else:
            is_named = name in IMAGE_COLUMNS
            yield from (name for one in several if _is_picture(one) or (is_named and _is_path(one)))


def is_path_column(name: str) -> bool:
    """Check whether a column of this lower-case name holds paths of images."""
    return name in PATH_COLUMNS or name.endswith(_PATH_ENDING)


def is_image_file(path: str) -> bool:
    """Check whether a path ends like that of an image."""
    return is_image(posixpath.splitext(path)[1][1:].lower())


def _picture_in(value: object) -> tuple[bytes | None, str | None]:
    """Return the bytes and the path of an image in a value, where present."""
    image, path = value, value
    if isinstance(value, dict):
        image, path = value.get("bytes"), value.get("path")
    if isinstance(image, str) and image.startswith(_IN_BASE64) and len(image) >= _SHORTEST_BASE64:
        decoded = _from_base64(image)
        image, path = decoded, None if image is path and decoded is not None else path
    return image if isinstance(image, bytes) else None, path if _is_path(path) else None  # type: ignore[return-value]


@functools.lru_cache(maxsize=4)  # the image of a row is requested several times
def _from_base64(text: str) -> bytes | None:
    """Decode a base64 image; return None for a path, and non-image bytes for anything else."""
    data = text.rpartition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except ValueError:
        return None if len(text) <= _LONGEST_PATH else text.encode("utf-8", "replace")


def _is_picture(value: object) -> bool:
    """Check whether a value holds an image, whatever its column's name."""
    if isinstance(value, dict):
        return value.keys() >= STRUCT_FIELDS and _picture_in(value) != (None, None)
    return isinstance(value, bytes) and value.startswith(_BEGINNINGS)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value != ""


def key_of(row: Row, path: str | None) -> str | None:
    for name in KEY_COLUMNS:
        if (key := identifier(row.get(name))) is not None:
            return key
    return utf8(posixpath.splitext(path.replace(os.sep, "/"))[0]) if path is not None else None


class CaptionPlace(NamedTuple):
    """A caption's place in a row: its number, the column, and the index in a list."""

    number: int
    column: str
    entry: int | None
    text: Any


def caption_places(rows: Sequence[Row], names: Sequence[str]) -> list[list[CaptionPlace]]:
    """Return where the captions of a sample are, by row, in the order of their numbers."""
    places: list[list[CaptionPlace]] = [[] for _ in rows]
    number = 0
    for name in names or (None,):
        for row, of_row in zip(rows, places, strict=True):
            column = name or _usual_column(row)
            value = field_at(row, column) if column else None
            entries: list[tuple[int | None, Any]] = [(None, value)]
            if isinstance(value, list):
                entries = [*enumerate(value)]
            for entry, text in entries:
                of_row.append(CaptionPlace(number, column or "", entry, text))
                number += 1
    return places


def _usual_column(row: Row) -> str | None:
    value = usual_caption(row, CAPTION_COLUMNS)
    return next((n for n in CAPTION_COLUMNS if value is not None and row.get(n) is value), None)


def shared_image(
    row: Row | BrokenRow, image_key: str | None = None
) -> tuple[str, bytes | None] | None:
    """Return the path and bytes of the image of a row, which other rows may share.

    None for a row that stands alone, as it has a key or is broken.
    """
    if isinstance(row, BrokenRow):
        return None
    image, path = image_of(row, image_key)
    return None if path is None or key_of(row, None) is not None else (path, image)


def by_image(
    rows: Iterable[Row | BrokenRow], image_key: str | None = None
) -> Iterator[list[Row | BrokenRow]]:
    """Group the rows of a table that share an image, at the place of the first.

    Unless they are consecutive, at most `MOST_ROWS` rows of an image, within some megabytes, are
    grouped; further ones come later. Rows that hold their images are grouped only if consecutive,
    as they are not delayed. An error of `rows` is raised after the rows before it.
    """
    waiting: list[list[Row | BrokenRow]] = []
    of_image: dict[object, list[Row | BrokenRow]] = {}
    held = 0
    failure: ShardError | None = None
    remaining = iter(rows)
    while True:
        try:
            row = next(remaining, None)
        except ShardError as error:
            row, failure = None, error
        image = shared_image(row, image_key) if row is not None else None
        if image is None and row is not None and not waiting:
            yield [row]
            continue
        if image is not None and len(of_image.get(image, ())) not in (0, MOST_ROWS):
            of_image[image].append(row)  # type: ignore[arg-type]
        elif row is not None:
            waiting.append([row])
            if image is not None:
                of_image[image] = waiting[-1]
        held += _size(row)
        if row is None or not of_image or held > _MOST_HELD or _holds_image(row, image_key):
            # The next rows may have the same image as the last ones.
            last = waiting.pop() if image is not None and of_image[image] is waiting[-1] else []
            held = sum(map(_size, last))
            if held > _MOST_HELD:
                waiting, last, held = [*waiting, last], [], 0
            yield from waiting
            waiting, of_image = ([last], {image: last}) if image is not None and last else ([], {})
        if failure is not None:
            raise failure
        if row is None:
            return


def _holds_image(row: Row | BrokenRow, image_key: str | None) -> bool:
    return isinstance(row, dict) and image_of(row, image_key)[0] is not None


def _size(row: Row | BrokenRow | None) -> int:
    """Estimate the bytes that a row takes, with all its nested values."""
    size = 0
    waiting: list[object] = [row]
    while waiting:
        value = waiting.pop()
        size += _VALUE_BYTES
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return size
