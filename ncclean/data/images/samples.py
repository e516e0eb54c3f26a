"""Read the samples of a table with images or paths of images."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from ncclean.data.images.columns import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    PATH_COLUMNS,
    by_image,
    further_images,
    image_column,
    image_of,
    key_of,
)
from ncclean.data.images.files import UnitFiles, UnreadableFile
from ncclean.data.images.text_rows import BrokenRow, LeftOut, Row
from ncclean.data.member_samples import CaptionsLeft, caption_keys, take_captions
from ncclean.data.nested_fields import field_at, head_of
from ncclean.data.sample_groups import usual_caption
from ncclean.data.samples import (
    TRUTH,
    CaptionKeys,
    FurtherMembers,
    Place,
    Sample,
    SkipReason,
    of_caption,
)
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError


class TableSamples:
    """Iterates once over the samples in a shard of a table, one for the rows of each image.

    For `together` and `whole`, see `ncclean.data.reader.read_samples`. Raises `ShardError` at the
    end if parts of the file could not be read; their rows come as `row_broken`.
    """

    def __init__(
        self,
        shard: ShardRef,
        rows: Iterable[Row | BrokenRow],
        caption_key: CaptionKeys,
        files: UnitFiles,
        together: bool = False,
        whole: bool = False,
    ) -> None:
        self.shard = shard
        self._rows = rows
        self.samples = 0
        self.late_metadata: dict[int, dict[str, Any]] = {}
        self._caption_keys = caption_keys(caption_key)
        captions = tuple(map(head_of, self._caption_keys)) or CAPTION_COLUMNS
        key = shard.image_key
        images = (head_of(key),) if key is not None else (*IMAGE_COLUMNS, *PATH_COLUMNS)
        self._used = {*images, *KEY_COLUMNS, *captions}
        self.further = FurtherMembers()
        self.further.names = files.other_names
        self._files = files
        self._together = together
        self._whole = whole
        self._captions_left = CaptionsLeft(shard.size)
        self._first = shard.rows[0] if shard.rows is not None else 0
        self._keys: dict[str, str | int | None] = {}  # including image identities
        self._numbers: dict[int, int] = {}  # by id of the rows that wait for others of their image

    def __iter__(self) -> Iterator[Sample]:
        yield from self._files.map(lambda row: self._read(*row), self._begun())

    def _begun(self) -> Iterator[tuple[Sample, bytes | str | None]]:
        """Yield the samples with their images, or the paths of these."""
        numbered = self._numbered() if self._whole else self._rows
        groups = by_image(numbered, self.shard.image_key)
        failure: ShardError | None = None
        held: Sample | None = None  # may represent the samples that follow
        of_held: list[Row | BrokenRow] = []
        while True:
            try:
                rows = next(groups, None)
            except ShardError as error:
                rows, failure = None, error
            if held is not None:
                if rows == of_held and (place := self._place()) not in self._keys:
                    held.alike.append(place)
                    self.samples += 1
                    continue
                if held.key in self._keys:
                    self._keys |= dict.fromkeys(held.alike)
                yield held, None
                held = None
            if failure is not None:
                raise failure
            if rows is None:
                return
            sample, image = self._begin(rows)
            if self._together and _may_repeat(sample, rows[0], self.shard.image_key):
                held, of_held = sample, rows
            else:
                yield sample, image

    def _numbered(self) -> Iterator[Row | BrokenRow]:
        """Yield the rows, noting their numbers: those of an image need not be consecutive."""
        for number, row in enumerate(self._rows):
            if isinstance(row, dict):
                self._numbers[id(row)] = number
            yield row

    def _place(self) -> str:
        """Return the key of a row without one."""
        return f"{self._first + self.samples:09d}"

    def _begin(self, rows: list[Row | BrokenRow]) -> tuple[Sample, bytes | str | None]:
        """Make a sample of one image's rows; return it with the image or its path."""
        place, number = self._place(), self.samples
        self.samples += 1
        row, numbers = rows[0], [self._numbers.pop(id(row), 0) for row in rows]
        if isinstance(row, BrokenRow):
            return _broken(number, place, row.what), None
        for name, value in row.items():
            if isinstance(value, LeftOut) and name in self._used:
                sample = _broken(number, place, value.what)
                sample.row_numbers = numbers
                return sample, None
        column, image, path = image_column(row, self.shard.image_key)
        further = list(further_images(row, self.shard.image_key))
        for name in further:
            self.further.add(self.further.images, name)
        whole = cast(list[Row], rows)  # a broken row is always alone
        named: list[tuple[str | None, list[object]]] = [
            (name, [field_at(one, name) for one in whole]) for name in self._caption_keys
        ] or [(None, [usual_caption(one, CAPTION_COLUMNS) for one in whole])]
        metadata = _metadata(whole, [values for _, values in named])
        if image is not None and column is not None:
            metadata.pop(column, None)  # it may be a text
        key = key_of(row, None)
        identity = path if image is None or (key or path) is None else hash(image)
        if key is None or self._keys.get(key) not in (None, identity):
            # A table merged from several shards has their keys, each possibly counted from 0, and
            # images of several folders may have one name.
            key = key_of({}, path)
            key = None if key in self._keys else key
        sample = Sample(
            row=number,
            key=key or place,
            metadata=metadata,
            place=Place(path if image is None else None),
            further_images=further,
        )
        if sample.key in self._keys:
            sample.reject(SkipReason.DUPLICATE_KEY, "the key occurs earlier in the shard")
        self._keys[sample.key] = identity
        if self._whole:
            sample.rows = whole
            sample.row_numbers = numbers
        if image is None and path is None:
            where = f"no picture in {self.shard.image_key}" if self.shard.image_key else None
            sample.reject(SkipReason.IMAGE_MISSING, where)
        elif image is None and _is_web_address(str(path)):
            sample.reject(SkipReason.IMAGE_MISSING, f"{path}: download it first")
        take_captions(sample, [(name, _flat(values)) for name, values in named])
        self._captions_left.take(sample)
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
            if sample.place.image_path is not None:
                sample.place = sample.place._replace(image_size=len(image))
        return sample


