"""Read the samples of a webdataset shard, ordinary or not, in input order.

`webdataset` itself drops or merges unusual samples (it raises on duplicate keys and splits a sample
whose members are interleaved with another's); a cleaning tool must account for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import BinaryIO

from ncclean.data.member_samples import Contents, CutMember, MemberSamples, too_large
from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    is_caption,
    is_image,
    sample_member,
    with_shorter_keys,
)
from ncclean.data.samples import CaptionKeys, Place, Sample, SkipReason, Unread
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_walk import BLOCK, TAR_ERRORS, TarMember, TarWalk
from ncclean.data.unpacking import unpacked
from ncclean.errors import ShardError

_NO_KEY, _LINK = "names without a key", "links"


class TarSamples(MemberSamples):
    """Iterates once over the samples of a tar.

    Raises `ShardError` at the end of the iteration if the file is not a tar, or is truncated. By
    then every sample before the cut has been yielded, the broken one as `sample_truncated`.
    """

    def __init__(
        self,
        shard: ShardRef,
        caption_key: CaptionKeys = None,
        opened: Callable[[], BinaryIO] | None = None,
        whole: bool = False,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Set up reading; `opened` returns a stream of the shard that was opened ahead.

        Only the headers are read of samples whose keys are not `wanted`.
        """
        super().__init__(shard, caption_key, whole, shows_all=wanted is not None)
        self._wanted = None if wanted is None else with_shorter_keys(wanted)
        self._open = opened or shard.open
        self.bytes_read = 0  # of the tar, headers and padding included
        self._is_tar = False  # whether the shard's own bytes are one

    @property
    def late_members(self) -> dict[int, TarMember]:
        """The json members of `late_metadata`, by row."""
        return {row: group.located["json"] for row, group in self._groups.late.items()}

    def __iter__(self) -> Iterator[Sample]:
        try:
            yield from self._grouped()
        except (CutMember, *TAR_ERRORS) as error:
            what = (
                f"is cut short after {self.samples} samples" if self.samples else "cannot be read"
            )
            raise ShardError(f"{what}: {reason_of(error)}", self.samples) from error

    def _members(self) -> Iterator[tuple[str, str, bytes | Unread, TarMember]]:
        with self._open() as packed, unpacked(packed) as stream:
            self._is_tar = stream is packed and self.shard.layout == WEBDATASET
            if self.shard.size == 0:
                raise EOFError("the file is empty")
            walk = TarWalk(stream, self._count_link)
            for member in walk:
                place = sample_member(member.name)
                if place is None:
                    self._count_nameless(member.name)
                    continue
                key, extension = place
                data = self._content(walk, member, key, extension)
                self.bytes_read = member.end
                yield key, extension, data, member

    def _locate(self, sample: Sample, group: Contents) -> None:
        sample.members = members = group.located
        if not self._is_tar:
            return
        offset = size = begin = None
        picture = members.get(sample.picture or "")
        if picture is not None and not picture.is_sparse:
            offset, size = picture.content, picture.size
        end, is_run = 0, not group.is_cut
        # Unpacked: attribute look-ups would slow this loop over every member of a corpus.
        for _, first, _, content, length, _ in members.values():
            if begin is None:
                begin = first
            elif first != end:
                is_run = False
            end = content + length + -length % BLOCK
        run = (begin, end - begin) if is_run and begin is not None else (None, None)
        sample.place = Place(None, offset, size, *run)

    def _content(
        self, walk: TarWalk, member: TarMember, key: str, extension: str
    ) -> bytes | Unread:
        content: bytes | Unread | None = b""
        is_wanted = self._wanted is None or key in self._wanted
        if is_wanted and self._is_used(key, extension):
            content = too_large(extension, member.size)
            if member.is_sparse:
                is_of_image = is_image(extension)
                reason = SkipReason.IMAGE_CORRUPT if is_of_image else SkipReason.CAPTION_NOT_TEXT
                content = Unread(reason, "a sparse file, which is not read")
        try:
            if content is None:
                return walk.read(member)
            walk.skip(member)
            return content
        except TAR_ERRORS as error:
            raise CutMember(key, extension, reason_of(error)) from error

    def _count_nameless(self, name: str) -> None:
        """Count an image or caption whose name is only an extension, and so has no key."""
        self._count(name, _NO_KEY)

    def _count_link(self, name: str) -> None:
        """Count an image or caption that is a link: links are not followed."""
        self._count(name, _LINK)
        if (place := sample_member(name)) is not None and is_image(place[1]):
            self.linked.append(place[0])

    def _count(self, name: str, called: str) -> None:
        _, dot, extension = name.rpartition(".")
        if dot and is_image(extension.lower()):
            self.further.add(self.further.images, called)
        elif dot and is_caption(extension.lower()):
            self.further.add(self.further.captions, called)


class LocatedSamples(TarSamples):
    """Locates the members of a tar's samples; reads no image.

    Samples with the keys `read`, all by default, have their captions and fields. For others, a json
    is read only if it may tell whether the sample is complete.
    """

    def __init__(
        self,
        shard: ShardRef,
        caption_key: CaptionKeys = None,
        opened: Callable[[], BinaryIO] | None = None,
        read: Collection[str] | None = (),
    ) -> None:
        super().__init__(shard, caption_key, opened)
        self._read = None if read is None else with_shorter_keys(read)

    def _is_used(self, key: str, extension: str) -> bool:
        is_read = self._read is None or key in self._read or self._may_complete(key, extension)
        return is_read and not is_image(extension) and super()._is_used(key, extension)

    def _may_complete(self, key: str, extension: str) -> bool:
        """Check whether a member is a json that may hold the sample's still missing caption."""
        group = self._groups.current
        if extension != "json" or group is None or group.key != key:
            return extension.rpartition(".")[2] == "json"
        if self.caption_keys:
            return not group.members.keys() >= {*self.caption_keys}
        return group.members.keys().isdisjoint(CAPTION_EXTENSIONS)

    def _sample(self, group: Contents) -> Sample:
        if self._read is None or group.key in self._read:
            return super()._sample(group)
        sample = Sample(group.row, group.key, members=group.located, picture=group.picture)
        if group.is_repeat:
            sample.reject(SkipReason.DUPLICATE_KEY)
        return sample


def reason_of(error: Exception) -> str:
    """Return the reason why a tar cannot be read, on one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
