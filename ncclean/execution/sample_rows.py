"""The rows of a shard of images: each sample with each of its captions, and their facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.base import schema
from ncclean.data.decoding import DecodedSample
from ncclean.data.member_samples import hashed_uids, own_uid
from ncclean.data.sample_groups import utf8
from ncclean.data.samples import OF_CAPTIONS, Caption, Sample, SkipReason, noise_of, of_caption

Whole = TypeVar("Whole", int, np.ndarray)


def place_of(row: Whole, caption: Whole) -> Whole:
    """Return sort keys that put pairs in the order of the table, from row and caption number."""
    place: Whole = (row << 16) + caption
    return place


def row_of(place: int) -> int:
    """Return the row of a pair's sample, from a sort key of `place_of`."""
    return place >> 16


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the score table: a sample with one of its captions."""

    decoded: DecodedSample
    caption: Caption

    @property
    def sample(self) -> Sample:
        return self.decoded.sample

    @property
    def status(self) -> SkipReason:
        """The sample's status if its image or all of it is unusable, else the caption's."""
        return self.caption.status if self._is_of_caption else self.sample.status

    @property
    def error(self) -> str | None:
        return self.caption.error if self._is_of_caption else self.sample.error

    @property
    def _is_of_caption(self) -> bool:
        is_usable = self.sample.status is SkipReason.OK
        has_reason = self.caption.status is not SkipReason.OK
        return is_usable or (has_reason and self.sample.status in OF_CAPTIONS)

    def field(self, name: str) -> object:
        """Return a field of the sample, or its value for this caption if it is a list."""
        return of_caption(self.sample.metadata, name, self.caption.number)

    @property
    def is_noisy(self) -> bool | None:
        return noise_of(self.sample.metadata, self.caption.number)


def captions_of(sample: Sample) -> list[Caption]:
    """Return the captions of a sample; an empty one if there is none, as each sample has a row."""
    return sample.captions or [Caption()]


def images_of_rows(scorable: Sequence[Row]) -> np.ndarray:
    """Return (n,) image numbers of n scorable rows, counting only images that have a pair."""
    begins = np.array(
        [row.sample is not before.sample for before, row in pairwise(scorable)], dtype=np.int64
    )
    return np.concatenate([[0], np.cumsum(begins)])[: len(scorable)].astype(np.int64)


def facts_of_rows(
    shard: str,
    late_metadata: Mapping[int, Mapping[str, object]],
    samples: list[DecodedSample],
    rows: list[Row],
) -> dict[str, pa.Array]:
    """Return (n,) columns of a shard's rows, all but the scores, such as uid, caption and status.

    `samples` are all of the shard, and `late_metadata` their fields, by row, that were read after
    them.
    """
    for row, metadata in late_metadata.items():
        fields = samples[row].sample.metadata
        fields.update({name: value for name, value in metadata.items() if name not in fields})
        place = samples[row].sample.place  # the json is not beside the other members
        samples[row].sample.place = place._replace(sample_offset=None, sample_size=None)
    captions = [row.caption for row in rows]
    places = [row.sample.place for row in rows]
    facts = {
        "shard": strings([shard] * len(rows)),
        "row": pa.array([row.sample.row for row in rows], pa.int32()),
        "caption_number": pa.array([caption.number for caption in captions], pa.int16()),
        "caption_key": strings([caption.key for caption in captions]),
        "text": strings([caption.text for caption in captions]),
        "url": strings([_text(row.field("url")) for row in rows]),
        "width": pa.array([row.decoded.width for row in rows], pa.int32()),
        "height": pa.array([row.decoded.height for row in rows], pa.int32()),
        "image_path": strings([_as_it_is(place.image_path) for place in places]),
        **{
            name: pa.array([getattr(place, name) for place in places], pa.int64())
            for name in schema.PLACE_COLUMNS[1:]
        },
        "status": strings([row.status.value for row in rows]),
        "error": strings([row.error for row in rows]),
        "is_noisy": pa.array([row.is_noisy for row in rows], pa.bool_()),
        "noise_kind": strings([_text(row.field("noise_kind")) or None for row in rows]),
    }
    numbers, later = repeated(rows)
    if len(numbers) > len(rows):
        facts = {name: values.take(numbers) for name, values in facts.items()}
        facts["row"] = pc.add(facts["row"], later)
    records = [rows[number].sample for number in numbers.to_pylist()]
    keys = [
        record.alike[further - 1] if further else record.key
        for record, further in zip(records, later.to_pylist(), strict=True)
    ]
    hashed = hashed_uids(shard, keys)
    uids = [own_uid(one.metadata) or uid for one, uid in zip(records, hashed, strict=True)]
    return facts | {"uid": strings(uids), "key": strings(keys)}


def repeated(rows: Sequence[Row]) -> tuple[pa.Array, pa.Array]:
    """Return the order in which rows enter the table if each sample stands for several alike.

    Returns indices into `rows`, and by how many samples each is later. A sample represents those of
    its `alike`; several captions of one stay together.
    """
    _, first, captions = np.unique(
        np.array([row.sample.row for row in rows], np.int64), return_index=True, return_counts=True
    )
    times = np.array([1 + len(rows[row].sample.alike) for row in first], np.int64)
    count = captions * times
    of_sample = np.repeat(np.arange(len(first)), count)
    place = np.arange(len(of_sample)) - (np.cumsum(count) - count)[of_sample]
    later, caption = np.divmod(place, captions[of_sample])
    return pa.array(first[of_sample] + caption), pa.array(later.astype(np.int32))


def fields_of(records: Sequence[dict[str, object]], names: Iterable[str]) -> dict[str, pa.Array]:
    """Return a column for each of the json fields with these names, as far as records have them."""
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [record.get(name) for record in records]
        if all(value is None for value in values):
            continue
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError):
            columns[name] = pa.array([None if v is None else str(v) for v in values])
    return columns


def check_places(facts: dict[str, pa.Array], samples: int) -> None:
    """Raise `AssertionError` unless each caption of each sample has exactly one row.

    The rows are those of the score table.
    """
    rows = facts["row"].to_numpy().astype(np.int64)
    places = place_of(rows, facts["caption_number"].to_numpy())
    if not np.array_equal(np.unique(rows), np.arange(samples)) or (np.diff(places) <= 0).any():
        raise AssertionError(f"rows of the shard are not 0 to {samples - 1}, by caption")


def strings(values: list[str | None] | list[str]) -> pa.Array:
    """Return texts as an Arrow array of strings, also if all are None."""
    return pa.array(values, pa.string())


def _as_it_is(path: str | None) -> str | None:
    """Return a path, unless it is not UTF-8: a changed name would be another file's."""
    return path if path is not None and utf8(path) == path else None


def _text(value: object) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
