"""Read folders of loose files: images with captions and fields beside them, named alike."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import posixpath
import stat
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ncclean.base import stores
from ncclean.data.images.files import UnitFiles, UnreadableFile
from ncclean.data.images.layout import ImageLayout, OutForm, Reading
from ncclean.data.layout import Source, SourceFile
from ncclean.data.member_samples import Contents, MemberSamples, too_large
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import (
    CAPTION_EXTENSIONS,
    IMAGE_EXTENSIONS,
    UNREAD_EXTENSIONS,
    is_image,
    utf8,
)
from ncclean.data.samples import NO_PLACE, CaptionKeys, Place, Sample, SkipReason, Unread
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError


class Folder(ImageLayout):
    """Folders of loose files with images and captions; a shard has the files of some keys."""

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
        """Cut a folder into shards of equally many consecutive keys.

        A file added to a key leaves the other shards unchanged; so does a new key at the end. Files
        of any ending may be captions (`--caption-key`), and count for the version.
        """
        units: list[ShardRef] = []
        entries = entries_of(file.url, image_key=options.image_key, all_files=True)
        by_key = itertools.groupby(entries, key=lambda entry: entry.key)
        groups = ((key, list(files)) for key, files in by_key)
        keys = (one for one in groups if any(entry.is_read for entry in one[1]))
        while chunk := list(itertools.islice(keys, self.unit_rows)):
            files = [entry for _, entries in chunk for entry in entries]
            facts = "".join(f"{file.name}\0{file.size}\0{file.version}\0" for file in files)
            digest = hashlib.blake2b(facts.encode(errors="replace"), digest_size=16)
            units.append(
                ShardRef(
                    f"{name}-{len(units):05d}",
                    file.url,
                    sum(file.size for file in files if file.is_read),
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
    """Iterates once over the samples in a shard of a folder.

    A sample has the files that differ only in their ending. Raises `ShardError` if the folder
    cannot be listed.
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
        entry = group.located.get(sample.picture or "")
        sample.place = NO_PLACE if entry is None else Place(entry.name, None, entry.size)

    def _members(self) -> Iterator[tuple[str, str, bytes | Unread, Entry]]:
        entries = entries_of(
            self.shard.url, self.shard.span, self.caption_keys, self.shard.image_key
        )
        yield from self._files.map(self._member, entries)

    def _member(self, entry: Entry) -> tuple[str, str, bytes | Unread, Entry]:
        key = utf8(stores.file_name(entry.key, self.shard.url))
        data: bytes | Unread = b""
        if self._files.is_wanted(key) and self._is_used(key, entry.extension):
            data = too_large(entry.extension, entry.size) or self._read(entry)
        return key, entry.extension, data, entry

    def _read(self, entry: Entry) -> bytes | Unread:
        try:
            return self._files.read_exactly(posixpath.join(self._folder, entry.name))
        except UnreadableFile as error:
            is_of_image = is_image(entry.extension)
            return Unread(error.reason if is_of_image else SkipReason.CAPTION_MISSING, str(error))


# What img2dataset writes about a whole folder.
_NOT_OF_A_SAMPLE = "_stats.json"
_CAPTIONS = frozenset((*CAPTION_EXTENSIONS, "json"))
_EXTENSIONS = IMAGE_EXTENSIONS | UNREAD_EXTENSIONS | _CAPTIONS


class Entry(NamedTuple):
    """A file that belongs to the sample `key`. `version` changes when its bytes do.

    `is_read` is false for an ending that only options make a caption or an image.
    """

    key: str
    extension: str
    name: str
    size: int
    version: str
    is_read: bool = True


def entries_of(
    folder: str,
    span: tuple[str, str] | None = None,
    caption_keys: Sequence[str] = (),
    image_key: str | None = None,
    all_files: bool = False,
) -> Iterator[Entry]:
    """Return the files directly in a folder that make samples, by key, from the first to last key.

    A key is a name up to its last dot; files with the endings `caption_keys` and `image_key`, which
    may contain dots, are captions and images, too. `all_files` adds files of other endings. Raises
    `ShardError` if the folder cannot be listed.
    """
    named = (*caption_keys, *([image_key] if image_key is not None else []))
    extensions, longer = _EXTENSIONS.union(named), tuple(name for name in named if "." in name)
    files = [file for file in _files(folder) if not file.name.startswith(".")]
    read = {file.name for file in files if _is_meant(file.name, extensions, longer)}
    for file in sorted(files, key=lambda file: _split(file.name, longer)):
        if not all_files and file.name not in read:
            continue
        key, extension = _split(file.name, longer)
        if span is not None and not span[0] <= key <= span[1]:
            continue
        size, version = file.size, file.version
        if size is None:
            size, version = _facts(f"{folder}/{file.name}")
        if size is not None:
            is_read = file.name in read
            yield Entry(key, extension.lower(), file.name, size, version or "", is_read)


