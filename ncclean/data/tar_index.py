"""The byte ranges of a tar's samples, to copy or read without unpacking.

Which members make a sample is up to `ncclean.data.sample_groups`, as it is in scoring.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO

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

    __slots__ = ("_source",)
    members: dict[str, tuple[int, int]]

    def __init__(self, row: int, key: str, source: int) -> None:
        super().__init__(row, key)
        self._source = source

    @property
    def size(self) -> int:
        return sum(end - begin for begin, end in self.members.values())

    @property
    def has_caption(self) -> bool:
        if not self.members.keys().isdisjoint(CAPTION_EXTENSIONS):
            return True
        if "json" not in self.members:
            return False
        begin, end = self.members["json"]
        if end - begin > 2 * LARGEST_TEXT:  # headers included
            return False
        metadata = parse_json(read_content(os.pread(self._source, end - begin, begin)))
        return may_be_caption(usual_caption(metadata, JSON_CAPTIONS))


def locate_samples(path: Path, keys: Container[str] | None = None) -> list[LocatedSample]:
    """The samples of an uncompressed local tar in order of appearance, or those with `keys`.

    Of samples that share a key, the one that scoring takes is returned. A tar that is cut short
    gives the members before the cut. Raises `ShardError` if the file is not a tar.
    """
    with open_file(path, _READ_BUFFER) as source:
        groups = SampleGroups(lambda row, key: LocatedSample(row, key, source.fileno()))
        finished: list[LocatedSample] = []
        # Nearly always the next member is of the same sample, or of one that is not wanted either.
        prefix = skipped = _NO_PREFIX
        for name, begin, end in _members(source):
            sample = groups.current
            if name.startswith(prefix) and sample and "/" not in (rest := name[len(prefix) :]):
                key, extension = sample.key, rest.lower()
            elif not sample and name.startswith(skipped) and "/" not in name[len(skipped) :]:
                continue
            else:
                member = sample_member(name)
                if member is None:
                    continue
                key, extension = member
                if keys is not None and key not in keys:
                    finished += groups.pause()
                    prefix, skipped = _NO_PREFIX, f"{key}."
                    continue
                prefix = f"{key}."
            if sample is None or sample.key != key or extension in sample.members:
                finished += groups.turn_to(key, extension)
                sample = groups.current
            if sample is not None:
                sample.members[extension] = begin, end
        finished += groups.end()
    samples = {sample.row: sample for sample in finished if not sample.is_repeat}
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
