"""Estimates the pairs of a list of shards from the first samples of a few of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError

_SHARDS_LOOKED_AT = 3
_SAMPLES_LOOKED_AT = 200


def estimate_samples(shards: Sequence[ShardRef]) -> int:
    """Estimate the number of samples from their sizes at the start of up to three shards.

    Shards small enough to be read to their end count exactly, and so do those that know their
    rows. Unreadable shards count as none.
    """
    sizes = [shard.rows[1] - shard.rows[0] for shard in shards if shard.rows is not None]
    return sum(sizes) + _estimate([shard for shard in shards if shard.layout == WEBDATASET])


def _estimate(shards: Sequence[ShardRef]) -> int:
    looked_at = shards[:: max(1, len(shards) // _SHARDS_LOOKED_AT)][:_SHARDS_LOOKED_AT]
    samples = 0
    size = 0
    for shard in looked_at:
        seen, covered = _look(shard)
        samples += seen
        size += covered
    if not samples:
        return 0
    return round(sum(shard.size for shard in shards) * samples / size)


def _look(shard: ShardRef) -> tuple[int, int]:
    """Samples seen at the start of a shard and the bytes of the shard that they stand for."""
    reader = TarSamples(shard)
    try:
        samples = list(itertools.islice(reader, _SAMPLES_LOOKED_AT + 1))
    except ShardError as error:
        return error.samples, shard.size
    if len(samples) <= _SAMPLES_LOOKED_AT:
        return len(samples), shard.size
    return reader.samples, reader.bytes_read
