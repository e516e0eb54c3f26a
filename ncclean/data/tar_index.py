"""The byte ranges of a tar's samples, to copy or read without unpacking.

Which members make a sample is up to `ncclean.data.sample_groups`, as it is in scoring.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from ncclean.data.member_names import with_shorter_keys
from ncclean.data.member_samples import caption_keys
from ncclean.data.nested_fields import field_at
from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    JSON_CAPTIONS,
    Group,
    SampleGroups,
    may_be_caption,
    parse_json,
    sample_member,
    usual_caption,
    utf8,
)
from ncclean.data.samples import CaptionKeys
from ncclean.data.tar_members import read_content
from ncclean.data.tar_walk import TAR_ERRORS, TarWalk
from ncclean.data.text_budget import LARGEST_TEXT
from ncclean.errors import ShardError
from ncclean.regular_files import open_file

_READ_BUFFER = 64 << 10
_NO_PREFIX = "/."  # a name with it has no key


class LocatedSample(Group):
    """The places of a sample's members: `begin` of the headers, `end` of the padding of each.

    `members` has them by extension in the order of the tar; they need not lie side by side. Only a
    json that may hold the caption is read.
    """

    __slots__ = ("_caption_keys", "_source")
    members: dict[str, tuple[int, int]]

    def __init__(
        self, row: int, key: str, source: int, keys: Sequence[str], image_key: str | None
    ) -> None:
        super().__init__(row, key, image_key)
        self._source, self._caption_keys = source, keys

    @property
    def size(self) -> int:
        return sum(end - begin for begin, end in self.members.values())

    @property
    def has_caption(self) -> bool:
        if self._caption_keys:
            further = [name for name in self._caption_keys if name not in self.members]
            fields = self._fields() if further else {}
            return all(may_be_caption(field_at(fields, name)) for name in further)
        if not self.members.keys().isdisjoint(CAPTION_EXTENSIONS):
            return True
        return may_be_caption(usual_caption(self._fields(), JSON_CAPTIONS))

    def _fields(self) -> dict[str, Any]:
        """The fields of a sample's json that may hold its caption."""
        begin, end = self.members.get("json", (0, 0))
        if begin == end or end - begin > 2 * LARGEST_TEXT:  # headers included
            return {}
        return parse_json(read_content(os.pread(self._source, end - begin, begin)))


def locate_samples(
    path: Path,
    keys: Collection[str] | None = None,
    caption_key: CaptionKeys = None,
    image_key: str | None = None,
) -> list[LocatedSample]:
    """The samples of an uncompressed local tar in order of appearance, or those with `keys`.

    Of samples that share a key, the one that scoring takes by `caption_key` and `image_key` is
    returned. A tar that is cut short gives the members before the cut. Raises `ShardError` if the
    file is not a tar.
    """
    names = caption_keys(caption_key)
    wanted = None if keys is None else with_shorter_keys(keys)
    with open_file(path, _READ_BUFFER) as source:
        groups = SampleGroups(
            lambda row, key: LocatedSample(row, key, source.fileno(), names, image_key)
        )
        finished: list[LocatedSample] = []
        # Nearly always the next member is of the same sample, or of one that is not wanted either.
        key, prefix, skipped = "", _NO_PREFIX, _NO_PREFIX
        for name, begin, end in _members(source):
            is_open = groups.current is not None
            if is_open and name.startswith(prefix) and "/" not in (rest := name[len(prefix) :]):
                extension = rest.lower()
            elif not is_open and name.startswith(skipped) and "/" not in name[len(skipped) :]:
                continue
            else:
                member = sample_member(name)
                if member is None:
                    continue
                key, extension = member
                if wanted is not None and key not in wanted:
                    finished += groups.pause()
                    prefix, skipped = _NO_PREFIX, f"{key}."
                    continue
                prefix = f"{key}."
            extension, done = groups.open(key, extension, end - begin)
            finished += done
            cast(LocatedSample, groups.current).members[extension] = begin, end
        finished += groups.end()
    samples = {
        sample.row: sample
        for sample in finished
        if not sample.is_repeat and (keys is None or sample.key in keys)
    }
    for row, late in groups.late.items():
        if row in samples:
            samples[row].members.setdefault("json", late.members["json"])
    return [samples[row] for row in sorted(samples)]


def _members(source: IO[bytes]) -> Iterator[tuple[str, int, int]]:
    """Name of each regular member, `begin` of its headers, `end` of its padding."""
    length = os.fstat(source.fileno()).st_size
    if not length:
        raise ShardError("the file is empty", 0)
    is_tar = False
    try:
        for member in TarWalk(source):
            is_tar = True
            if member.content + member.size > length:
                return
            yield utf8(member.name), member.begin, member.end
    except TAR_ERRORS as error:
        if not is_tar:
            raise ShardError(f"cannot be read: {error}", 0) from error
