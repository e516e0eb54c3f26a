"""The images of a few chosen samples of a shard, without reading the rest where possible."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import is_image, sample_member
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import reason_of
from ncclean.data.tar_walk import TAR_ERRORS, TarMember, TarWalk
from ncclean.data.unpacking import unpacked
from ncclean.errors import ShardError

LARGEST_IMAGE = 64 << 20  # bytes


def pick_images(shard: ShardRef, keys: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
    """Key and bytes of the first image of each chosen sample, in the shard's order.

    Of an uncompressed shard on a disk only the headers and the chosen members are read; another
    one is read up to the last of them. None stands for an image of more than 64 MiB. Keys that
    the shard does not hold are missing from the result. Raises `ShardError` if the shard cannot
    be read that far; what came before has been handed out by then.
    """
    wanted = set(keys)
    if shard.layout != WEBDATASET:
        yield from _pick_by_reading(shard, wanted)
        return
    if not wanted:
        return
    try:
        with shard.open() as packed, unpacked(packed) as stream:
            walk = TarWalk(stream)
            for member in walk:
                key = image_key(member)
                if key not in wanted:
                    continue
                wanted.remove(key)
                is_shown = member.size <= LARGEST_IMAGE and not member.is_sparse
                yield key, walk.read(member) if is_shown else None
                if not wanted:
                    return
    except TAR_ERRORS as error:
        raise ShardError(reason_of(error)) from error


def _pick_by_reading(shard: ShardRef, wanted: set[str]) -> Iterator[tuple[str, bytes | None]]:
    samples = iter(read_samples(shard, wanted=frozenset(wanted)))
    while wanted and (sample := next(samples, None)) is not None:
        if sample.key in wanted and sample.image is not None:
            wanted.remove(sample.key)
            yield sample.key, sample.image if len(sample.image) <= LARGEST_IMAGE else None


def image_key(member: TarMember) -> str:
    """The key of a member that is an image, as webdataset splits names; else nothing."""
    place = sample_member(member.name)
    return place[0] if place is not None and is_image(place[1]) else ""
