"""The index of a shard: its scorable samples, their captions, and the places of their members.

An index lets a shard be rewritten by copying bytes, without taking the tar apart again, and the
image of any sample be fetched by its place.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, Any, cast

import numpy as np

from ncclean.data.caption_noise import is_changeable
from ncclean.data.captions import check_is_of_the_bytes
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.sample_groups import CAPTION_EXTENSIONS, is_image
from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar import TarSamples
from ncclean.data.tar_walk import TarMember
from ncclean.data.unpacking import is_packed, unpacked
from ncclean.errors import ShardError


class Role(IntEnum):
    """The role of a member in its sample."""

    OTHER = 0
    IMAGE = 1
    CAPTION = 2
    JSON = 3
    NAMED = 4  # the caption that the caption key names
    FURTHER_IMAGE = 5


CAPTIONS = (Role.CAPTION, Role.NAMED)


@dataclass(frozen=True)
class ShardIndex:
    """The P scorable samples of a shard in the order of their rows, C captions, and M members.

    `entries` (S,) int64 are the captions that each of all the samples lists, 1 for one without.
    `rows` (P,) int64. `first` (P + 1,) int64 numbers the captions of the samples that can be used:
    those of sample p are `first[p]` to `first[p + 1]`. `numbers` (C,) int64 is the place of each
    among those that its sample lists, `captions` (C + 1,) int64 offsets into `text`, UTF-8.
    `changeable` (C,) bool tells whether one word of the caption can be changed. `members` (M, 5)
    int64, in the order of the shard: sample, role, the offsets `begin` and `end` of `Member`, and
    the number of characters in its extension.
    `images` (P,) is the place of each sample's image in `members`, `image_hash` (P,) uint64 tells
    images of other bytes apart. `error` is why the shard is cut short, or "".
    """

    samples: int
    entries: np.ndarray
    rows: np.ndarray
    first: np.ndarray
    numbers: np.ndarray
    text: np.ndarray
    captions: np.ndarray
    changeable: np.ndarray
    members: np.ndarray
    images: np.ndarray
    image_hash: np.ndarray
    compressed: bool
    error: str

    @property
    def usable(self) -> int:
        """P, the number of scorable samples."""
        return len(self.rows)

    @property
    def pairs(self) -> int:
        """C, the number of scorable pairs of an image and a caption."""
        return len(self.numbers)

    def caption(self, number: int) -> str:
        begin, end = self.captions[number : number + 2]
        return self.text[begin:end].tobytes().decode("utf-8")

    def to_bytes(self) -> bytes:
        """Pack the index of a shard into a compressed npz archive."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in _FIELDS}
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardIndex:
        """Unpack the index of a shard from an npz archive. Raises `ValueError` for other bytes."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                fields = {name: arrays[name] for name in _FIELDS}
        except (KeyError, OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError("not a shard index") from error
        scalars = {name: fields.pop(name).item() for name in ("samples", "compressed", "error")}
        return cls(**fields, **scalars)


_FIELDS = tuple(ShardIndex.__dataclass_fields__)


def index_shard(shard: ShardRef, caption_key: str | None = None) -> ShardIndex:
    """Read a tar once and index its samples, without decoding: a corrupt image counts as one.

    A shard that is cut short has the index of what comes before. Raises `InputError` if it cannot
    be read at all for a reason that is not in its bytes.
    """
    samples = TarSamples(shard, caption_key, lambda: open_as_tar(shard, caption_key))
    scorable: list[tuple[Sample, list[Caption], bytes]] = []
    entries: dict[int, int] = {}
    error = ""
    try:
        for sample in samples:
            entries[sample.row] = max((one.number for one in sample.captions), default=0) + 1
            if sample.status is SkipReason.OK:
                digest = hashlib.blake2b(cast(bytes, sample.image), digest_size=8).digest()
                usable = [one for one in sample.captions if one.text is not None]
                sample.image = None
                scorable.append((sample, usable, digest))
    except ShardError as broken:
        check_is_of_the_bytes(shard, broken)
        error = str(broken)
    scorable.sort(key=lambda one: one[0].row)
    late = samples.late_members
    members = [
        (number, _role(extension, sample, caption_key), member.begin, member.end, len(extension))
        for number, (sample, _, _) in enumerate(scorable)
        for extension, member in _with_late(sample, late.get(sample.row)).items()
    ]
    members.sort(key=lambda member: member[2])
    table = np.array(members, dtype=np.int64).reshape(-1, 5)
    captions = [one for _, usable, _ in scorable for one in usable]
    texts = [cast(str, one.text) for one in captions]
    encoded = [text.encode() for text in texts]
    return ShardIndex(
        samples=samples.samples,
        entries=np.array([entries[row] for row in sorted(entries)], dtype=np.int64),
        rows=np.array([sample.row for sample, _, _ in scorable], dtype=np.int64),
        first=_ends([len(usable) for _, usable, _ in scorable]),
        numbers=np.array([one.number for one in captions], dtype=np.int64),
        text=np.frombuffer(b"".join(encoded), dtype=np.uint8),
        captions=_ends([len(text) for text in encoded]),
        changeable=np.array([is_changeable(text) for text in texts], dtype=bool),
        members=table,
        images=_images(table, len(scorable)),
        image_hash=np.frombuffer(b"".join(digest for _, _, digest in scorable), dtype="<u8"),
        compressed=_is_compressed(shard),
        error=error,
    )


def _ends(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def open_tar(shard: ShardRef, caption_key: str | None = None) -> IO[bytes]:
    """The bytes that `index_shard` indexes: the shard's, uncompressed."""
    return unpacked(open_as_tar(shard, caption_key))


def _with_late(sample: Sample, late: TarMember | None) -> dict[str, TarMember]:
    """The members of a sample, with a json that came later unless there was one before."""
    return sample.members if late is None else {"json": late, **sample.members}


def _role(extension: str, sample: Sample, caption_key: str | None) -> Role:
    if extension == sample.picture:
        return Role.IMAGE
    if extension == "json":
        return Role.JSON
    if caption_key and extension == caption_key.lower():
        return Role.NAMED
    if extension in CAPTION_EXTENSIONS:
        return Role.CAPTION
    return Role.FURTHER_IMAGE if is_image(extension) else Role.OTHER


def _images(members: np.ndarray, samples: int) -> np.ndarray:
    """(P,) places of the samples' images among the members."""
    images = np.flatnonzero(members[:, 1] == Role.IMAGE)
    of_sample = np.full(samples, -1, dtype=np.int64)
    of_sample[members[images, 0]] = images
    return of_sample


def _is_compressed(shard: ShardRef) -> bool:
    if shard.layout != WEBDATASET:  # nor can be read from the middle
        return True
    with shard.open() as stream:
        return is_packed(stream)
