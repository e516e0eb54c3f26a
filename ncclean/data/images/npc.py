"""Read NPC's layout of Flickr30K, COCO and CC120K, shared by OSA and others.

    DATASET/annotations/scan_split/train_ids.txt             an image number a line
    DATASET/annotations/scan_split/train_caps.txt            its captions, a line each
    DATASET/annotations/scan_split/0.2_noise_train_caps.txt  the same lines with noise
    DATASET/annotations/scan_split/image_name.txt            names of Flickr30K's images by number
    DATASET/images/

The number of an image is on one line, or on as many lines as it has captions; `scan_split` may be
missing. Captions with noise that are not among those of their image in `train_caps.txt` are known
to be noisy.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections import deque
from collections.abc import Iterator, Sequence

from ncclean.base import stores
from ncclean.data.images.columns import MOST_ROWS
from ncclean.data.images.layout import RowLayout, folder_beside
from ncclean.data.images.text_rows import BrokenRow, Row, open_text
from ncclean.data.layout import Cut, Facts, Source, SourceFile
from ncclean.data.noise import FROM_FILE
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef, sizes_and_versions
from ncclean.errors import ShardError, one_line

ENDING = "_caps.txt"
_SPLITS = {"train": "train", "dev": "val", "val": "val", "test": "test"}
_CAPTIONS = re.compile(r"(?:.*_)?(train|dev|val|test)_caps\.txt")
_FOLDERS = ("annotations/scan_split", "annotations", "scan_split", "")
_SIGNS = ("annotations", "scan_split", *(f"{split}{ENDING}" for split in _SPLITS))
_NAMES = "image_name.txt"
_LONGEST_LINE = 1 << 20
_MOST_NAMES = 64 << 20  # characters of `image_name.txt`, which is kept in memory
# NPC renames COCO's images to the second form; the others are COCO's own.
_PATTERNS = (
    "{}.jpg",
    "COCO_2014_{:0>12}.jpg",
    "COCO_train2014_{:0>12}.jpg",
    "COCO_val2014_{:0>12}.jpg",
    "{:0>12}.jpg",
    "{}",
)


class Npc(RowLayout):
    """NPC's lines of image numbers and of captions; captions without noise tell which are noisy."""

    name = "npc"
    endings = (ENDING,)
    takes_image_key = False
    has_splits = True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        is_file = source.url.endswith(ENDING)
        may_be = is_file or not source.names.isdisjoint(_SIGNS)
        return _caption_files(source.url) if may_be else []

    def root(self, url: str) -> str:
        return folder_beside(url, ["images"])

    def split_of(self, url: str) -> str | None:
        """Return the split of a file of captions, in Karpathy's terms."""
        name = _CAPTIONS.fullmatch(posixpath.basename(url))
        return _SPLITS[name[1]] if name else None

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        return Facts(super().facts(file, options).size, _version_of(file.url))

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        count = sum(1 for _ in _images(file.url, facts.version))
        return [
            Cut(first, min(first + self.unit_rows, count))
            for first in range(0, count, self.unit_rows)
        ]

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        if _version_of(shard.url) != shard.version:
            raise ShardError("captions or image numbers have changed since the run began")
        names = _Names(shard.url, shard.files[0])
        images = _images(shard.url, shard.version)
        for number, captions, clean in itertools.islice(images, *(shard.rows or (0, None))):
            row: Row = {"file_name": names.of(number), "captions": captions, "imgid": number}
            if clean is not None:
                own = set(clean)  # a caption in another's position still fits the image
                noisy = [caption not in own for caption in captions]
                row["is_noisy"] = noisy
                row["noise_kind"] = [FROM_FILE if flag else None for flag in noisy]
            yield row


def _caption_files(place: str) -> list[str]:
    """Return the files of clean captions of each split in a folder, or the file itself."""
    if place.endswith(ENDING):
        return (
            [place]
            if _CAPTIONS.fullmatch(posixpath.basename(place)) and _has(_ids_of(place))
            else []
        )
    folders = [posixpath.join(place, below) if below else place for below in _FOLDERS]
    files = [[f"{folder}/{split}{ENDING}" for split in _SPLITS] for folder in folders]
    asked = [name for several in files for file in several for name in (file, _ids_of(file))]
    present = set(map(str, stores.present_files(map(stores.location, asked))))
    complete = ([file for file in several if {file, _ids_of(file)} <= present] for several in files)
    return next(filter(None, complete), [])


