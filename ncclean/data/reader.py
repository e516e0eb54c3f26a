"""The samples of a shard, whatever layout it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

from ncclean.data.images.samples import FolderSamples, TableSamples
from ncclean.data.images.units import FOLDER, TABLE
from ncclean.data.samples import Sample
from ncclean.data.shards import ShardRef
from ncclean.data.tar import TarSamples


class SampleReader(Protocol):
    """Iterates over the samples of a shard once, in input order."""

    @property
    def samples(self) -> int:
        """Samples begun so far."""
        ...

    @property
    def late_metadata(self) -> dict[int, dict[str, Any]]:
        """By row, fields that came after their sample had been yielded."""
        ...

    def __iter__(self) -> Iterator[Sample]:
        """Raises `ShardError` at the end if the shard could not be read as a whole."""
        ...


def read_samples(
    shard: ShardRef,
    caption_key: str | None = None,
    opened: Callable[[], BinaryIO] | None = None,
) -> SampleReader:
    """The samples of a shard of images; `opened` gives the stream of a tar opened before."""
    if shard.layout == TABLE:
        return TableSamples(shard, caption_key)
    if shard.layout == FOLDER:
        return FolderSamples(shard, caption_key)
    return TarSamples(shard, caption_key, opened)
