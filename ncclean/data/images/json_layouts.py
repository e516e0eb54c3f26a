"""Read layouts whose rows are the entries of a json list: LLaVA, RedCaps, Karpathy, COCO."""

from __future__ import annotations

import contextlib
import functools
import itertools
import posixpath
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclean.data.images.columns import CAPTION_COLUMNS
from ncclean.data.images.folders import is_image_name
from ncclean.data.images.json_list import JsonList, first_entries
from ncclean.data.images.layout import Reading, RowLayout, folder_beside
from ncclean.data.images.samples import TableSamples
from ncclean.data.images.tables import name_images
from ncclean.data.images.text_rows import BrokenRow, Row, row_keys
from ncclean.data.images.text_tables import cut_rows
from ncclean.data.layout import Cut, Facts, Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import usual_caption
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError, one_line

JSON = ".json"
_MOST_FILES = 20  # files per folder to inspect
Firsts = Mapping[str | None, Mapping[str, Any]]


class JsonLayout(RowLayout):
    """A layout of images listed in a JSON file, as the entries of the list `list_name`.

    The text after the layout's name, `detail`, says which entries are read.
    """

    endings = (JSON,)
    takes_image_key = False
    list_name: str | None
    has_other_lists = False

    @abstractmethod
    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        """Check whether a file has this layout, by the first objects of its lists."""

    @abstractmethod
    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        """Convert an entry of the list to a row."""

    def is_read(self, entry: object, detail: str) -> bool:
        """Check whether an entry of the list is read; broken ones, whose kind is unknown, are."""
        return True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if source.url.endswith(JSON) and not source.entries:
            return [source.url] if self.matches(_firsts(source.url), options) else []
        names = [name for name in source.files if name.endswith(JSON)]
        if len(names) > _MOST_FILES or any(map(is_image_name, source.files)):
            return []  # this is what samples of loose files have
        files = [source.below(name) for name in names]
        return [url for url in files if self.is_of_folder(_firsts(url), options)]

    def is_of_folder(self, firsts: Firsts, options: SourceOptions) -> bool:
        """Check whether a JSON file is the one that is meant if its folder is named."""
        return self.matches(firsts, options)

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        try:
            with self.open(file.url, facts.detail) as entries:
                entries.seek(0)
                return cut_rows(
                    entries, self.unit_rows, lambda one: self.is_read(one, facts.detail)
                )
        except OSError as error:
            raise ShardError(f"{file.url} cannot be read: {one_line(error)}") from error

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        detail = shard.layout.partition(":")[2]
        try:
            with self.open(shard.url, detail) as entries:
                entries.seek(shard.offset)
                read = (entry for entry in entries if self.is_read(entry, detail))
                for entry in itertools.islice(read, shard.count):
                    is_object = isinstance(entry, dict)
                    yield self.row(entry, shard) if is_object else BrokenRow("no JSON object")
        except OSError as error:
            raise ShardError(f"cannot be read: {one_line(error)}") from error

    def open(self, url: str, detail: str) -> JsonList:
        """Open the list of a JSON file in a `with` block. Raises `OSError` and `ShardError`."""
        return JsonList(url, self.list_name, self.has_other_lists)


def _firsts(url: str) -> Firsts:
    try:
        return first_entries(url)
    except ShardError:
        return {}


class JsonTable(JsonLayout):
    """Any JSON with a list of objects with images: `json:data`, or `json` if it is the list."""

    name = "json"
    takes_image_key = True

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return bool(_lists(firsts, options))

    def is_of_folder(self, firsts: Firsts, options: SourceOptions) -> bool:
        named = [firsts[name] for name in _lists(firsts, options)]
        return any(usual_caption(first, CAPTION_COLUMNS) is not None for first in named)

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        size, version, _ = super().facts(file, options)
        first, *others = _lists(first_entries(file.url), options)
        if others:
            names = ", ".join(f"`{name}`" for name in (first, *others))
            raise InputError(f"{file.url} has several lists of images, {names}: make each a file")
        return Facts(size, version, first or "")

    def open(self, url: str, detail: str) -> JsonList:
        return JsonList(url, detail or None, is_alike=name_images)

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        keys = row_keys(entry)
        return {keys[name]: value for name, value in entry.items()}


class RedCaps(JsonLayout):
    """RedCaps' layout: annotations, and a folder of images for each subreddit."""

    name = "redcaps"
    list_name = "annotations"

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return firsts.get(self.list_name, {}).keys() >= {"image_id", "subreddit", "raw_caption"}

    def root(self, url: str) -> str:
        return folder_beside(url, ["images"])

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        folder, name = entry.get("subreddit"), entry.get("image_id")
        if not isinstance(folder, str) or not isinstance(name, str):
            return BrokenRow("an annotation without `subreddit` or `image_id`")
        return {"file_name": posixpath.join(folder, f"{name}.jpg"), **entry}


def _lists(firsts: Firsts, options: SourceOptions) -> list[str | None]:
    return [name for name, first in firsts.items() if name_images([*first], options.image_key)]


