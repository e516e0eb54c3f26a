"""The samples of a table with images or paths of images, and of a folder of loose files."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from ncclean import stores
from ncclean.data.images.files import UnreadableFile
from ncclean.data.images.listing import Entry, entries_of
from ncclean.data.images.rows import rows_of
from ncclean.data.images.text_rows import BrokenRow, LeftOut, Row
from ncclean.data.images.unit_files import UnitFiles
from ncclean.data.member_samples import MemberSamples, caption_keys, take_captions, too_large
from ncclean.data.nested_fields import field_at, head_of
from ncclean.data.sample_groups import is_image, usual_caption, utf8
from ncclean.data.samples import CaptionKeys, Sample, SkipReason, Unread
from ncclean.data.shards import ShardRef

# Names that columns have in the layouts we read, the first that is there counts.
IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "bytes")
STRUCT_FIELDS = {"bytes", "path"}  # of Hugging Face's images, whatever their column is called
PATH_COLUMNS = ("file_name", "filepath", "image_path", "img_path", "path", "filename", "file")
CAPTION_COLUMNS = ("caption", "text", "title", "txt", "captions", "text_content")
_KEY_COLUMNS = ("key", "__key__")


class TableSamples:
    """Iterates over the samples of a unit of a table once, a row each.

    Raises `ShardError` at the end if parts of the file could not be read; their rows are there, as
    `row_broken`.
    """

    def __init__(self, shard: ShardRef, caption_key: CaptionKeys, files: UnitFiles) -> None:
        self.shard = shard
        self.samples = 0
        self.late_metadata: dict[int, dict[str, Any]] = {}
        self._caption_keys = caption_keys(caption_key)
        self._files = files
        self._keys: set[str] = set()

    def __iter__(self) -> Iterator[Sample]:
        begun = map(self._begin, rows_of(self.shard))
        yield from self._files.map(lambda row: self._read(*row), begun)

    def _begin(self, row: Row | BrokenRow) -> tuple[Sample, bytes | str | None]:
        """A sample and its image, or where that lies."""
        number = self.samples
        self.samples += 1
        first = self.shard.rows[0] if self.shard.rows is not None else 0
        place = f"{first + number:09d}"
        if isinstance(row, BrokenRow):
            return _broken(number, place, row.what), None
        used = (*IMAGE_COLUMNS, *PATH_COLUMNS, *_KEY_COLUMNS)
        captions = tuple(map(head_of, self._caption_keys)) or CAPTION_COLUMNS
        for name in (*used, *captions):
            if isinstance(value := row.get(name), LeftOut):
                return _broken(number, place, value.what), None
        image, path = _image(row)
        sample = Sample(row=number, key=_key(row, path) or place, metadata=_metadata(row))
        if sample.key in self._keys:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        self._keys.add(sample.key)
        if image is None and path is None:
            sample.reject(SkipReason.IMAGE_MISSING)
        elif image is None and _is_web_address(str(path)):
            sample.reject(SkipReason.IMAGE_MISSING, f"{path}: download it first")
        named = [(name, field_at(row, name)) for name in self._caption_keys]
        take_captions(sample, named or [(None, usual_caption(row, CAPTION_COLUMNS))])
        return sample, path if image is None else image

    def _read(self, sample: Sample, image: bytes | str | None) -> Sample:
        if not self._files.is_wanted(sample.key):
            return sample
        if isinstance(image, str) and sample.status is SkipReason.OK:
            try:
                image = self._files.read(image)
            except UnreadableFile as error:
                sample.reject(error.reason, str(error))
        if image == b"":
            sample.reject(SkipReason.IMAGE_CORRUPT, "zero bytes")
        if sample.status is SkipReason.OK and isinstance(image, bytes):
            sample.image = image
        return sample


class FolderSamples(MemberSamples):
    """Iterates over the samples of a unit of a folder once: files alike but for their ending.

    Raises `ShardError` if the folder cannot be listed.
    """

    def __init__(self, shard: ShardRef, caption_key: CaptionKeys, files: UnitFiles) -> None:
        super().__init__(caption_key, shard.size)
        self.shard = shard
        self._files = files
        self._folder = shard.url if stores.is_url(shard.url) else os.path.abspath(shard.url)

    def __iter__(self) -> Iterator[Sample]:
        yield from self._grouped()

    def _members(self) -> Iterator[tuple[str, str, bytes | Unread]]:
        entries = entries_of(self.shard.url, self.shard.span, self.caption_keys)
        yield from self._files.map(self._member, entries)

    def _member(self, entry: Entry) -> tuple[str, str, bytes | Unread]:
        key = utf8(entry.key)
        data: bytes | Unread = b""
        if self._files.is_wanted(key) and self._is_used(key, entry.extension):
            data = too_large(entry.extension, entry.size) or self._read(entry)
        return key, entry.extension, data

    def _read(self, entry: Entry) -> bytes | Unread:
        try:
            return self._files.read(posixpath.join(self._folder, entry.name))
        except UnreadableFile as error:
            is_of_image = is_image(entry.extension)
            return Unread(error.reason if is_of_image else SkipReason.CAPTION_MISSING, str(error))


def _broken(number: int, key: str, what: str) -> Sample:
    return Sample(row=number, key=key, status=SkipReason.ROW_BROKEN, error=what)


def _image(row: Row) -> tuple[bytes | None, str | None]:
    """The image of a row, and its path: Hugging Face's struct, of any name, may have both."""
    structs = (
        name
        for name, value in row.items()
        if isinstance(value, Mapping) and value.keys() >= STRUCT_FIELDS
    )
    for name in (*IMAGE_COLUMNS, *structs, *PATH_COLUMNS):
        value = row.get(name)
        image, path = value, value
        if isinstance(value, Mapping):
            image, path = value.get("bytes"), value.get("path")
        is_path = isinstance(path, str) and path != ""
        if isinstance(image, bytes) or is_path:
            return image if isinstance(image, bytes) else None, path if is_path else None
    return None, None


def _is_web_address(path: str) -> bool:
    """Which nothing here fetches."""
    return path.startswith(("http://", "https://"))


def _key(row: Row, path: str | None) -> str | None:
    for name in _KEY_COLUMNS:
        value = row.get(name)
        if isinstance(value, str | int) and value != "":
            return utf8(str(value))
    return utf8(posixpath.splitext(path.replace(os.sep, "/"))[0]) if path is not None else None


def _metadata(row: Row) -> dict[str, Any]:
    """The fields beside the image."""
    unfit = (bytes, Mapping, list, LeftOut)
    return {name: value for name, value in row.items() if not isinstance(value, unfit)}
