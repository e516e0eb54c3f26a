"""Folders of loose files: images with captions and fields beside them, alike but for endings."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import posixpath
from collections.abc import Collection, Iterator, Sequence

from ncclean.base import stores
from ncclean.data.images.files import UnitFiles, UnreadableFile
from ncclean.data.images.layout import ImageLayout, OutForm, Reading
from ncclean.data.images.listing import Entry, entries_of, has_image_files
from ncclean.data.layout import SourceFile
from ncclean.data.member_samples import Contents, MemberSamples, too_large
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import is_image, utf8
from ncclean.data.samples import CaptionKeys, Place, Sample, SkipReason, Unread
from ncclean.data.shards import ShardRef
from ncclean.data.source import Source


class Folder(ImageLayout):
    """Folders of files, one by one; a unit has the files of some keys."""

    name = "folder"

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        return [source.url] if has_image_files(source.url) else []

    def below(self, layouts: Sequence[ImageLayout]) -> Sequence[ImageLayout]:
        return layouts

    def root(self, url: str) -> str:
        return url

    def written_as(self, urls: Collection[str]) -> OutForm:
        return "folder"

    def units(self, file: SourceFile, name: str, options: SourceOptions) -> list[ShardRef]:
        """Units of as many keys; a file more in one of them leaves the others as they are."""
        units: list[ShardRef] = []
        entries = entries_of(file.url, image_key=options.image_key)
        by_key = itertools.groupby(entries, key=lambda entry: entry.key)
        keys = ((key, list(files)) for key, files in by_key)
        while chunk := list(itertools.islice(keys, self.unit_rows)):
            files = [entry for _, entries in chunk for entry in entries]
            facts = "".join(f"{file.name}\0{file.size}\0{file.version}\0" for file in files)
            digest = hashlib.blake2b(facts.encode(errors="replace"), digest_size=16)
            units.append(
                ShardRef(
                    f"{name}-{len(units):05d}",
                    file.url,
                    sum(file.size for file in files),
                    digest.hexdigest(),
                    self.name,
                    file.files,
                    (0, len(chunk)),
                    span=(chunk[0][0], chunk[-1][0]),
                )
            )
        return units if len(units) > 1 else [dataclasses.replace(unit, name=name) for unit in units]

    def samples(self, shard: ShardRef, reading: Reading) -> FolderSamples:
        files = UnitFiles(shard, reading.wanted)
        return FolderSamples(shard, reading.caption_key, files, reading.whole)


class FolderSamples(MemberSamples):
    """Iterates over the samples of a unit of a folder once: files alike but for their ending.

    Raises `ShardError` if the folder cannot be listed.
    """

    def __init__(
        self, shard: ShardRef, caption_key: CaptionKeys, files: UnitFiles, whole: bool = False
    ) -> None:
        super().__init__(shard, caption_key, whole)
        self._files = files
        self._folder = shard.url if stores.is_url(shard.url) else os.path.abspath(shard.url)

    def __iter__(self) -> Iterator[Sample]:
        yield from self._grouped()

    def _locate(self, sample: Sample, group: Contents) -> None:
        sample.place = Place(group.located.get(sample.picture or ""))

    def _members(self) -> Iterator[tuple[str, str, bytes | Unread, str]]:
        entries = entries_of(
            self.shard.url, self.shard.span, self.caption_keys, self.shard.image_key
        )
        yield from self._files.map(self._member, entries)

    def _member(self, entry: Entry) -> tuple[str, str, bytes | Unread, str]:
        key = utf8(entry.key)
        data: bytes | Unread = b""
        if self._files.is_wanted(key) and self._is_used(key, entry.extension):
            data = too_large(entry.extension, entry.size) or self._read(entry)
        return key, entry.extension, data, entry.name

    def _read(self, entry: Entry) -> bytes | Unread:
        try:
            return self._files.read_exactly(posixpath.join(self._folder, entry.name))
        except UnreadableFile as error:
            is_of_image = is_image(entry.extension)
            return Unread(error.reason if is_of_image else SkipReason.CAPTION_MISSING, str(error))