SPLITS = ("train", "restval", "val", "test")


class Karpathy(JsonLayout):
    """Karpathy's layout: captions of COCO and Flickr in one JSON file, by split.

    `karpathy:train:restval` means those of two splits.
    """

    name = "karpathy"
    list_name = "images"
    has_splits = True

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return "sentences" in firsts.get(self.list_name, {})

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        # The rows of other splits are another version of the unit.
        named = [split for split in SPLITS if split in options.split]
        size, version, _ = super().facts(file, options)
        return Facts(size, ":".join([version, *named]), ":".join(named))

    def is_read(self, entry: object, detail: str) -> bool:
        return not detail or not isinstance(entry, dict) or entry.get("split") in detail.split(":")

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        name, folder = entry.get("filename"), entry.get("filepath")
        sentences = entry.get("sentences")
        if not isinstance(name, str) or not isinstance(sentences, list):
            return BrokenRow("an image without `filename` or `sentences`")
        captions = [one.get("raw") if isinstance(one, dict) else None for one in sentences]
        path = posixpath.join(folder, name) if isinstance(folder, str) and folder else name
        numbers = {key: entry[key] for key in ("imgid", "cocoid", "split") if key in entry}
        return {"file_name": path, "captions": captions, **numbers}


_FOLDER = "annotations"
_FILE = re.compile(r"captions_((train|val|test)[^/]*)\.json")
_CAPTIONS = "annotations"
_MOST_HELD = 1 << 28  # characters; COCO has 40 million


class Coco(JsonLayout):
    """COCO's layout: captions in a JSON file, by the images' ids.

    Images of `annotations/captions_train2017.json` are in `train2017` or `images` beside it.
    """

    name = "coco"
    list_name = "images"
    has_other_lists = True
    has_splits = True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if _FOLDER in source.names:
            names = sorted(filter(_FILE.fullmatch, source.names_in(_FOLDER)))
            return [source.below(_FOLDER, name) for name in names]
        return super().sources(source, options)

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        captions, images = firsts.get(_CAPTIONS, {}), firsts.get(self.list_name, {})
        return captions.keys() >= {"image_id", "caption"} or images.keys() >= {"id", "file_name"}

    def root(self, url: str) -> str:
        name = _FILE.fullmatch(posixpath.basename(url))
        folders = [name[1], f"images/{name[1]}"] if name else []
        return folder_beside(url, [*folders, "images"])

    def split_of(self, url: str) -> str | None:
        name = _FILE.fullmatch(posixpath.basename(url))
        return name[2] if name else None

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        captions = _captions_of(file.url, facts.version)[0].values()
        if not any(isinstance(text, str) for several in captions for text in several):
            raise InputError(f"{file.url} has no captions: name the file captions_*.json beside it")
        return super().cuts(file, facts, options)

    def samples(self, shard: ShardRef, reading: Reading) -> TableSamples:
        samples = super().samples(shard, reading)
        is_first = shard.rows is None or shard.rows[0] == 0  # counted once per file
        if reading.wanted is None and is_first and (lost := self._of_no_image(shard)):
            samples.further.add(samples.further.captions, "of no image", lost)
        return samples

    def _of_no_image(self, shard: ShardRef) -> int:
        """Count captions whose image is not in the list of images."""
        captions = dict(_captions_of(shard.url, shard.version)[0])
        with contextlib.suppress(OSError, ShardError), self.open(shard.url, "") as images:
            images.seek(0)
            for image in images:
                number = image.get("id") if isinstance(image, dict) else None
                if isinstance(number, int | str):
                    captions.pop(number, None)
        return sum(map(len, captions.values()))

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        yield from super().rows(shard, whole)
        if failure := _captions_of(shard.url, shard.version)[1]:
            raise ShardError(failure)

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        name, number = entry.get("file_name"), entry.get("id")
        if not isinstance(name, str) or not isinstance(number, int | str):
            return BrokenRow("an image without `file_name` or `id`")
        captions = _captions_of(shard.url, shard.version)[0].get(number, [])
        url = entry.get("coco_url") or entry.get("url")
        return {"file_name": name, "captions": captions, "imgid": number, "url": url}


@functools.lru_cache(maxsize=2)  # units of one file come one after another
def _captions_of(url: str, version: str) -> tuple[dict[int | str, list[Any]], str]:
    """Return captions by image id, and why there may be more that cannot be read, or ""."""
    del version  # only a cache key
    captions: dict[int | str, list[Any]] = defaultdict(list)
    held = 0
    try:
        with JsonList(url, _CAPTIONS, has_others=True) as entries:
            entries.seek(0)
            for entry in entries:
                number = entry.get("image_id") if isinstance(entry, dict) else None
                if isinstance(number, int | str):
                    captions[number].append(entry.get("caption"))
                    held += len(str(captions[number][-1]))
                if held > _MOST_HELD:
                    raise ShardError(f"{url} has captions of more than {_MOST_HELD:,} characters")
    except (OSError, ShardError) as error:
        return captions, one_line(error)
    return captions, ""