def image_files(folder: str) -> Iterator[Entry]:
    """List the images directly in the folder. Raises `ShardError` if it cannot be listed."""
    for file in _files(folder):
        if _is_meant(file.name, IMAGE_EXTENSIONS):
            size, version = file.size, file.version
            if size is None:
                size, version = _facts(f"{folder}/{file.name}")
            if size is not None:
                key, extension = _split(file.name)
                yield Entry(key, extension.lower(), file.name, size, version or "")


def has_image_files(folder: str) -> bool:
    """Check whether a folder directly holds images. Raises `ShardError` if it cannot be listed."""
    return any(_is_meant(file.name, IMAGE_EXTENSIONS) for file in _files(folder))


def is_image_name(place: str) -> bool:
    """Check whether a file of this name is an image that is read."""
    return _is_meant(place.rpartition("/")[2], IMAGE_EXTENSIONS)


def has_captioned_images(folder: str) -> bool:
    """Check whether an image directly in the folder has its caption beside it.

    Raises `ShardError` if the folder cannot be listed.
    """
    names = [file.name for file in _files(folder)]
    images, captions = (
        {_split(name)[0] for name in names if _is_meant(name, extensions)}
        for extensions in (IMAGE_EXTENSIONS, _CAPTIONS)
    )
    return not images.isdisjoint(captions)


def unread_image(folder: str) -> str | None:
    """Return an image, directly in the folder, of an unsupported format; None without one.

    Raises `ShardError` if the folder cannot be listed.
    """
    names = (file.name for file in _files(folder) if _is_meant(file.name, UNREAD_EXTENSIONS))
    return next(names, None)


def subfolders(folder: str) -> list[str]:
    """List a folder's subfolders that are not hidden, sorted; links to folders are not followed."""
    entries = (entry for entry in _entries(folder) if entry.is_folder)
    return [f"{folder}/{entry.name}" for entry in entries if not entry.name.startswith(".")]


def _files(folder: str) -> Iterator[stores.Entry]:
    return (entry for entry in _entries(folder) if not entry.is_folder)


def _entries(folder: str) -> list[stores.Entry]:
    try:
        return stores.listing(folder, is_there=True)
    except InputError as error:
        raise ShardError(str(error)) from error


def _facts(path: str) -> tuple[int | None, str]:
    """Return size and version of a local file; no size for a folder."""
    try:
        facts = os.stat(path)
    except OSError:  # a broken or circular link: reported when it is read
        return 0, ""
    return None if stat.S_ISDIR(facts.st_mode) else facts.st_size, str(facts.st_mtime_ns)


def _is_meant(name: str, extensions: Collection[str], longer: Sequence[str] = ()) -> bool:
    is_ours = not name.startswith(".") and not name.endswith(_NOT_OF_A_SAMPLE)
    extension = _split(name, longer)[1].lower()
    return is_ours and (extension in extensions or extension.rpartition(".")[2] in extensions)


def _split(name: str, longer: Sequence[str] = ()) -> tuple[str, str]:
    """Split a name into key and extension: one of the `longer` ones with dots, else the last one.

    A text named after the whole name of its image, `001.jpg.txt`, has the extension `jpg.txt`.
    """
    ending = next((one for one in longer if name.lower().endswith(f".{one}")), None)
    if ending is not None and len(name) > len(ending) + 1:
        return name[: -len(ending) - 1], name[-len(ending) :]
    key, _, extension = name.rpartition(".")
    stem, _, picture = key.rpartition(".")
    is_of_picture = extension in CAPTION_EXTENSIONS and picture.lower() in IMAGE_EXTENSIONS
    return (stem, f"{picture}.{extension}") if is_of_picture and stem else (key, extension)
