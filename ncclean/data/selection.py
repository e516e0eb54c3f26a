"""A selection as training reads it: how many samples of each shard, and one shard's keys at a time.

Only the counts are held, so that a hundred million selected keys cost as little as a thousand: the
rows of a shard are found by the statistics of the Parquet row groups, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ncclean import stores
from ncclean.errors import InputError

COLUMNS = ("uid", "shard", "key", "weight", "split")
FORGET = "forget"


@dataclass(frozen=True)
class SelectedSample:
    """What the selection says of one sample."""

    uid: str
    weight: float
    is_forget: bool


class Selection(Protocol):
    """What a loader needs from a selection: it may lie in a file or in memory."""

    def counts(self) -> dict[str, int]:
        """Selected samples of each shard."""
        ...

    def samples(self, shard: str) -> dict[str, SelectedSample]:
        """The selected samples of one shard by key."""
        ...


class SelectionReader:
    """Reads a selection file. Raises `InputError` if the file is not a selection."""

    def __init__(self, path: str) -> None:
        self.path = path
        place = stores.location(path)
        try:
            self._dataset = stores.ask(
                "read", path, ds.dataset, place.path, filesystem=place.fs, format="parquet"
            )
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise InputError(f"{path} is not a selection: {error}") from error
        missing = [name for name in COLUMNS if name not in self._dataset.schema.names]
        if missing:
            raise InputError(f"{path} is not a selection: it has no column {missing[0]}")

    def counts(self) -> dict[str, int]:
        """Selected samples of each shard."""
        counts: dict[str, int] = {}
        for batch in self._dataset.to_batches(columns=["shard"]):
            for entry in pc.value_counts(batch.column("shard")):
                name = entry["values"].as_py()
                counts[name] = counts.get(name, 0) + entry["counts"].as_py()
        return counts

    def has_weights(self) -> bool:
        """Whether any pair weighs something else than 1."""
        return self._holds(ds.field("weight") != 1.0)

    def has_forget_set(self) -> bool:
        """Whether any pair is marked to be forgotten."""
        return self._holds(ds.field("split") == FORGET)

    def _holds(self, condition: ds.Expression) -> bool:
        return any(
            len(batch) for batch in self._dataset.to_batches(columns=["shard"], filter=condition)
        )

    def samples(self, shard: str) -> dict[str, SelectedSample]:
        """The selected samples of one shard by key."""
        table = self._dataset.to_table(columns=list(COLUMNS), filter=ds.field("shard") == shard)
        weights = np.asarray(table.column("weight").fill_null(1.0), dtype=np.float64)
        rows = zip(
            table.column("key").to_pylist(),
            table.column("uid").to_pylist(),
            weights.tolist(),
            table.column("split").to_pylist(),
            strict=True,
        )
        return {
            key: SelectedSample(uid, weight, split == FORGET) for key, uid, weight, split in rows
        }