def _version_of(url: str) -> str:
    """Return a version of all files that the rows of a file of captions depend on."""
    files = [url, *filter(_has, (_ids_of(url), _plain_of(url), _names_beside(url)))]
    return ":".join(version for _, version in sizes_and_versions(files))


def _images(url: str, version: str) -> Iterator[tuple[str, list[str], list[str] | None]]:
    """Yield the number, captions and clean captions of each image.

    Equal numbers on consecutive lines are one image.
    """
    captions_each, has_plain = _counted(url, version)
    texts = _lines(url)
    before = _lines(_plain_of(url)) if has_plain else None
    for number, lines in itertools.groupby(_lines(_ids_of(url))):
        size = captions_each * sum(1 for _ in lines)
        clean = _taken(before, size) if before is not None else None
        yield number, _taken(texts, size), clean


@functools.lru_cache(maxsize=16)  # the files of all splits; not counted again for every unit
def _counted(url: str, version: str) -> tuple[int, bool]:
    """Count captions for each line of image numbers, and tell whether there are clean captions."""
    del version  # only a cache key
    ids, plain = _ids_of(url), _plain_of(url)
    numbers, captions = _count(ids), _count(url)
    if not numbers or captions % numbers:
        raise ShardError(
            f"{url} has {captions:,} captions and {posixpath.basename(ids)} {numbers:,} images: "
            "each image must have as many"
        )
    has_plain = posixpath.normpath(plain) != posixpath.normpath(url) and _has(plain)
    if has_plain and _count(plain) != captions:
        raise ShardError(f"{plain} and {url} have different numbers of lines")
    return captions // numbers, has_plain


def _taken(lines: Iterator[str], count: int) -> list[str]:
    """Take the next lines, at most one more than an image may have: enough to refuse it."""
    taken = list(itertools.islice(lines, min(count, MOST_ROWS + 1)))
    deque(itertools.islice(lines, count - len(taken)), maxlen=0)
    return taken


class _Names:
    """Image paths by number: listed in `image_name.txt`, or derived from the folder."""

    def __init__(self, url: str, root: str) -> None:
        listed = _names_beside(url)
        self._listed: list[str] = []
        held = 0
        for name in _lines(listed) if _has(listed) else ():
            self._listed.append(name)
            held += len(name)
            if held > _MOST_NAMES:
                raise ShardError(f"{listed} has more than {_MOST_NAMES:,} characters")
        self._root = root
        self._patterns = list(_PATTERNS)

    def of(self, number: str) -> str:
        """Return the path of an image below the image folder, existing or not."""
        if number.isdecimal() and len(number) < 10 and int(number) < len(self._listed):
            return self._listed[int(number)]
        for pattern in self._patterns:
            name = pattern.format(number)
            if _has(f"{self._root}/{name}"):
                # A folder's images mostly share a naming scheme; in a store, all are assumed to.
                others = [] if stores.is_url(self._root) else self._patterns
                self._patterns = [pattern, *(one for one in others if one != pattern)]
                return name
        return self._patterns[0].format(number)


def _stem(url: str) -> str:
    name = _CAPTIONS.fullmatch(posixpath.basename(url))
    return name[1] if name else ""


def _ids_of(url: str) -> str:
    return f"{posixpath.dirname(url) or '.'}/{_stem(url)}_ids.txt"


def _plain_of(url: str) -> str:
    return f"{posixpath.dirname(url) or '.'}/{_stem(url)}{ENDING}"


def _names_beside(url: str) -> str:
    return f"{posixpath.dirname(url) or '.'}/{_NAMES}"


def _has(file: str) -> bool:
    return bool(stores.present_files([stores.location(file)]))


def _count(url: str) -> int:
    return sum(1 for _ in _lines(url))


def _lines(url: str) -> Iterator[str]:
    """Yield stripped lines as the authors' code reads them."""
    try:
        with open_text(url) as stream:
            while line := stream.readline(_LONGEST_LINE):
                if len(line) == _LONGEST_LINE:
                    raise ShardError(f"{url}: a line has more than {_LONGEST_LINE:,} characters")
                yield line.strip()
    except OSError as error:
        raise ShardError(f"{url} cannot be read: {one_line(error)}") from error
