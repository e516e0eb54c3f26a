"""Units of tables and folders as webdataset tars, for what copies members."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, cast

from PIL import Image

from ncclean.data.images.layout import Samples
from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys, Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_members import add_member
from ncclean.errors import ShardError
from ncclean.json_values import json_text

_PLAIN = re.compile(r"(?!__)[^./\0\n][^/\0\n]*(/[^./\0\n][^/\0\n]*)*")
_HASH_BYTES = 6


def tar_key(key: str) -> str:
    """A key as the name of a member can hold it: without dots in its last part, for example.

    Keys that need a change end in a hash of what they were, so that they stay apart.
    """
    folder, slash, name = key.rpartition("/")
    if "." not in name and _PLAIN.fullmatch(key):
        return key
    digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest()
    plain = re.sub(r"[^\w/ -]", "_", f"{folder}{slash}{name}").strip("/_ ") or "key"
    return f"{plain}-{digest}"


def open_as_tar(shard: ShardRef, caption_key: str | None = None) -> BinaryIO:
    """The bytes of a tar, or of one that is made of the unit for the time.

    That one has all samples of the unit but those that repeat a key. Where images have several
    captions they are a list in the json, under `caption_key` or as `caption`.
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


def write_tar(
    shard: ShardRef,
    name: str,
    out: BinaryIO,
    keys: Collection[str] | None = None,
    kept: KeptCaptions | None = None,
    caption_key: CaptionKeys = None,
) -> None:
    """Write the usable samples of a unit, or those with `keys`, as a tar.

    A sample becomes `key.jpg`, `key.txt` and `key.json`: the image as it is under its own ending,
    its first caption (by `caption_key`) or those that are `kept`, the other fields with the uid
    that the sample has in the shard `name`. What cannot be read is left out. Raises `ShardError` if
    the unit cannot be read at all.
    """
    samples = read_samples(shard, caption_key, wanted=keys)
    with _written(out) as tar, _after_first_sample(samples):
        for sample in samples:
            if sample.image is None or (keys is not None and sample.key not in keys):
                continue
            caption, fields = sample.caption, sample.metadata
            if kept is not None and sample.key in kept:
                captions = kept.of_sample(sample.key, sample.captions, fields)
                if captions is None:
                    continue
                kept.mend_in(sample.key, fields)
                caption, fields = captions["caption"], {**fields, **captions}
            _add(tar, sample, name, caption or "", fields)


def _written(out: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT)


@contextlib.contextmanager
def _after_first_sample(samples: Samples) -> Iterator[None]:
    """Ignore a `ShardError` once a sample has been read: what came before it is there."""
    try:
        yield
    except ShardError:
        if not samples.samples:
            raise


def _add_whole(tar: tarfile.TarFile, sample: Sample, name: str, caption_key: str) -> None:
    """Add a sample with all its captions, and without an image if that cannot be read."""
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
    key = tar_key(sample.key)
    uid = sample_uid(sample.metadata, name, sample.key)
    record = json_text({**fields, "uid": uid})
    if sample.image is not None:
        add_member(tar, f"{key}.{image_ending(sample.image)}", sample.image)
    if caption is not None:
        add_member(tar, f"{key}.txt", caption.encode())
    add_member(tar, f"{key}.json", record.encode())


def image_ending(image: bytes) -> str:
    """The usual ending of an image's format; `jpg` for what Pillow does not know."""
    try:
        with Image.open(io.BytesIO(image)) as opened:
            name = (opened.format or "jpg").lower()
    except Exception:  # decoders raise anything on hostile bytes
        return "jpg"
    return {"jpeg": "jpg", "tiff": "tif", "mpo": "jpg"}.get(name, name)
