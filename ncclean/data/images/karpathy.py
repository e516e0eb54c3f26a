"""Karpathy's `dataset_*.json`: one object with a list of images, each with its captions and split.

The list is decoded an image at a time, so a file of any size takes little memory, and a unit begins
at the byte of its first image.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ncclean.data.images.row_units import cut_rows
from ncclean.data.images.text_rows import BrokenRow, Row, open_text
from ncclean.errors import InputError, ShardError, one_line

ENDING = ".json"
SPLITS = ("train", "restval", "val", "test")
_BLOCK = 1 << 20
_LONGEST_HEAD = 1 << 20  # characters before the list
_LONGEST_IMAGE = 4 << 20  # characters of one image with its captions
_LONGEST_REST = 16 << 20  # characters behind the list
_LIST = re.compile(r'"images"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_DECODER, _DECODER_OF_PAIRS = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=list)
_HEAD = '{"images": ['


class KarpathyRows:
    """The images of a file in order; `offset` is the byte at which the next one begins.

    Raises `ShardError` for a file that is not of this layout, or that ends in the middle, and
    `OSError` if it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stream = open_text(url)
        self._buffer, self._place, self.offset = "", 0, 0

    def __enter__(self) -> KarpathyRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def seek(self, offset: int) -> None:
        """Go on with the image that begins at a byte; 0 is the first one."""
        if offset:
            self._stream.seek(offset)
            self._buffer, self._place, self.offset = "", 0, offset
        else:
            self._skip_head()

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._take(_BETWEEN.match(self._buffer, self._place).end())  # type: ignore[union-attr]
            if self._place == len(self._buffer):
                if not self._read():
                    raise ShardError(f"{self._url} ends in the middle of its list of images")
                continue
            if self._buffer[self._place] == "]":
                self._check_rest()
                return
            value, end = self._decoded()
            self._take(end)
            yield value

    def _skip_head(self) -> None:
        while (begin := _LIST.search(self._buffer)) is None:
            if len(self._buffer) > _LONGEST_HEAD or not self._read():
                raise ShardError(
                    f"{self._url} has no list `images`: it is not of Karpathy's layout"
                )
        self._take(begin.end())

    def _check_rest(self) -> None:
        """Raise `ShardError` if the list is not followed by the end of its object.

        A bracket in the wrong place would end it early, and what follows would be lost in silence.
        """
        while len(self._buffer) - self._place <= _LONGEST_REST:
            if not self._read():
                try:
                    rest = _DECODER_OF_PAIRS.decode(_HEAD + self._buffer[self._place :])
                except (ValueError, RecursionError) as error:
                    where = self._where(error, self._place - len(_HEAD))
                    raise ShardError(
                        f"{self._url} is broken behind its list of images{where}"
                    ) from None
                if [name for name, _ in rest].count("images") > 1:
                    raise ShardError(f"{self._url} has two lists `images`: only the first is read")
                return
        raise ShardError(f"{self._url} has too much behind its list of images")

    def _decoded(self) -> tuple[Any, int]:
        while True:
            try:
                return _DECODER.raw_decode(self._buffer, self._place)
            except RecursionError:
                raise ShardError(f"{self._url}: an image is nested too deeply") from None
            except ValueError as error:
                if len(self._buffer) - self._place > _LONGEST_IMAGE:
                    raise ShardError(
                        f"{self._url}: an image has more than {_LONGEST_IMAGE:,} characters"
                    ) from None
                if not self._read():
                    raise ShardError(f"{self._url} is broken{self._where(error)}") from None

    def _where(self, error: Exception, shift: int = 0) -> str:
        """What the error says, and of which byte of the file; `shift` is added to its place."""
        if not isinstance(error, json.JSONDecodeError):
            return f": {one_line(error)}"
        before = self._buffer[self._place : error.pos + shift]
        return f" at byte {self.offset + _size(before):,}: {error.msg}"

    def _read(self) -> bool:
        """Read another block behind what is left; False at the end of the file."""
        block = self._stream.read(_BLOCK)
        self._buffer = self._buffer[self._place :] + block
        self._place = 0
        return bool(block)

    def _take(self, end: int) -> None:
        self.offset += _size(self._buffer[self._place : end])
        self._place = end


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def check_karpathy(url: str) -> None:
    """Raise `InputError` for a file that is not of the layout, or cannot be read that far."""
    try:
        with KarpathyRows(url) as rows:
            rows.seek(0)
            first = next(iter(rows), None)
    except (OSError, ShardError) as error:
        raise InputError(f"{url} cannot be read as Karpathy's json: {one_line(error)}") from error
    if not isinstance(first, dict) or "sentences" not in first:  # COCO's own files, for one
        raise InputError(f"{url} lists no images with sentences: it is not of Karpathy's layout")


def karpathy_units(url: str, splits: Sequence[str], unit_rows: int) -> list[tuple[int, int, int]]:
    """First row, row after the last, byte offset of each unit; rows are the images of the splits.

    Raises `ShardError` if the file cannot be read.
    """
    try:
        with KarpathyRows(url) as rows:
            rows.seek(0)
            return cut_rows(rows, unit_rows, lambda image: _is_of(image, splits))
    except OSError as error:
        raise ShardError(f"{url} cannot be read: {one_line(error)}") from error


def karpathy_rows(
    url: str, splits: Sequence[str], offset: int, count: int | None
) -> Iterator[Row | BrokenRow]:
    """The images of the splits from a byte offset on, as rows: path, captions and numbers."""
    try:
        with KarpathyRows(url) as rows:
            rows.seek(offset)
            images = (image for image in rows if _is_of(image, splits))
            yield from map(_row, itertools.islice(images, count))
    except OSError as error:
        raise ShardError(f"cannot be read: {one_line(error)}") from error


def _is_of(image: Any, splits: Sequence[str]) -> bool:
    """Whether an image is of one of the splits, or broken: then nobody knows."""
    return not splits or not isinstance(image, dict) or image.get("split") in splits


def _row(image: Any) -> Row | BrokenRow:
    if not isinstance(image, dict):
        return BrokenRow("an image that is not an object")
    name, folder = image.get("filename"), image.get("filepath")
    sentences = image.get("sentences")
    if not isinstance(name, str) or not isinstance(sentences, list):
        return BrokenRow("an image without `filename` or `sentences`")
    captions = [one.get("raw") if isinstance(one, dict) else None for one in sentences]
    path = posixpath.join(folder, name) if isinstance(folder, str) and folder else name
    numbers = {key: image[key] for key in ("imgid", "cocoid", "split") if key in image}
    return {"file_name": path, "captions": captions, **numbers}
