"""Read a selection for training: sample counts per shard, and the keys of one shard at a time.

Only the counts are held, so a hundred million selected keys cost as little as a thousand: Parquet
row group statistics find the rows of a shard in milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from ncclean.base import stores
from ncclean.data.options import Captions
from ncclean.data.selection import (
    CAPTION_NUMBER,
    CAPTION_RANK,
    COLUMNS,
    FORGET,
    IMAGE_SIZE,
    MENDED,
    RETAIN,
    SelectedSample,
    not_captions,
    not_weights,
)
from ncclean.errors import InputError


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class SelectionReader:
    """Reads a selection file; `files` are local copies of a selection in a store.

    If an image has several captions, each is a sample (`captions` is `all`), only the best is
    (`best`), or a random one, drawn anew in each epoch (`sample`). Raises `InputError` if the file
    is not a selection.
    """

    def __init__(self, path: str, captions: Captions = "all", files: Sequence[str] = ()) -> None:
        self.path = path
        try:
            self._dataset = stores.ask(
                "read", path, ds.dataset, [*files] or path, filesystem=LocalFileSystem(),
                format="parquet",
            )  # fmt: skip
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise InputError(f"{path} is not a selection: {error}") from error
        missing = [name for name in COLUMNS if name not in self._dataset.schema.names]
        if missing:
            raise InputError(f"{path} is not a selection: it has no column {missing[0]}")
        if MENDED in self._dataset.schema.names:
            kind = self._dataset.schema.field(MENDED).type
            if not (pa.types.is_null(kind) or _is_text(kind)):
                raise InputError(not_captions(path, kind))
        optional = [
            name
            for name in (CAPTION_NUMBER, CAPTION_RANK, MENDED, IMAGE_SIZE)
            if name in self._dataset.schema.names
        ]
        self._columns = [*COLUMNS, *optional]
        self.captions = captions if CAPTION_RANK in optional else "all"

    def counts(self) -> dict[str, int]:
        """Return the number of selected samples by shard: pairs or images, as `captions` says."""
        counts: dict[str, int] = {}
        best = ds.field(CAPTION_RANK) == 0 if self.captions != "all" else None
        for batch in self._dataset.to_batches(columns=["shard"], filter=best):
            for entry in pc.value_counts(batch.column("shard")):
                name = entry["values"].as_py()
                counts[name] = counts.get(name, 0) + entry["counts"].as_py()
        return counts

    def has_weights(self) -> bool:
        """Check whether any selected pair has a weight other than 1.

        Raises `InputError` if a weight is negative or not finite, if all are 0, or there are none.
        """
        if self._dataset.count_rows() == 0:
            raise InputError(f"{self.path} selects no pair")
        is_weighted = has_positive = False
        # Value by value: a filter would go by the file's statistics, which leave out NaN.
        for batch in self._dataset.to_batches(columns=["weight"]):
            weights = self._weights(batch.column("weight")).to_numpy(zero_copy_only=False)
            if not (np.isfinite(weights) & (weights >= 0)).all():
                raise InputError(not_weights(self.path))
            is_weighted = is_weighted or bool((weights != 1).any())
            has_positive = has_positive or bool((weights > 0).any())
        if not has_positive:
            raise InputError(f"{self.path}: all weights are 0, which trains on nothing")
        return is_weighted

    def _weights(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return weights of any type of number as float64, 1 for null."""
        try:
            return column.cast(pa.float64()).fill_null(1.0)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(not_weights(self.path)) from error

    def has_forget_set(self) -> bool:
        """Check whether the selection marks pairs to forget.

        Raises `InputError` for a mark that is neither `forget` nor `retain`.
        """
        split = ds.field("split").cast(pa.string())
        unknown = ~(split.is_null() | split.isin([FORGET, RETAIN]))
        odd = self._dataset.scanner(columns={"split": split}, filter=unknown).head(1)
        for value in odd["split"].to_pylist():
            raise InputError(
                f"{self.path}: its column split takes {FORGET} or {RETAIN}, and has {value!r}"
            )
        return self._holds(split == FORGET)

    def _holds(self, condition: ds.Expression) -> bool:
        return any(
            len(batch) for batch in self._dataset.to_batches(columns=["shard"], filter=condition)
        )

    def samples(self, shard: str) -> dict[str, list[SelectedSample]]:
        """Return the selected pairs of one shard by key, the best caption of an image first."""
        condition = ds.field("shard") == shard
        if self.captions == "best":
            condition &= ds.field(CAPTION_RANK) == 0
        table = self._dataset.to_table(columns=self._columns, filter=condition)
        if CAPTION_RANK in self._columns:
            table = table.sort_by(CAPTION_RANK)
        optional = (
            table.column(name).to_pylist()
            if name in self._columns
            else itertools.repeat(None, len(table))
            for name in (CAPTION_NUMBER, MENDED, IMAGE_SIZE)
        )
        rows = zip(
            table.column("key").to_pylist(),
            table.column("uid").to_pylist(),
            self._weights(table.column("weight")).to_pylist(),
            table.column("split").to_pylist(),
            *optional,
            strict=True,
        )
        pairs: dict[str, list[SelectedSample]] = {}
        for key, uid, weight, split, *optional_values in rows:
            chosen = SelectedSample(uid, weight, split == FORGET, *optional_values)
            pairs.setdefault(key, []).append(chosen)
        return pairs
