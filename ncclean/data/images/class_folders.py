"""Read class folders, as image classification sets have them: class names are the captions.

    CLASSES/001.Black_footed_Albatross/a.jpg      "a photo of a Black footed Albatross"

Images of all classes are mixed: a pair's score needs other classes to compare with.
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from ncclean.base import stores
from ncclean.data.images.folders import image_files, subfolders
from ncclean.data.images.layout import OutForm, RowLayout
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.layout import Cut, Facts, Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError

_PLACE = re.compile(r"\{c?\}")
_NUMBER = re.compile(r"\d+\.")  # before the names in CUB and WebFG


def check_template(template: str) -> None:
    """Raise `InputError` for a template without a place for the name of the class."""
    if not _PLACE.search(template):
        raise InputError(
            f"--class-template {template!r} has no place for the class: write {{}}, as in "
            "'a photo of a {}'"
        )


def class_caption(template: str, folder: str) -> str:
    """Return the caption of a class folder's images: the template with its name as `{}` or `{c}`.

    A leading number is dropped from the name, and underscores become spaces.
    """
    name = " ".join(_NUMBER.sub("", folder, count=1).replace("_", " ").split())
    return _PLACE.sub(lambda _: name, template)


class ClassFolders(RowLayout):
    """Images in folders of classes, `classes:a photo of a {}`; a shard has some of each class."""

    name = "classes"
    takes_image_key = False

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if options.class_template is None:
            return []
        check_template(options.class_template)
        _listed.cache_clear()  # files may have changed since
        try:
            files, _ = _listed(source.url)
        except ShardError as error:
            raise InputError(f"{source.url} holds no class folders: {error}") from error
        if not files:
            raise InputError(f"{source.url} holds no images in class folders")
        return [source.url]

    def root(self, url: str) -> str:
        return url

    def written_as(self, urls: Collection[str]) -> OutForm:
        return "folder"

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        files, version = _listed(file.url)
        template = options.class_template or ""
        return Facts(sum(size for _, size in files), _version(version, template), template)

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        count = len(_listed(file.url)[0])
        return [
            Cut(first, min(first + self.unit_rows, count))
            for first in range(0, count, self.unit_rows)
        ]

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        """Yield path, caption and `class` of the images; those in no class folder have no class.

        Raises `ShardError` if a file has changed since: images would be missing or repeated.
        """
        files, version = _listed(shard.url)
        template = shard.layout.partition(":")[2]
        if _version(version, template) != shard.version:
            raise ShardError("images have been added, removed or changed since the run began")
        first, last = shard.rows or (0, 0)
        for path, _ in files[first:last]:
            folder = posixpath.basename(posixpath.dirname(path))
            caption = class_caption(template, folder) if folder else None
            yield {"file_name": path, "caption": caption, "class": folder or None}


def _version(files: str, template: str) -> str:
    """Return the version of a shard by a digest of its files; other templates, other captions."""
    return f"{files} {template}"


@functools.lru_cache(maxsize=1)  # units of one folder come one after another
def _listed(root: str) -> tuple[list[tuple[str, int]], str]:
    """List each image's path and size, with classes mixed, and a digest of the files.

    Raises `ShardError` if a folder cannot be listed.
    """
    with stores.listings_kept():
        links = [
            (posixpath.relpath(f"{folder}/{entry.name}", root), entry.size, entry.version)
            for folder in _folders(root)
            for entry in image_files(folder)
        ]
    files = [(stores.file_name(link, root), size, version) for link, size, version in links]
    files.sort(key=lambda file: hashlib.blake2b(file[0].encode(errors="replace")).digest())
    digest = hashlib.blake2b(digest_size=16)
    for path, size, version in files:
        digest.update(f"{path}\0{size}\0{version}\0".encode(errors="replace"))
    return [(path, size) for path, size, _ in files], digest.hexdigest()


def _folders(root: str) -> Iterator[str]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        yield folder
        waiting += reversed(subfolders(folder))
        if len(waiting) > 1_000_000:
            raise ShardError(f"{root} holds more than a million folders")
