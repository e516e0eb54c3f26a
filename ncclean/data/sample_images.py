"""The images of a few chosen samples of a shard, without reading the rest where possible."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Collection, Iterator

from ncclean.data.reader import read_samples
from ncclean.data.sample_groups import is_image, sample_member
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.errors import ShardError
from ncclean.stores import is_url

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
    seekable = not is_url(shard.url) and shard.url.endswith(".tar")
    try:
        with (
            shard.open() as stream,
            tarfile.open(fileobj=stream, mode="r:" if seekable else "r|*") as tar,
        ):
            while wanted and (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # else all are kept
                key = _image_key(member)
                if key not in wanted:
                    continue
                wanted.remove(key)
                yield key, _content(tar, member)
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise ShardError(" ".join(str(error).split()) or type(error).__name__) from error


def _pick_by_reading(shard: ShardRef, wanted: set[str]) -> Iterator[tuple[str, bytes | None]]:
    samples = iter(read_samples(shard, wanted=frozenset(wanted)))
    while wanted and (sample := next(samples, None)) is not None:
        if sample.key in wanted and sample.image is not None:
            wanted.remove(sample.key)
            yield sample.key, sample.image if len(sample.image) <= LARGEST_IMAGE else None


def _image_key(member: tarfile.TarInfo) -> str:
    """The key if the member is an image, as webdataset splits names, else nothing."""
    place = sample_member(member.name) if member.isreg() else None
    return place[0] if place is not None and is_image(place[1]) else ""


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    if member.size > LARGEST_IMAGE:
        return None
    extracted = tar.extractfile(member)
    data = extracted.read() if extracted is not None else b""
    if len(data) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return data
