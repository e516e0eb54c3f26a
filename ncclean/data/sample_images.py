"""The images of a few chosen samples of a shard, without reading the rest where possible."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef

LARGEST_IMAGE = 64 << 20  # bytes


def pick_images(shard: ShardRef, keys: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
    """Key and bytes of the picture of each chosen sample, in the shard's order.

    Of an uncompressed shard on a disk only the headers and the chosen members are read; another
    one is read up to the last of them. None stands for an image of more than 64 MiB. Keys that
    the shard does not hold are missing from the result. Raises `ShardError` if the shard cannot
    be read that far; what came before has been handed out by then.
    """
    wanted = set(keys)
    samples = iter(read_samples(shard, wanted=frozenset(wanted)))
    while wanted and (sample := next(samples, None)) is not None:
        if sample.key in wanted and sample.image is not None:
            wanted.remove(sample.key)
            yield sample.key, sample.image if len(sample.image) <= LARGEST_IMAGE else None
