"""A folder of class folders, as image classification sets have them: class names are the captions.

    CLASSES/001.Black_footed_Albatross/a.jpg      "a photo of a Black footed Albatross"

Images of all classes are mixed: what a score compares a pair with should be of other classes.
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from collections.abc import Iterator

from ncclean import stores
from ncclean.data.images.listing import image_files, subfolders
from ncclean.data.images.text_rows import Row
from ncclean.errors import InputError, ShardError

_PLACE = re.compile(r"\{c?\}")
_NUMBER = re.compile(r"\d+\.")  # before the names of CUB and WebFG


def check_template(template: str) -> None:
    """Raise `InputError` for a template without a place for the name of the class."""
    if not _PLACE.search(template):
        raise InputError(
            f"--class-template {template!r} has no place for the class: write {{}}, as in "
            "'a photo of a {}'"
        )


def class_caption(template: str, folder: str) -> str:
    """The caption of the images in a class folder: `{}` or `{c}` of the template is its name.

    A number in front of the name is left out, and underscores are spaces.
    """
    name = " ".join(_NUMBER.sub("", folder, count=1).replace("_", " ").split())
    return _PLACE.sub(lambda _: name, template)


def count_and_version(root: str) -> tuple[int, int, str]:
    """The images below a folder, their bytes, and a digest that changes when one of them does.

    Raises `ShardError` if a folder cannot be listed.
    """
    _files.cache_clear()  # files may have changed since
    files = _files(root)
    digest = hashlib.blake2b(digest_size=16)
    for path, size, version in files:
        digest.update(f"{path}\0{size}\0{version}\0".encode(errors="replace"))
    return len(files), sum(size for _, size, _ in files), digest.hexdigest()


def class_rows(root: str, template: str, first: int, last: int) -> Iterator[Row]:
    """Images by number as rows: path, caption, and `class`; an image in `root` itself has none."""
    for path, _, _ in _files(root)[first:last]:
        folder = posixpath.basename(posixpath.dirname(path))
        caption = class_caption(template, folder) if folder else None
        yield {"file_name": path, "caption": caption, "class": folder or None}


@functools.lru_cache(maxsize=1)  # units of one folder come one after another
def _files(root: str) -> list[tuple[str, int, str]]:
    """Path below the root, size and version of each image, in an order that mixes the classes."""
    with stores.listings_kept():
        files = [
            (posixpath.relpath(f"{folder}/{entry.name}", root), entry.size, entry.version)
            for folder in _folders(root)
            for entry in image_files(folder)
        ]
    return sorted(
        files, key=lambda file: hashlib.blake2b(file[0].encode(errors="replace")).digest()
    )


def _folders(root: str) -> Iterator[str]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        yield folder
        waiting += reversed(subfolders(folder))
        if len(waiting) > 1_000_000:
            raise ShardError(f"{root} holds more than a million folders")
