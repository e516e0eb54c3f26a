"""Present units of tables and folders as webdataset tars, for code that copies members."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

from PIL import Image

from ncclean.base.json_values import json_text
from ncclean.data.images.layout import Samples
from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_ranges import add_member
from ncclean.errors import ShardError

_PLAIN = re.compile(r"(?!__)[^./\0\n][^/\0\n]*(/[^./\0\n][^/\0\n]*)*")
_HASH_BYTES = 6


def tar_key(key: str) -> str:
    """Make a key usable as a member's name: without dots in its last part, for example.

    Changed keys end in a hash of the original, so that they stay distinct.
    """
    folder, slash, name = key.rpartition("/")
    if "." not in name and _PLAIN.fullmatch(key):
        return key
    digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest()
    plain = re.sub(r"[^\w/ -]", "_", f"{folder}{slash}{name}").strip("/_ ") or "key"
    return f"{plain}-{digest}"


def open_as_tar(shard: ShardRef, caption_key: str | None = None) -> BinaryIO:
    """Open a shard of images as a tar: itself, or a temporary tar made from its samples.

    The temporary tar has all samples of the shard except those that repeat a key. Images with
    several captions have a list in the json, under `caption_key` or `caption`.
    """
    if shard.layout == WEBDATASET:
        return shard.open()
    tar = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  the caller closes it
    samples = read_samples(shard, caption_key)
    with _written(tar) as members, _after_first_sample(samples):
        for sample in samples:
            if sample.status is not SkipReason.DUPLICATE_KEY:
                _add_whole(members, sample, shard.name, caption_key or "caption")
    tar.seek(0)
    return tar


def _written(out: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT)


@contextlib.contextmanager
def _after_first_sample(samples: Samples) -> Iterator[None]:
    """Ignore a `ShardError` once a sample has been read: the samples before it are usable."""
    try:
        yield
    except ShardError:
        if not samples.samples:
            raise


def _add_whole(tar: tarfile.TarFile, sample: Sample, name: str, caption_key: str) -> None:
    """Add a sample with all its captions, and without its image if that cannot be read."""
    if len(sample.captions) < 2:
        _add(tar, sample, name, sample.caption, sample.metadata)
        return
    captions: list[str | None] = [None] * (sample.captions[-1].number + 1)
    for caption in sample.captions:
        captions[caption.number] = caption.text
    _add(tar, sample, name, None, {**sample.metadata, caption_key: captions})


def _add(
    tar: tarfile.TarFile, sample: Sample, name: str, caption: str | None, fields: dict[str, Any]
) -> None:
    record = {**fields, "uid": sample_uid(sample.metadata, name, sample.key)}
    for member, data in sample_members(tar_key(sample.key), sample.image, caption, record):
        add_member(tar, member, data)


def sample_members(
    key: str, image: bytes | None, caption: str | None, record: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Return names and contents of a sample's members: image by format, caption, json."""
    if image is not None:
        yield f"{key}.{image_ending(image)}", image
    if caption is not None:
        yield f"{key}.txt", caption.encode()
    yield f"{key}.json", json_text(record).encode()


def image_ending(image: bytes) -> str:
    """Return the usual ending of an image's format; `jpg` for formats that Pillow does not know."""
    try:
        with Image.open(io.BytesIO(image)) as opened:
            name = (opened.format or "jpg").lower()
    except Exception:  # decoders raise any error on hostile bytes
        return "jpg"
    return {"jpeg": "jpg", "tiff": "tif", "mpo": "jpg"}.get(name, name)