def _broken(number: int, key: str, what: str) -> Sample:
    return Sample(row=number, key=key, status=SkipReason.ROW_BROKEN, error=what)


def _may_repeat(sample: Sample, row: Row | BrokenRow, image_key: str | None) -> bool:
    """Check whether an equal row makes a sample that differs only in row and key.

    Such rows have no image, key or uid: millions of them take few bytes of a file.
    """
    if sample.status in (SkipReason.OK, SkipReason.DUPLICATE_KEY) or sample.image is not None:
        return False
    if isinstance(row, BrokenRow):
        return True
    is_text = all(value is None or isinstance(value, str) for value in row.values())  # True == 1
    has_place = image_of(row, image_key) != (None, None) or key_of(row, None)
    return is_text and "uid" not in row and not has_place


def _is_web_address(path: str) -> bool:
    """Check whether a path is a web address, which is never fetched here."""
    return path.startswith(("http://", "https://"))


def _flat(values: list[object]) -> object:
    """Flatten the captions of an image's rows, each a text or a list of texts."""
    if len(values) == 1:
        return values[0]
    return [text for one in values for text in _entries(one)]


def _entries(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _metadata(rows: list[Row], captions: list[list[object]]) -> dict[str, Any]:
    """Return the fields beside the image; where rows differ, a list with a value for each caption.

    `captions` are those of each row, a text or a list, by caption key. The uid is the image's: that
    of the first row.
    """
    unfit = (bytes, Mapping, list, LeftOut)
    fields = {
        name: value
        for name, value in rows[0].items()
        if not isinstance(value, unfit) or (name in TRUTH and isinstance(value, list))
    }
    if len(rows) == 1:
        return fields
    places = [itertools.count() for _ in rows]
    entries = [
        (row, next(place))
        for values in captions
        for row, place, value in zip(rows, places, values, strict=True)
        for _ in _entries(value)
    ]
    for name in dict.fromkeys((*fields, *TRUTH)) if entries else ():
        values = [
            of_caption(row, name, number) if name in TRUTH else row.get(name)
            for row, number in entries
        ]
        is_same = values.count(values[0]) == len(values)
        if name != "uid" and (name in fields or not is_same or values[0] is not None):
            fields[name] = values[0] if is_same else values
    return fields
