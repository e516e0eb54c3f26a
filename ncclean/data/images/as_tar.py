"""Units of tables and folders as webdataset tars, for what copies members."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Container
from typing import BinaryIO, cast

from PIL import Image

from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_members import add_member
from ncclean.errors import ShardError

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


def open_as_tar(shard: ShardRef) -> BinaryIO:
    """The bytes of a tar, or of one that is made of the unit for the time."""
    if shard.layout == WEBDATASET:
        return shard.open()
    tar = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  the caller closes it
    write_tar(shard, shard.name, tar)
    tar.seek(0)
    return tar


def write_tar(
    shard: ShardRef,
    name: str,
    out: BinaryIO,
    keys: Container[str] | None = None,
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
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        try:
            for sample in samples:
                if sample.image is None or (keys is not None and sample.key not in keys):
                    continue
                caption, fields = sample.caption, sample.metadata
                if kept is not None:
                    captions = kept.of_sample(sample.key, sample.captions)
                    if captions is None:
                        continue
                    caption, fields = captions["caption"], {**fields, **captions}
                key = tar_key(sample.key)
                uid = sample_uid(sample.metadata, name, sample.key)
                record = json.dumps({**fields, "uid": uid}, default=str)
                add_member(tar, f"{key}.{image_ending(sample.image)}", sample.image)
                add_member(tar, f"{key}.txt", (caption or "").encode())
                add_member(tar, f"{key}.json", record.encode())
        except ShardError:
            if not samples.samples:
                raise


def image_ending(image: bytes) -> str:
    """The usual ending of an image's format; `jpg` for what Pillow does not know."""
    try:
        with Image.open(io.BytesIO(image)) as opened:
            name = (opened.format or "jpg").lower()
    except Exception:  # decoders raise anything on hostile bytes
        return "jpg"
    return {"jpeg": "jpg", "tiff": "tif", "mpo": "jpg"}.get(name, name)
